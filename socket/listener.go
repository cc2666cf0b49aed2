package socket

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// minBackoff and maxBackoff bound the pause after a failed accept, as in net/http's Serve.
	minBackoff = 5 * time.Millisecond
	maxBackoff = time.Second
	// requestTime is how long a refused client may take to begin its request. Go's net/http drops a connection on which
	// the answer comes before the request, and its caller never sees that answer.
	requestTime = 100 * time.Millisecond
	// lingerTime is how long a refused client may take to read its answer. Closing at once would break the pipe of
	// one that is still sending its request, and it would not see the answer either.
	lingerTime = 250 * time.Millisecond
	// maxLinger bounds the refused connections held at once, at some 10 kB each; more are answered and closed at once.
	maxLinger = 128
	// maxDiscard is as much as is read from a refused client.
	maxDiscard = 64 << 10
	// warnEvery keeps a flood from filling the log.
	warnEvery = time.Second
)

// Listener accepts connections on a socket made by Listen. Its methods may be called at any time from any goroutine.
type Listener struct {
	path    string
	refusal []byte
	limit   int64        // of places
	places  atomic.Int64 // taken by connections
	share   *Share
	log     *slog.Logger
	inner   *net.UnixListener
	dir     *directory
	id      fileID

	// accept and readPeer are fields so that a test can make them fail.
	accept   func() (*net.UnixConn, error)
	readPeer func(*net.UnixConn) (Peer, error)

	accepted, refused, unidentified atomic.Uint64
	nextWarning                     atomic.Int64 // Unix nanoseconds

	done      chan struct{} // closed by Close
	lingering chan struct{} // one element for each refused connection held
	refusals  sync.WaitGroup
	open      sync.WaitGroup // counts conns; Add only under mu while closed is false

	closing  sync.Once
	closeErr error // written in closing

	mu     sync.Mutex // guards what is below
	closed bool
	conns  map[*Conn]struct{}
}

func newListener(cfg Config, inner *net.UnixListener, dir *directory, id fileID) *Listener {
	return &Listener{
		path:      cfg.Path,
		refusal:   cfg.Refusal,
		limit:     int64(cfg.MaxConns),
		share:     cfg.Share,
		log:       cfg.Logger.With("socket", cfg.Path),
		inner:     inner,
		dir:       dir,
		id:        id,
		accept:    inner.AcceptUnix,
		readPeer:  readPeer,
		done:      make(chan struct{}),
		lingering: make(chan struct{}, maxLinger),
		conns:     make(map[*Conn]struct{}),
	}
}

// Accept returns the next connection, a *Conn. It goes on over every failure to accept, answers and closes connections
// over a limit, closes those whose peer can't be told, and returns net.ErrClosed once the listener is closed.
func (l *Listener) Accept() (net.Conn, error) {
	for pause := minBackoff; ; {
		raw, err := l.accept()
		switch {
		case err == nil:
			pause = minBackoff
			if c := l.admit(raw); c != nil {
				return c, nil
			}
		case l.isClosed():
			return nil, &net.OpError{Op: "accept", Net: "unix", Addr: l.Addr(), Err: net.ErrClosed}
		default:
			// Out of descriptors or memory, as a rule: it passes.
			l.warn("accept failed", "error", err, "pause", pause)
			l.sleep(pause)
			pause = min(2*pause, maxBackoff)
		}
	}
}

// admit returns a connection as a Conn, or closes it and returns nil.
func (l *Listener) admit(raw *net.UnixConn) *Conn {
	if !l.acquire() {
		l.refuse(raw)
		return nil
	}
	peer, err := l.readPeer(raw)
	if err != nil {
		l.release()
		_ = raw.Close()
		l.unidentified.Add(1)
		l.warn("connection closed, its peer can't be told", "error", err)
		return nil
	}
	c := &Conn{UnixConn: raw, peer: peer, listener: l}
	if !l.remember(c) {
		l.release()
		_ = raw.Close()
		return nil
	}
	l.accepted.Add(1)
	return c
}

