// Package consul makes the services of an allocation known to an agent of Consul, through its official client, and has the agent check them.
//
// It promises that a service is registered as Nomad registers it, with its IDs, that what somebody removes comes back, and that an agent which is
// away is tried again, without an end and without a task that waits for it. It removes nothing but what this data directory has registered. It
// runs no check: the results of scripts come to it.
package consul
