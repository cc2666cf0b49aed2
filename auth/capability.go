package auth

import (
	"fmt"
	"math/bits"
	"strings"

	"taskapi/internal/slice"
)

// Capability is a right on an allocation, under the name that Nomad's ACL policies give it. The zero value is no right,
// and nobody has it.
type Capability uint16

// The capabilities. Each has its name in the same place of capabilityNames.
const (
	Authenticated  Capability = 1 << iota // every caller with a valid token: health, leader, public keys, services
	ReadJob                               // status, checks, stats, events
	ReadLogs                              // a task's output
	ReadFS                                // files of the allocation
	AllocLifecycle                        // restart, signal, stop, garbage collection
	AllocExec                             // commands inside a task
	VariablesRead                         // variables; Principal.MayVariable decides which
	VariablesWrite                        // the same, and their locks
	AgentRead                             // the agent's own description
	AgentMonitor                          // the agent's log
	NodeRead                              // this machine: attributes, resources, metadata
	NodeWrite                             // to change its metadata
	OperatorOnly                          // what belongs to the operator alone, such as metrics; always the last

	// grantable are the capabilities that a policy gives and takes. A policy can't take Authenticated from a valid token,
	// and can't give OperatorOnly to anybody.
	grantable = CapabilitySet(OperatorOnly-1) &^ CapabilitySet(Authenticated)

	// ImplicitTask is what Nomad's implicit policy gives a workload identity: the preset "nomad".
	ImplicitTask = CapabilitySet(Authenticated | VariablesRead)

	// DefaultTask is what a task's own identity has on its allocation when no policy says otherwise: the preset "local".
	DefaultTask = ImplicitTask | CapabilitySet(ReadJob|ReadLogs|ReadFS|AllocLifecycle|AgentRead)

	// All is what the operator has, whatever a policy says.
	All = CapabilitySet(OperatorOnly<<1 - 1)
)

var capabilityNames = [...]string{
	"authenticated", "read-job", "read-logs", "read-fs", "alloc-lifecycle", "alloc-exec",
	"variables-read", "variables-write", "agent:read", "agent:monitor", "node:read", "node:write", "operator-only",
}

// String returns the capability's name in a policy.
func (c Capability) String() string {
	i := bits.TrailingZeros16(uint16(c))
	if bits.OnesCount16(uint16(c)) != 1 || i >= len(capabilityNames) {
		return fmt.Sprintf("capability(%#x)", uint16(c))
	}
	return capabilityNames[i]
}

// ParseCapability returns the capability of that name, if a policy may give it. The error lists the names.
func ParseCapability(name string) (Capability, error) {
	for _, c := range grantable.List() {
		if c.String() == name {
			return c, nil
		}
	}
	return 0, fmt.Errorf("unknown capability %q; there are %s", name, grantable)
}

// CapabilitySet is a set of capabilities, one bit each.
type CapabilitySet uint16

// Has reports whether the set holds c. No set holds the zero capability.
func (s CapabilitySet) Has(c Capability) bool {
	return c != 0 && CapabilitySet(c)&s == CapabilitySet(c)
}

// With returns the set with the capabilities added.
func (s CapabilitySet) With(cs ...Capability) CapabilitySet {
	for _, c := range cs {
		s |= CapabilitySet(c)
	}
	return s
}

// List returns the capabilities of the set, in the order of their declaration.
func (s CapabilitySet) List() []Capability {
	var list []Capability
	for i := range capabilityNames {
		if c := Capability(1) << i; s.Has(c) {
			list = append(list, c)
		}
	}
	return list
}

// String returns the names, joined by commas.
func (s CapabilitySet) String() string { return s.joined(", ") }

// AnyOf returns the names for a request that needs one of the capabilities.
func (s CapabilitySet) AnyOf() string { return s.joined(" or ") }

func (s CapabilitySet) joined(by string) string {
	return strings.Join(slice.Map(s.List(), Capability.String), by)
}
