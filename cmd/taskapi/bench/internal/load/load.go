// Package load drives an HTTP/1.1 server on a Unix socket with as little work as a client can do, so that on a
// small machine the server is what is measured. One thread writes requests that were built beforehand and frames
// the replies by their Content-Length, over kept-alive connections with one request under way on each; it looks at
// the status of every reply and allocates nothing while it measures. It never interprets a body, and is no client
// for anything else.
package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// Config says what to send. Socket, Connections, Requests and For are required.
type Config struct {
	Socket      string        // path of the Unix socket
	Connections int           // how many at once
	Requests    [][]byte      // complete requests, head and body; the connections send them in turn
	Warmup      time.Duration // how long to send before measuring
	For         time.Duration // how long to measure
	// how long to rest between a reply and the next request, of all connections; 0 for a load that never rests
	Pause time.Duration

	// Hostile is for a load that the server may refuse: any status is counted, none is an error, and a connection
	// that the server closes is opened again. Otherwise a status other than 200 and a closed connection end the run
	// with an error.
	Hostile bool
}

// Result is what was measured.
type Result struct {
	Elapsed   time.Duration
	Replies   int
	Latencies []time.Duration // of the replies, ascending; at most maxLatencies of them
	Statuses  map[int]int     // replies by status
	Reopened  int             // connections that the server closed, of a hostile load
}

// Rate returns the replies per second.
func (r Result) Rate() float64 { return float64(r.Replies) / r.Elapsed.Seconds() }

// Percentile returns the latency that p percent of the replies did not exceed; 0 without replies.
func (r Result) Percentile(p float64) time.Duration {
	if len(r.Latencies) == 0 {
		return 0
	}
	return r.Latencies[min(int(p/100*float64(len(r.Latencies))), len(r.Latencies)-1)]
}

// maxLatencies bounds the memory of a run; ten seconds at 200,000 replies a second fit.
const maxLatencies = 2 << 20

// waitMillis is how long one wait for events lasts at most, so that an ended context and a silent server are noticed.
const waitMillis = 100

// silence is how long a server may leave every connection without a reply before the run ends with an error.
const silence = 10 * time.Second

// Run sends the requests for the given time, or until ctx ends, which is no error for a hostile load.
func Run(ctx context.Context, c Config) (Result, error) {
	r, err := open(c)
	if err != nil {
		return Result{}, err
	}
	defer r.close()
	if err := r.loop(ctx, c.Warmup, false); err != nil {
		return Result{}, err
	}
	begin := time.Now()
	if err := r.loop(ctx, c.For, true); err != nil {
		return Result{}, err
	}
	elapsed := time.Since(begin)
	slices.Sort(r.latencies)
	statuses := make(map[int]int)
	for status, n := range r.statuses {
		if n > 0 {
			statuses[status] = n
		}
	}
	return Result{Elapsed: elapsed, Replies: r.replies, Latencies: r.latencies, Statuses: statuses,
		Reopened: r.reopened}, nil
}

// A run is the state of one Run.
type run struct {
	Config
	base      time.Time // what the times of requests count from
	epoll     int
	conns     []*conn
	next      int // index of the request to send next
	events    []syscall.EpollEvent
	replies   int
	reopened  int
	latencies []time.Duration
	statuses  [600]int
}

func open(c Config) (*run, error) {
	if c.Connections < 1 || len(c.Requests) == 0 || c.For <= 0 {
		return nil, errors.New("load: Connections, Requests and For must be set")
	}
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make an epoll instance: %w", err)
	}
	r := &run{
		Config:    c,
		base:      time.Now(),
		epoll:     epoll,
		events:    make([]syscall.EpollEvent, c.Connections),
		latencies: make([]time.Duration, 0, maxLatencies),
	}
	for i := range c.Connections {
		conn := &conn{fd: -1, buf: make([]byte, 64<<10)}
		r.conns = append(r.conns, conn)
		if err := r.start(i); err != nil {
			r.close()
			return nil, err
		}
	}
	return r, nil
}

// start opens connection i and sends its first request.
func (r *run) start(i int) error {
	conn := r.conns[i]
	if err := conn.dial(r.Socket); err != nil {
		return err
	}
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(i)}
	if err := syscall.EpollCtl(r.epoll, syscall.EPOLL_CTL_ADD, conn.fd, &event); err != nil {
		return fmt.Errorf("watch a connection: %w", err)
	}
	return r.send(conn)
}

// send sends the next request. That a hostile connection is closed shows at its next event.
func (r *run) send(conn *conn) error {
	request := r.Requests[r.next]
	r.next = (r.next + 1) % len(r.Requests)
	conn.sent = time.Since(r.base)
	if err := conn.write(request); err != nil && !r.Hostile {
		return err
	}
	return nil
}

func (r *run) close() {
	for _, conn := range r.conns {
		conn.close()
	}
	_ = syscall.Close(r.epoll)
}

// loop answers every reply with the next request, for the time given.
func (r *run) loop(ctx context.Context, d time.Duration, record bool) error {
	end := time.Since(r.base) + d
	heard := time.Since(r.base)
	for {
		now := time.Since(r.base)
		switch {
		case now >= end:
			return nil
		case ctx.Err() != nil && r.Hostile:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case now-heard > silence:
			return fmt.Errorf("no reply within %v on %s", silence, r.Socket)
		}
		wait := min(waitMillis, int((end-now)/time.Millisecond)+1)
		n, err := syscall.EpollWait(r.epoll, r.events, wait)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for replies: %w", err)
		}
		for _, event := range r.events[:n] {
			if err := r.handle(int(event.Fd), record); err != nil {
				return err
			}
			heard = time.Since(r.base)
		}
	}
}

// handle reads what has come on connection i and, when it completes a reply, sends the next request.
func (r *run) handle(i int, record bool) error {
	conn := r.conns[i]
	status, done, err := conn.read()
	if err != nil {
		return r.broken(i, err)
	}
	if !done {
		return nil
	}
	if status != 200 && !r.Hostile {
		return fmt.Errorf("status %d on %s, want 200", status, r.Socket)
	}
	if record {
		r.replies++
		r.statuses[status]++
		if len(r.latencies) < cap(r.latencies) {
			r.latencies = append(r.latencies, time.Since(r.base)-conn.sent)
		}
	}
	if r.Pause > 0 {
		time.Sleep(r.Pause)
	}
	return r.send(conn)
}

// broken opens a hostile connection again, once: a server that is gone ends the run.
func (r *run) broken(i int, err error) error {
	if !r.Hostile {
		return err
	}
	r.reopened++
	r.conns[i].close()
	return r.start(i)
}
