package transport

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"taskapi/auth"
)

// phase is the phase of a connection. Each phase has a time limit.
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
	arriving: RequestTimeout,
	reading:  RequestTimeout,
	serving:  0,
	writing:  WriteTimeout,
	idling:   idleTimeout,
	paging:   pagingTimeout,
}

// sweepEvery is how often the watchdog looks at connections. A connection is cut off so late at most.
const sweepEvery = time.Second

// Conn is a client's connection. It knows how long it has been in its phase.
type Conn struct {
	net.Conn
	Peer auth.Peer // the process at the other end

	number   uint64      // in the order of all connections of the socket
	known    atomic.Bool // see Known
	replaced bool        // closed, as another connection wanted its place; guarded by watchdog.mu

	// Patient lets each write on the upgraded connection last for pagingTimeout.
	Patient bool

	watchdog *watchdog
	socket   *Socket
	// begun: the next request, or the one that is being read, has had its turn. Used by the goroutine that serves the
	// connection.
	begun    bool
	framing  framing
	requests int64        // that have come to the handler
	body     *requestBody // of the present request; nil for none

	ctx        context.Context // of its requests
	inLane     atomic.Int32    // outside, inside or leaving
	writer     *laneWriter     // nil before its first use
	head       []byte          // of the present request, in net/http's buffer; nil unless it came alone and whole
	remember   bool            // see Remember
	handedBack bool            // see HandBack
	posted     bool            // net/http's latest request was a POST, after which it passes over an empty line

	// recheck decides for each frame of an upgraded connection whether it may pass. It is the present request's, and
	// counts once upgraded is set, which happens while nothing reads or writes: see Upgrading.
	recheck  func() error
	upgraded bool

	// state has the phase in the upper bits and the watchdog's tick at its begin in the lower: one store for each step
	// of a request.
	state atomic.Int64
}

const tickBits = 48

type connKey struct{}

// ConnOf returns the connection of a request, or nil if it was closed because its peer is not known.
func ConnOf(ctx context.Context) *Conn {
	c, _ := ctx.Value(connKey{}).(*Conn)
	return c
}

func (c *Conn) enter(p phase) { c.state.Store(int64(p)<<tickBits | c.watchdog.tick.Load()) }

func (c *Conn) phase() phase { return phase(c.state.Load() >> tickBits) }

// expects reports whether a request's head has to come, or the rest of it. A request may follow on an idle connection.
func (c *Conn) expects() bool { p := c.phase(); return p == arriving || p == reading }

// Writing begins the time that the client has to take an answer, or a frame of a stream. Serving ends it: between the
// frames of a stream no time runs.
func (c *Conn) Writing() { c.enter(writing) }

// Serving ends what Writing begins.
func (c *Conn) Serving() { c.enter(serving) }

// Read reads the bytes from the client that the lane has not answered. The first bytes on a connection, or after an
// idle time, begin a request's head. A read of a single byte is net/http's watch for the client's end, from another
// goroutine, which may begin before the handler does.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.upgraded {
		return c.readUpgraded(n, err)
	}
	p := c.phase()
	if n == 0 || len(b) == 1 || p != idling && p != arriving {
		c.framing.feed(b[:n])
		return n, err
	}
	for p == idling && n > 0 && c.repeated(b[:n]) {
		err = c.answer()
		if errors.Is(err, errHandedBack) {
			err = nil
			break
		}
		if err != nil {
			return 0, err
		}
		n, err = c.Conn.Read(b)
	}
	heads, between := c.framing.heads, c.framing.between()
	c.framing.feed(b[:n])
	c.head = nil
	if between && c.framing.between() && c.framing.heads == heads+1 {
		c.head = b[:n]
	}
	if n > 0 {
		c.begin()
		c.enter(reading)
	}
	return n, err
}

// Close closes the connection. net/http closes a connection in the lane when the server stops, since net/http takes it
// for an idle one: then the answer is sent first.
func (c *Conn) Close() error {
	if c.inLane.CompareAndSwap(inside, leaving) {
		return nil
	}
	return c.Conn.Close()
}

// Known says whether the client has authenticated with its present request. If so, the connection keeps its place while
// others want it, until it is idle.
func (c *Conn) Known(known bool) {
	if c.known.Load() != known {
		c.known.Store(known)
	}
}

// givesWay reports whether the connection may be closed when others want its place. since is when it became idle.
func (c *Conn) givesWay() (known bool, since int64, ok bool) {
	state := c.state.Load()
	known = c.known.Load()
	idle := phase(state>>tickBits) == idling && c.inLane.Load() == outside
	return known, state & (1<<tickBits - 1), !c.replaced && (idle || !known)
}

// Ambiguous reports whether the request that the handler gets now gives the length of its body twice. It is called once
// for each request.
func (c *Conn) Ambiguous() bool {
	c.requests++
	bad := c.framing.bad.Load()
	return bad != 0 && c.requests >= bad
}

// CloseWrite ends the answer and leaves the client time to read it: net/http calls it before it closes a connection on
// a request that is too big.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Widen lets the kernel take streamBytes more before the client reads them. With its usual 208 KiB both ends of a fast
// stream wait for each other three times as often. Where the kernel allows less, it takes less.
func (c *Conn) Widen() {
	if wide, ok := c.Conn.(interface{ SetWriteBuffer(bytes int) error }); ok {
		_ = wide.SetWriteBuffer(streamBytes) // fails only when the connection is closed
	}
}

const streamBytes = 1 << 20

// cut closes the connection at once: a read or a write that is under way fails.
func (c *Conn) cut() { _ = c.Conn.Close() }

// begin waits until a request on the connection may be read and answered, unless it has begun.
func (c *Conn) begin() {
	if !c.begun {
		c.begun = true
		c.AwaitTurn(0)
	}
}

// AwaitTurn waits for the turn of the connection's socket among busy ones, for a request or for that many bytes of a
// frame. When the server stops, it waits no longer.
func (c *Conn) AwaitTurn(bytes int) {
	c.socket.Sent(bytes)
	turn := c.socket.server.pacer.begin(&c.socket.bucket)
	if turn == nil {
		return
	}
	if !c.upgraded {
		c.enter(serving) // it is not the client's time that passes
	}
	select {
	case <-turn:
	case <-c.socket.Draining.Done():
	}
}
