package socket

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"taskapi/internal/wake"
)

const (
	// requestTime is how long a refused client may take to begin its request. Go's net/http drops a connection on which
	// the answer comes before the request, without showing the answer.
	requestTime = 100 * time.Millisecond
	// lingerTime is how long a refused client may take to read its answer. After an immediate close a client that still
	// sends its request gets a broken pipe instead of the answer.
	lingerTime = 250 * time.Millisecond
	// maxLinger bounds the refused connections that are held, at some 10 kB each. Others are answered and closed at once.
	maxLinger = 128
	// maxDiscard bounds what is read from a refused client.
	maxDiscard = 64 << 10
	// backlogTime bounds how long Close waits until the connections that clients have made are accepted.
	backlogTime = 100 * time.Millisecond
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
	room    func() bool // see MakeRoom
	log     *slog.Logger
	inner   *net.UnixListener
	dir     directory
	id      fileID

	readPeer func(*net.UnixConn) (Peer, error) // a field so that a test can make it fail

	accepted, refused, unidentified atomic.Uint64
	warnings                        rate.Sometimes // samples the warnings

	handedOver atomic.Bool // the socket is a Handover's

	done      chan struct{} // closed by Close
	lingering chan struct{} // one element for each refused connection held
	refusals  sync.WaitGroup

	closing  sync.Once
	closeErr error // written in closing
}

func newListener(cfg Config, inner *net.UnixListener, dir directory, id fileID) *Listener {
	return &Listener{
		path:      cfg.Path,
		refusal:   cfg.Refusal,
		limit:     int64(cfg.MaxConns),
		share:     cfg.Share,
		log:       cfg.Logger.With("socket", cfg.Path),
		inner:     inner,
		dir:       dir,
		id:        id,
		readPeer:  readPeer,
		warnings:  rate.Sometimes{Interval: warnEvery},
		done:      make(chan struct{}),
		lingering: make(chan struct{}, maxLinger),
	}
}

// Accept returns the next connection, a *Conn. It retries after every failure, answers and closes connections over a
// limit, closes those whose peer is unknown, and returns net.ErrClosed after the listener was closed.
func (l *Listener) Accept() (net.Conn, error) {
	for retry := (wake.Backoff{First: 5 * time.Millisecond, Last: time.Second}); ; { // as in net/http's Serve
		raw, err := l.inner.AcceptUnix()
		switch {
		case err == nil:
			retry.Reset()
			if c := l.admit(raw); c != nil {
				return c, nil
			}
		case errors.Is(err, net.ErrClosed):
			return nil, &net.OpError{Op: "accept", Net: "unix", Addr: l.Addr(), Err: net.ErrClosed}
		default:
			// Out of descriptors or memory, as a rule, which passes.
			l.warn("accept failed", "error", err)
			select {
			case <-time.After(retry.Pause()):
			case <-l.done:
			}
		}
	}
}

// admit returns a connection as a Conn, or closes it and returns nil.
func (l *Listener) admit(raw *net.UnixConn) *Conn {
	if !l.acquire() && (l.room == nil || !l.room() || !l.acquire()) {
		l.refuse(raw)
		return nil
	}
	peer, err := l.readPeer(raw)
	if err != nil {
		l.release()
		_ = raw.Close()
		l.unidentified.Add(1)
		l.warn("connection closed, its peer is not known", "error", err)
		return nil
	}
	l.accepted.Add(1)
	return &Conn{UnixConn: raw, peer: peer, listener: l}
}

// MakeRoom lets a new connection take the place of another when all are taken: room then closes one, or reports false.
// MakeRoom is called before Accept.
func (l *Listener) MakeRoom(room func() bool) { l.room = room }

// acquire takes a place for a connection, from this socket and from its share.
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

// answer waits until the request begins, writes the refusal, and waits until the client has gone.
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
	l.warnings.Do(func() { l.log.Warn(msg, args...) })
}

// Addr returns the path given to Listen.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close removes the socket file if it still belongs to this listener, and stops listening as soon as Accept has taken
// the connections that were made before. It waits for that, and for the answers to refused clients, half a second at
// most. Accepted connections stay open. Further calls return what the first did.
func (l *Listener) Close() error {
	l.closing.Do(func() { l.closeErr = l.close() })
	return l.closeErr
}

func (l *Listener) close() (err error) {
	close(l.done)
	if l.handedOver.Load() {
		err = l.inner.Close()
	} else {
		// The file goes before the listener, so that no other process finds a file without a listener and takes it for stale.
		err = l.dir.removeIf(filepath.Base(l.path), l.id)
		for end := time.Now().Add(backlogTime); l.pending() && time.Now().Before(end); {
			time.Sleep(backlogTime / 100)
		}
		err = errors.Join(err, l.inner.Close(), l.dir.Close())
	}
	l.refusals.Wait()
	return err
}

// pending reports whether a client's connection waits to be accepted.
func (l *Listener) pending() bool {
	raw, err := l.inner.SyscallConn()
	if err != nil {
		return false
	}
	waiting := 0
	err = raw.Control(func(fd uintptr) {
		waiting, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	})
	return err == nil && waiting > 0
}

// Stats counts connections since Listen, and those open now.
type Stats struct {
	Accepted     uint64 // returned by Accept
	Refused      uint64 // answered and closed, since a limit was reached
	Unidentified uint64 // closed, since the credentials of the peer could not be read
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
