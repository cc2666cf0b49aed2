package socket

import "sync/atomic"

// Cap bounds how many connections are open at once; several sockets may share one. A nil Cap bounds nothing.
type Cap struct {
	limit int64
	open  atomic.Int64
}

// NewCap returns a Cap of limit connections; a limit of 0 or less lets none through.
func NewCap(limit int) *Cap { return &Cap{limit: int64(limit)} }

// Open returns how many connections count against the Cap now.
func (c *Cap) Open() int {
	if c == nil {
		return 0
	}
	return int(c.open.Load())
}

func (c *Cap) acquire() bool {
	if c == nil {
		return true
	}
	if c.open.Add(1) <= c.limit {
		return true
	}
	c.open.Add(-1)
	return false
}

func (c *Cap) release() {
	if c != nil {
		c.open.Add(-1)
	}
}
