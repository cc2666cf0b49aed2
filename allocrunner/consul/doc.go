// Package consul registers the services of an allocation with an agent of Consul, through its official client, and has
// the agent check them.
//
// A service is registered as Nomad registers it, with Nomad's IDs. A registration that somebody removes is made again.
// If the agent can't be reached, it is tried again for ever, and no task waits for it. The package removes only what
// this data directory has registered. It runs no check: the results of scripts are given to it.
package consul
