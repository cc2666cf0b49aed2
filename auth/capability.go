package auth

// Capability is a right on an allocation, under the name that Nomad's ACL policies give it. The zero value is no capability
// at all, so that a route which forgets to name one can't be served.
type Capability uint16

const (
	// Authenticated is what every caller with a valid token has: health, leader, the agent's own description.
	Authenticated  Capability = 1 << iota
	ReadJob                   // status, checks, stats, services
	ReadLogs                  // a task's output
	ReadFS                    // files of the allocation
	AllocLifecycle            // restart, signal, stop, garbage collection
	AllocExec                 // commands inside a task
	VariablesRead             // variables of the allocation's job
	VariablesWrite            //
	OperatorOnly              // what belongs to the operator alone, such as the metrics of the door
)

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
