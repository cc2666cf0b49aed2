package handlers

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"taskapi/auth"
)

// phase is what a connection waits for, and so how long it may.
type phase int64

const (
	arriving phase = iota // for the first byte on a new connection
	reading               // for the rest of a request's head
	serving               // for the handler, which has bounds of its own
	writing               // for the client to take the answer
	idling                // for the next request
	paging                // for the client to take a command's output, which it may be paging through
)

// limits are how long each phase may last; zero is without end.
var limits = [...]time.Duration{
	arriving: requestTimeout,
	reading:  requestTimeout,
	serving:  0,
	writing:  writeTimeout,
	idling:   idleTimeout,
	paging:   pagingTimeout,
}

// sweepEvery is how often the watchdog looks at connections, and so the most by which one is cut off late.
const sweepEvery = time.Second

// connection is a client's connection, with its peer and how long it has been in its phase.
type connection struct {
	net.Conn
	peer     auth.Peer
	watchdog *watchdog
	server   *socketServer
	begun    bool // the next request, or the one that is being read, has had its turn; used by the goroutine that serves the connection
	framing  framing
	requests int64 // that have come to the handler

	// upgrading is the request whose handler may take the connection, and upgraded the one whose handler has taken it, written while nothing
	// reads or writes: see upgrade.
	upgrading, upgraded *request
	patient             bool // writes on the upgraded connection may last as those of paging do

	// state is the phase in the upper bits and the watchdog's tick at its begin in the lower: one store for each step of a request.
	state atomic.Int64
}

const tickBits = 48

// connectionKey is the key of a connection in its context.
type connectionKey struct{}

// connectionOf returns the connection of a request, or nil if it was closed because its peer is not known.
func connectionOf(ctx context.Context) *connection {
	c, _ := ctx.Value(connectionKey{}).(*connection)
	return c
}

// enter begins a phase.
func (c *connection) enter(p phase) { c.state.Store(int64(p)<<tickBits | c.watchdog.tick.Load()) }

// phase returns the present phase.
func (c *connection) phase() phase { return phase(c.state.Load() >> tickBits) }

// Read reads from the client. The first bytes on a connection, or after an idle time, begin a request's head. A read of a single byte is
// net/http's watch for the client's end, from another goroutine, which may begin before the handler does.
func (c *connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.upgraded != nil {
		return c.readUpgraded(n, err)
	}
	c.framing.feed(b[:n])
	if p := c.phase(); n > 0 && len(b) > 1 && (p == idling || p == arriving) {
		c.begin()
		c.enter(reading)
	}
	return n, err
}

// ambiguous reports whether the request that the handler gets now gives the length of its body twice.
func (c *connection) ambiguous() bool {
	c.requests++
	bad := c.framing.bad.Load()
	return bad != 0 && c.requests >= bad
}

// CloseWrite ends the answer and leaves the client time to read it: net/http calls it before it closes a connection on a request that is
// too big.
func (c *connection) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// begin waits until a request on the connection may be read and answered, unless it has begun.
func (c *connection) begin() {
	if !c.begun {
		c.begun = true
		c.awaitTurn(0)
	}
}

// awaitTurn waits for the turn of the connection's socket among busy ones, for a request or for so many bytes of a frame. When the server
// stops it waits no longer.
func (c *connection) awaitTurn(bytes int) {
	c.server.pacer.answered(&c.server.bucket, bytes)
	turn := c.server.pacer.begin(&c.server.bucket)
	if turn == nil {
		return
	}
	if c.upgraded == nil {
		c.enter(serving) // it is not the client's time that passes
	}
	select {
	case <-turn:
	case <-c.server.draining.Done():
	}
}
