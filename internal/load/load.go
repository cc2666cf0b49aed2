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
	"io"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Config says what to send. Socket, Connections, Requests and For are required.
type Config struct {
	Socket      string        // path of the Unix socket
	Connections int           // how many at once
	Requests    [][]byte      // complete requests, head and body; the connections send them in turn
	Warmup      time.Duration // how long to send before measuring
	For         time.Duration // how long to measure
	Pause       time.Duration // how long to rest between a reply and the next request, of all connections
	Server      int           // the process whose CPU time is measured; 0 for none

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
	CPU       time.Duration   // of the server for each reply, from the first request on
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

// waitMillis is how long one wait for events lasts at most, so that an ended context is noticed.
const waitMillis = 100

// Run sends the requests for the given time, or until ctx ends, which is no error for a hostile load.
func Run(ctx context.Context, c Config) (Result, error) {
	if c.Connections < 1 || len(c.Requests) == 0 || c.For <= 0 {
		return Result{}, errors.New("load: Connections, Requests and For must be set")
	}
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return Result{}, fmt.Errorf("make an epoll instance: %w", err)
	}
	defer syscall.Close(epoll)
	r := &run{
		Config: c, epoll: epoll, base: time.Now(),
		conns: make([]conn, c.Connections), latencies: make([]time.Duration, 0, maxLatencies),
	}
	defer r.close()
	used := CPUTime(c.Server)
	for i := range r.conns {
		if err := r.open(i); err != nil {
			return Result{}, err
		}
	}
	if err := r.loop(ctx); err != nil {
		return Result{}, err
	}
	result := Result{Elapsed: r.now() - c.Warmup, Latencies: r.latencies, Statuses: map[int]int{}, Reopened: r.reopened}
	result.CPU = (CPUTime(c.Server) - used) / time.Duration(max(1, r.replies))
	slices.Sort(r.latencies)
	for status, n := range r.statuses {
		if n > 0 {
			result.Statuses[status] = n
			result.Replies += n
		}
	}
	return result, nil
}

// CPUTime returns the CPU time that a process has used; 0 for one that is not there. It asks the process's clock
// (clock_getcpuclockid(3)), which counts nanoseconds: /proc/PID/stat counts hundredths of a second.
func CPUTime(pid int) time.Duration {
	const scheduler = 2
	var used unix.Timespec
	if pid == 0 || unix.ClockGettime(int32(^pid<<3|scheduler), &used) != nil {
		return 0
	}
	return time.Duration(used.Nano())
}

// A run is the state of one Run.
type run struct {
	Config
	base      time.Time // what the times of requests count from
	epoll     int
	conns     []conn
	next      int // index of the request to send next
	reopened  int
	replies   int // from the first request on
	latencies []time.Duration
	statuses  [600]int
}

// A conn is one connection with at most one request under way. It is read only once something has come.
type conn struct {
	fd   int // 0 when closed
	buf  [64 << 10]byte
	n    int           // bytes of buf that are filled
	sent time.Duration // when the request under way was sent
}

func (r *run) now() time.Duration { return time.Since(r.base) }

// open opens connection i and sends its first request.
func (r *run) open(i int) error {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a socket: %w", err)
	}
	r.conns[i].fd, r.conns[i].n = fd, 0
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: r.Socket}); err != nil {
		return fmt.Errorf("connect to %s: %w", r.Socket, err)
	}
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(i)}
	if err := syscall.EpollCtl(r.epoll, syscall.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("watch a connection: %w", err)
	}
	return r.send(&r.conns[i])
}

func (r *run) close() {
	for i := range r.conns {
		if r.conns[i].fd > 0 {
			_ = syscall.Close(r.conns[i].fd)
		}
	}
}

// send sends the next request. That a hostile connection is closed shows at its next event.
func (r *run) send(c *conn) error {
	request := r.Requests[r.next]
	r.next = (r.next + 1) % len(r.Requests)
	c.sent = r.now()
	if _, err := syscall.Write(c.fd, request); err != nil && !r.Hostile {
		return fmt.Errorf("send a request: %w", err)
	}
	return nil
}

// loop answers every reply with the next request, to the end of the run.
func (r *run) loop(ctx context.Context) error {
	events := make([]syscall.EpollEvent, r.Connections)
	end := r.Warmup + r.For
	for now := r.now(); now < end; now = r.now() {
		if ctx.Err() != nil && r.Hostile {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n, err := syscall.EpollWait(r.epoll, events, min(waitMillis, int((end-now)/time.Millisecond)+1))
		if err != nil && err != syscall.EINTR {
			return fmt.Errorf("wait for replies: %w", err)
		}
		for _, event := range events[:max(n, 0)] {
			if err := r.handle(int(event.Fd)); err != nil {
				return err
			}
		}
	}
	return nil
}

// handle reads what has come on connection i and, when it completes a reply, sends the next request. It opens a hostile
// connection again, once: a server that is gone ends the run.
func (r *run) handle(i int) error {
	c := &r.conns[i]
	status, err := c.read()
	switch {
	case err != nil && r.Hostile:
		r.reopened++
		_ = syscall.Close(c.fd)
		c.fd = 0
		return r.open(i)
	case err != nil:
		return err
	case status == 0:
		return nil
	case status != 200 && !r.Hostile:
		return fmt.Errorf("status %d on %s, want 200", status, r.Socket)
	}
	r.replies++
	if now := r.now(); now > r.Warmup {
		r.statuses[status]++
		if len(r.latencies) < cap(r.latencies) {
			r.latencies = append(r.latencies, now-c.sent)
		}
	}
	time.Sleep(r.Pause)
	return r.send(c)
}

// read takes what has arrived, and returns the status once the reply is complete, 0 before.
func (c *conn) read() (status int, err error) {
	n, err := syscall.Read(c.fd, c.buf[c.n:])
	if n == 0 && err == nil {
		err = fmt.Errorf("the server closed the connection: %w", io.ErrUnexpectedEOF)
	}
	if err != nil {
		return 0, fmt.Errorf("read a reply: %w", err)
	}
	c.n += n
	status, size, err := frame(c.buf[:c.n])
	switch {
	case err != nil:
		return 0, err
	case size > len(c.buf), size == 0 && c.n == len(c.buf):
		return 0, fmt.Errorf("a reply of more than %d bytes", len(c.buf))
	case size == 0, c.n < size:
		return 0, nil
	case c.n > size:
		return 0, errors.New("more bytes than the reply's Content-Length")
	}
	c.n = 0
	return status, nil
}