// acquire takes a place for a connection, of this socket and of its share.
func (l *Listener) acquire() bool {
	if l.places.Add(1) <= l.limit && l.share.acquire() {
		return true
	}
	l.places.Add(-1)
	return false
}

func (l *Listener) release() {
	l.share.release()
	l.places.Add(-1)
}

func (l *Listener) remember(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.conns[c] = struct{}{}
	l.open.Add(1)
	return true
}

func (l *Listener) forget(c *Conn) {
	l.mu.Lock()
	delete(l.conns, c)
	l.mu.Unlock()
	l.release()
	l.open.Done()
}

// refuse answers a connection over the limit and closes it, without holding up Accept.
func (l *Listener) refuse(raw *net.UnixConn) {
	l.refused.Add(1)
	l.warn("connection refused, too many are open", "open", l.places.Load(), "limit", l.limit)
	select {
	case l.lingering <- struct{}{}:
		l.refusals.Go(func() {
			defer func() { <-l.lingering }()
			defer raw.Close()
			l.answer(raw)
		})
	default:
		_ = raw.SetWriteDeadline(time.Now().Add(lingerTime))
		_, _ = raw.Write(l.refusal)
		_ = raw.Close()
	}
}

// answer waits for a request to begin, and after the refusal for the client to go.
func (l *Listener) answer(raw *net.UnixConn) {
	if len(l.refusal) == 0 {
		return
	}
	_ = raw.SetReadDeadline(time.Now().Add(requestTime))
	_, _ = raw.Read(make([]byte, 1)) // a client that sends nothing is answered too
	_ = raw.SetDeadline(time.Now().Add(lingerTime))
	if _, err := raw.Write(l.refusal); err != nil {
		return
	}
	_ = raw.CloseWrite()
	_, _ = io.CopyN(io.Discard, raw, maxDiscard)
}

// warn logs at most once in warnEvery.
func (l *Listener) warn(msg string, args ...any) {
	now := time.Now()
	if next := l.nextWarning.Load(); now.UnixNano() >= next &&
		l.nextWarning.CompareAndSwap(next, now.Add(warnEvery).UnixNano()) {
		l.log.Warn(msg, args...)
	}
}

func (l *Listener) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.done:
	}
}

func (l *Listener) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// Addr returns the path given to Listen.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close stops listening, removes the socket file if it still is this listener's, and waits for refused clients to be
// gone, half a second at most. Connections that were accepted stay open. Further calls return what the first did.
func (l *Listener) Close() error {
	l.closing.Do(func() { l.closeErr = l.close() })
	return l.closeErr
}

func (l *Listener) close() (err error) {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	close(l.done)
	// The file goes before the listener: as long as it is there it answers, so that no other process takes it for dead.
	err = l.dir.removeIf(filepath.Base(l.path), l.id)
	err = errors.Join(err, l.inner.Close(), l.dir.Close())
	l.refusals.Wait()
	return err
}

// Drain closes the listener and waits until every accepted connection is closed. Those that are open when ctx ends
// are closed by force, and the cause of ctx is returned.
func (l *Listener) Drain(ctx context.Context) error {
	err := l.Close()
	forced := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { forced <- l.closeConns(context.Cause(ctx)) })
	l.open.Wait()
	if !stop() {
		err = errors.Join(err, <-forced)
	}
	return err
}

// closeConns returns the cause if there was a connection to close.
func (l *Listener) closeConns(cause error) error {
	l.mu.Lock()
	conns := make([]*Conn, 0, len(l.conns))
	for c := range l.conns {
		conns = append(conns, c)
	}
	l.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
	if len(conns) == 0 {
		return nil
	}
	return cause
}

// Stats counts connections since Listen, and those open now.
type Stats struct {
	Accepted     uint64 // returned by Accept
	Refused      uint64 // answered and closed, as a limit was reached
	Unidentified uint64 // closed, as the credentials of the peer could not be read
	Open         int    // accepted and not closed yet
}

// Stats returns the counters as they are now.
func (l *Listener) Stats() Stats {
	return Stats{
		Accepted:     l.accepted.Load(),
		Refused:      l.refused.Load(),
		Unidentified: l.unidentified.Load(),
		Open:         int(l.places.Load()),
	}
}
