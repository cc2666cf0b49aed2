// Package httpserve serves HTTP beside the sockets of allocations: metrics, public keys and the proxy. It listens on a
// TCP address or a Unix socket, bounds the number of connections and the time of each, and ends with its context. It
// authenticates nobody: everybody who can connect sees what the handler shows.
package httpserve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"taskapi/internal/proc"
	"taskapi/socket"
)

// The bounds of every server. Each server has its own time limit for a request with its answer.
const (
	maxHead  = 8 << 10
	headTime = 5 * time.Second
	idleTime = 90 * time.Second // more than the usual time between two scrapes
	endTime  = 3 * time.Second  // for the answers that are under way at the end
	// silentTime is for the first request on a connection at the end. net/http would wait for the request until endTime.
	silentTime = 200 * time.Millisecond
)

// socketMode lets everybody connect who can enter the socket's directory, since everybody can connect to a TCP address.
const socketMode = 0o666

// Address is where to serve: a Unix socket's path, or else a TCP address.
type Address struct {
	Socket  string
	Private bool // only this user and root can connect to the socket
	TCP     netip.AddrPort
}

// ParseAddress reads an address to listen on, "127.0.0.1:9100" or "unix:///run/taskapi/metrics.sock". The host of a TCP
// address is an IP address, or localhost, which is 127.0.0.1.
func ParseAddress(text string) (Address, error) {
	if path, ok := strings.CutPrefix(text, "unix://"); ok {
		if !strings.HasPrefix(path, "/") {
			return Address{}, fmt.Errorf("%q has no absolute path: give one such as unix:///run/taskapi/metrics.sock", text)
		}
		return Address{Socket: path}, nil
	}
	host := text
	if name, port, _ := strings.Cut(text, ":"); strings.EqualFold(name, "localhost") {
		host = "127.0.0.1:" + port
	}
	address, err := netip.ParseAddrPort(host)
	if err != nil {
		return Address{}, fmt.Errorf("%q is no address with a port: give one such as 127.0.0.1:9100, [::1]:9100 or "+
			"unix:///run/taskapi/metrics.sock", text)
	}
	return Address{TCP: address}, nil
}

// String returns the address as ParseAddress reads it.
func (a Address) String() string {
	if a.Socket != "" {
		return "unix://" + a.Socket
	}
	return a.TCP.String()
}

// Local reports whether this machine alone can connect.
func (a Address) Local() bool { return a.Socket != "" || a.TCP.Addr().IsLoopback() }

// AnyUserCanTake reports whether every user of this machine may listen at the address whenever nobody else does.
func (a Address) AnyUserCanTake() bool {
	return a.Socket == "" && a.TCP.Port() != 0 && int(a.TCP.Port()) >= proc.FirstUnprivilegedPort()
}

// Listener bounds its open connections. One more takes the place of the connection that has been without a request for
// the longest time, or, if all have one, of the connection with the oldest request. So idle connections keep nobody
// out.
type Listener struct {
	net.Listener
	address Address
	most    int

	mu   sync.Mutex // guards the fields below
	open map[*conn]mark
	last uint64
}

// conn is an open connection. It counts until it is closed, also when a handler has hijacked it.
type conn struct {
	net.Conn
	listener *Listener
	asked    bool // a request has come; guarded by listener.mu
	ofUser   bool // see OfUser; of the handlers, one at a time
}

// Close closes the connection.
func (c *conn) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.open, c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// mark says since when a connection is in its state.
type mark struct {
	busy  bool // a request on it is being answered
	since uint64
}

// Listen listens on the address, and serves at most that many connections at a time.
func Listen(a Address, most int) (*Listener, error) {
	inner, err := a.listen()
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, socket.ErrInUse) {
		return nil, fmt.Errorf("%s: another program listens there; choose another address, or port 0 for any", a)
	}
	if err != nil {
		if cause, ok := errors.AsType[syscall.Errno](err); ok {
			err = cause
		}
		return nil, fmt.Errorf("%s: %w", a, err)
	}
	return &Listener{Listener: inner, address: a, most: most, open: map[*conn]mark{}}, nil
}

func (a Address) listen() (net.Listener, error) {
	if a.Socket == "" {
		return net.Listen("tcp", a.TCP.String())
	}
	mode := os.FileMode(socketMode)
	if a.Private {
		mode = 0o600
	}
	return socket.Listen(socket.Config{Path: a.Socket, Mode: mode, UID: -1, GID: -1})
}

// URL returns the address that is listened on, with the port that was taken.
func (l *Listener) URL() string {
	if l.address.Socket != "" {
		return l.address.String()
	}
	return "http://" + l.Addr().String()
}

// Accept returns the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	inner, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, listener: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= l.most {
		stalest := l.stalest()
		delete(l.open, stalest)
		stalest.Conn.Close()
	}
	l.mark(c, false)
	return c, nil
}

func (l *Listener) mark(c *conn, busy bool) {
	l.last++
	l.open[c] = mark{busy, l.last}
}

// stalest returns the connection that gives way to another.
func (l *Listener) stalest() (stalest *conn) {
	for c, m := range l.open {
		of := l.open[stalest]
		if stalest == nil || of.busy && !m.busy || of.busy == m.busy && m.since < of.since {
			stalest = c
		}
	}
	return stalest
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// tracked marks a connection as busy while the handler answers a request on it. A connection on which only a part of a
// head was sent is not busy, since anybody can send that.
func (l *Listener) tracked(handler http.Handler) http.Handler {
	set := func(c *conn, busy bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		c.asked = true
		if _, open := l.open[c]; open {
			l.mark(c, busy)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(connKey{}).(*conn)
		set(c, true)
		defer set(c, false)
		handler.ServeHTTP(w, r)
	})
}

// Serve serves until ctx ends, and then leaves some time for the answers that are under way. The server brings its own
// bounds for a request with its answer; Serve sets the others.
func (l *Listener) Serve(ctx context.Context, server *http.Server, logger *slog.Logger) error {
	server.MaxHeaderBytes, server.ReadHeaderTimeout, server.IdleTimeout = maxHead, headTime, idleTime
	server.DisableGeneralOptionsHandler = true // the handler answers OPTIONS * too
	server.ErrorLog = slog.NewLogLogger(logger.Handler(), slog.LevelDebug)
	server.Handler = l.tracked(server.Handler)
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, c)
	}
	ctx, cancel := context.WithCancel(ctx)
	var ending sync.WaitGroup
	defer ending.Wait()
	defer cancel()
	ending.Go(func() {
		<-ctx.Done()
		within, end := context.WithTimeout(context.Background(), endTime)
		defer end()
		defer time.AfterFunc(silentTime, l.closeSilent).Stop()
		if server.Shutdown(within) != nil {
			_ = server.Close() // a client that still reads has had its time
		}
	})
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// closeSilent closes the connections on which no request has come.
func (l *Listener) closeSilent() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if !c.asked {
			_ = c.Conn.Close() // net/http then closes c
		}
	}
}

// NamesThisMachine reports whether a request's Host may be this machine: an IP address, or localhost. A web page whose
// own host name points here (DNS rebinding) names neither: browsers send that host name.
func NamesThisMachine(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.EqualFold(host, "localhost") || net.ParseIP(strings.Trim(host, "[]")) != nil
}
