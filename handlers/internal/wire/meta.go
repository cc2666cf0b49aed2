package wire

// Meta has the headers that some of Nomad's answers repeat in their bodies.
type Meta struct {
	Index       uint64
	LastContact int
	KnownLeader bool // false in answers to writes
	NextToken   string
}
