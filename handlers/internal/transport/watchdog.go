package transport

import (
	"context"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"taskapi/internal/wake"
)

// watchdog cuts off connections that have been in a phase for too long. net/http's own timeouts do the same with a
// timer that is armed and disarmed four times a request, which costs a tenth of the throughput of short ones (make
// bench). This is one store for each step, and one sweep a second. It sleeps while there is no connection: idle sockets
// cost nothing.
type watchdog struct {
	tick atomic.Int64 // counts sweeps
	wake wake.Signal  // there is one again

	connections sync.WaitGroup // that are open
	quiet       func()         // called when there is no connection any more

	mu      sync.Mutex // guards the fields below
	open    map[*Conn]struct{}
	lasting map[*lasting]struct{}
	seen    uint64 // connections so far
}

// lasting is a request that waits or goes on.
type lasting struct {
	end context.CancelCauseFunc

	mu      sync.Mutex   // held during a call of recheck, so that no call outlasts the request
	recheck func() error // nil after its first error, and when the request is over
}

func newWatchdog(quiet func()) *watchdog {
	return &watchdog{wake: wake.New(), open: map[*Conn]struct{}{}, lasting: map[*lasting]struct{}{}, quiet: quiet}
}

type watched struct {
	net.Listener
	watchdog *watchdog
	socket   *Socket
}

// Accept returns the next connection, a *Conn.
func (w watched) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &Conn{Conn: conn, watchdog: w.watchdog, socket: w.socket}
	c.enter(arriving)
	return c, nil
}

// state is the server's ConnState: it watches new connections and forgets closed ones. One that a handler takes stays
// until Conn.endUpgrade.
func (d *watchdog) state(conn net.Conn, state http.ConnState) {
	c := conn.(*Conn)
	switch state {
	case http.StateNew:
		d.watch(c)
	case http.StateIdle:
		c.enter(idling)
	case http.StateHijacked:
		c.upgraded = c.recheck != nil
	case http.StateClosed:
		d.forget(c)
	}
}

func (d *watchdog) forget(c *Conn) {
	d.mu.Lock()
	delete(d.open, c)
	d.mu.Unlock()
	d.connections.Done()
}

func (d *watchdog) watch(c *Conn) {
	d.connections.Add(1)
	d.mu.Lock()
	d.open[c] = struct{}{}
	d.seen++
	c.number = d.seen
	d.mu.Unlock()
	d.wake.Send()
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

// sweep cuts off late connections, and looks at lasting requests, until ctx ends or the last connection is gone.
func (d *watchdog) sweep(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		late, open := d.late(d.tick.Add(1))
		for _, c := range late {
			c.cut()
		}
		d.recheck()
		if !open {
			d.quiet()
			return
		}
	}
}

// Lasting calls recheck once a second until over is called, and ends the request with the first error of recheck. It
// calls recheck for one request of the socket after the other, so recheck must not wait.
func (c *Conn) Lasting(recheck func() error, end context.CancelCauseFunc) (over func()) {
	d, l := c.watchdog, &lasting{end: end, recheck: recheck}
	d.mu.Lock()
	d.lasting[l] = struct{}{}
	d.mu.Unlock()
	return func() {
		d.mu.Lock()
		delete(d.lasting, l)
		d.mu.Unlock()
		l.mu.Lock()
		l.recheck = nil
		l.mu.Unlock()
	}
}

// recheck ends the lasting requests that are not allowed any more.
func (d *watchdog) recheck() {
	d.mu.Lock()
	all := slices.Collect(maps.Keys(d.lasting))
	d.mu.Unlock()
	for _, l := range all {
		l.look()
	}
}

func (l *lasting) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.recheck == nil {
		return
	}
	if err := l.recheck(); err != nil {
		l.recheck = nil
		l.end(err)
	}
}

// awaitRequests gives connections SilentGrace for a request's head, and closes those on which it has not come whole.
// net/http, once it shuts down, waits for heads for five seconds and answers none of them.
func (d *watchdog) awaitRequests() {
	for end := time.Now().Add(SilentGrace); d.expects() && time.Now().Before(end); {
		time.Sleep(SilentGrace / 50)
	}
	d.cut((*Conn).expects)
}

// expects reports whether a request's head has not come whole on a connection.
func (d *watchdog) expects() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.open {
		if c.expects() {
			return true
		}
	}
	return false
}

func (d *watchdog) cut(which func(*Conn) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.open {
		if which(c) {
			c.cut()
		}
	}
}

// makeRoom closes the oldest connection whose client is unknown or, if there is none, the one that has been idle for
// the longest time. It reports whether there was one.
func (d *watchdog) makeRoom() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	var stalest *Conn
	var least [3]int64
	for c := range d.open {
		known, since, ok := c.givesWay()
		if !ok {
			continue
		}
		rank := [3]int64{0, 0, int64(c.number)}
		if known {
			rank[0], rank[1] = 1, since
		}
		if stalest == nil || slices.Compare(rank[:], least[:]) < 0 {
			stalest, least = c, rank
		}
	}
	if stalest == nil {
		return false
	}
	stalest.replaced = true
	stalest.cut()
	return true
}

// late returns the connections whose phase has lasted longer than it may at the tick, and reports whether there are any
// connections.
func (d *watchdog) late(now int64) (late []*Conn, open bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.open {
		state := c.state.Load()
		since := state & (1<<tickBits - 1)
		limit := limits[state>>tickBits]
		if limit > 0 && time.Duration(now-since)*sweepEvery > limit {
			late = append(late, c)
		}
	}
	return late, len(d.open) > 0
}
