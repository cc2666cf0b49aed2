package handlers

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"taskapi/auth"
)

// phase is what a connection waits for, and so how long it may.
type phase int64

const (
	arriving phase = iota // for the first byte on a new connection
	reading               // for the rest of a request's head
	serving               // for our handler, which has bounds of its own
	writing               // for the client to take the answer
	idling                // for the next request
)

// limits are how long each phase may last; zero is for ever.
var limits = [...]time.Duration{
	arriving: requestTimeout,
	reading:  requestTimeout,
	serving:  0,
	writing:  writeTimeout,
	idling:   idleTimeout,
}

// sweepEvery is how often connections are looked at: one that is late is cut off at most so much later.
const sweepEvery = time.Second

// connection is a client's connection with who is at its other end and how long it has been in its phase. It is the key of
// itself in its context.
type connection struct {
	net.Conn
	peer     auth.Peer
	watchdog *watchdog
	server   *socketServer
	begun    bool // the request that comes next, or is being read, may be answered; used by who serves the connection
	framing  framing
	requests int64 // that have come to the handler
	// state is the phase in the upper bits and the watchdog's tick at its begin in the lower: one store for each step of a request.
	state atomic.Int64
}

const tickBits = 48

// connectionKey is the key of a connection in its context.
type connectionKey struct{}

// connectionOf is the connection of a request, nil for one that is closed already: its peer could not be told.
func connectionOf(ctx context.Context) *connection {
	c, _ := ctx.Value(connectionKey{}).(*connection)
	return c
}

// enter begins a phase.
func (c *connection) enter(p phase) { c.state.Store(int64(p)<<tickBits | c.watchdog.tick.Load()) }

// phase is what the connection waits for now.
func (c *connection) phase() phase { return phase(c.state.Load() >> tickBits) }

// Read reads from the client. The first bytes on a connection, or after an idle time, begin a request's head. A read of a single byte is
// net/http's watch for the client's going away, from another goroutine, which may begin before the handler does.
func (c *connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.framing.feed(b[:n])
	if p := c.phase(); n > 0 && len(b) > 1 && (p == idling || p == arriving) {
		c.begin()
		c.enter(reading)
	}
	return n, err
}

// ambiguous reports whether the request that comes to the handler now says the length of its body twice.
func (c *connection) ambiguous() bool {
	c.requests++
	bad := c.framing.bad.Load()
	return bad != 0 && c.requests >= bad
}

// CloseWrite ends what the client reads and leaves it time to read it: net/http does so before it closes a connection on a request
// that is too big.
func (c *connection) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// watchdog cuts off connections that have been in a phase for too long. net/http's own timeouts do the same with a timer that is
// armed and disarmed four times a request, which takes a tenth of the throughput of short ones (make bench); this is a store for
// each step, and one look a second. It sleeps while there is no connection: a hundred idle sockets cost nothing.
type watchdog struct {
	tick atomic.Int64  // of sweepEvery, while there were connections
	wake chan struct{} // there is one again; capacity 1

	mu   sync.Mutex // guards the field below
	open map[*connection]struct{}
}

func newWatchdog() *watchdog {
	return &watchdog{wake: make(chan struct{}, 1), open: map[*connection]struct{}{}}
}

// listen wraps a listener so that its connections are watched.
func (d *watchdog) listen(l net.Listener, s *socketServer) net.Listener { return watched{l, d, s} }

// watched is a listener whose connections are watched.
type watched struct {
	net.Listener
	watchdog *watchdog
	server   *socketServer
}

// Accept gives the next connection, a *connection.
func (w watched) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn, watchdog: w.watchdog, server: w.server}
	c.enter(arriving)
	return c, nil
}

// state is the server's ConnState: it counts connections in and out, and sees them become idle.
func (d *watchdog) state(count *sync.WaitGroup) func(net.Conn, http.ConnState) {
	return func(conn net.Conn, state http.ConnState) {
		c := conn.(*connection)
		switch state {
		case http.StateNew:
			count.Add(1)
			d.watch(c)
		case http.StateIdle:
			c.enter(idling)
		case http.StateClosed, http.StateHijacked:
			d.mu.Lock()
			delete(d.open, c)
			d.mu.Unlock()
			count.Done()
		}
	}
}

// watch begins to look at a connection.
func (d *watchdog) watch(c *connection) {
	d.mu.Lock()
	d.open[c] = struct{}{}
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default: // it is awake, or about to be
	}
}

// run sweeps until ctx ends, while there are connections.
func (d *watchdog) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
			d.sweep(ctx)
		}
	}
}

// sweep cuts off those who are late until ctx ends or the last connection is gone.
func (d *watchdog) sweep(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for d.any() {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := d.tick.Add(1)
		for _, c := range d.late(now) {
			_ = c.Close() // whoever reads or writes it gets an error
		}
	}
}

// closeSilent closes the connections on which nothing has been sent. net/http would wait for their requests when it shuts down.
func (d *watchdog) closeSilent() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.open {
		if c.phase() == arriving {
			_ = c.Close() // whoever reads or writes it gets an error
		}
	}
}

func (d *watchdog) any() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.open) > 0
}

// late are the connections whose phase has lasted longer than it may at the tick.
func (d *watchdog) late(now int64) []*connection {
	d.mu.Lock()
	defer d.mu.Unlock()
	var late []*connection
	for c := range d.open {
		state := c.state.Load()
		since := state & (1<<tickBits - 1)
		limit := limits[state>>tickBits]
		if limit > 0 && time.Duration(now-since)*sweepEvery > limit {
			late = append(late, c)
		}
	}
	return late
}
