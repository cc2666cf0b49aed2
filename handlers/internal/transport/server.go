// Package transport serves HTTP on a listener to clients who may be slow, hostile or too many. It bounds what each of
// them may send and how long each step of a request may take, refuses requests whose length is ambiguous, paces busy
// sockets so that none slows down its neighbours, and takes connections over for upgrades. A read that is sent again
// skips net/http's parser; see lane.go.
//
// It knows connections, bytes and time. It knows nothing of tokens, routes or answers: a Handler does the rest.
package transport

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"taskapi/auth"
)

// The bounds of a connection.
const (
	// MaxBody is the usual ceiling of a body. The longest that most routes take is a signal of some hundred bytes.
	MaxBody = 64 << 10
	// RequestTimeout is for the first byte on a connection, for a request's head from its first byte, and for its body.
	RequestTimeout = 10 * time.Second
	// WriteTimeout is for one response, or one frame of a stream. A client that takes longer is cut off.
	WriteTimeout = 30 * time.Second
	// DrainTimeout is for requests under way when the server stops. After it they are cut off.
	DrainTimeout = 3 * time.Second
	// SilentGrace is for a request's head when the server stops. It covers the time between a client's connect and its
	// request, and that until this process has read the request, on a busy machine.
	SilentGrace = 200 * time.Millisecond

	// maxHeader leaves room for the longest token that the authenticator takes (4 KiB) and as much again. net/http adds
	// 4 KiB of its own.
	maxHeader = 8 << 10
	// leftoverTimeout is for the rest of a body that nobody reads, such as the body of a refused request.
	leftoverTimeout = time.Second
	// idleTimeout outlasts the pools of common clients (Go's keeps a connection for 90 s). No connection is closed
	// while a client is about to use it again, unless others want its place.
	idleTimeout = 10 * time.Minute
	// pagingTimeout is for one message of a command's output. It is as long as the operator's token lasts, which ends
	// the session in any case.
	pagingTimeout = time.Hour
)

// Config has the dependencies of a Server. All but ConnContext are required.
type Config struct {
	// PeerOf returns the process at the other end of a connection. A connection for which it fails is closed.
	PeerOf func(net.Conn) (auth.Peer, error)
	// Logger gets connections whose peer is unknown, and at debug level net/http's lines on bad clients.
	Logger *slog.Logger
	// GiveWay lets a connection give way to a new one when the listener is full: the oldest one whose client is not Known
	// or, if there is none, the one that has been idle for the longest time. It is for sockets to which everybody may
	// connect.
	GiveWay bool
	// Heads is how many heads of requests each socket remembers for the lane; 0 for none.
	Heads int
	// ConnContext adds values to the context of a connection's requests; nil for none.
	ConnContext func(context.Context) context.Context
}

// Server serves any number of sockets, which it paces together.
type Server struct {
	config Config
	pacer  *pacer
	heads  atomic.Int64 // that its sockets remember
}

// New returns a server.
func New(c Config) *Server { return &Server{config: c, pacer: newPacer()} }

// Handler answers a request on a connection.
type Handler func(w http.ResponseWriter, r *http.Request, c *Conn)

// Socket is one socket while it is served.
type Socket struct {
	// Draining ends when the server begins to stop, and blocking queries with it. Open ends when requests that are
	// still under way are cut off, and actions with it.
	Draining, Open context.Context

	server *Server
	bucket bucket
	lane   *lane
	handle Handler
}

// Serve answers requests on the listener until ctx ends or the listener fails, with the handler that handlerOf returns
// for the socket. When ctx ends, requests under way have DrainTimeout to finish, heads that have not come whole have
// SilentGrace, and Serve returns nil. The listener is closed and every goroutine and connection is gone by then.
// Errors: the listener's, with its address.
func (s *Server) Serve(ctx context.Context, listener net.Listener, handlerOf func(*Socket) Handler) error {
	background := context.WithoutCancel(ctx)
	draining, drain := context.WithCancel(background)
	defer drain()
	open, cut := context.WithCancel(background)
	defer cut()

	var watch sync.WaitGroup
	defer watch.Wait()
	watching, stopWatching := context.WithCancel(background)
	defer stopWatching()
	socket := &Socket{Draining: draining, Open: open, server: s, lane: newLane(s.config.Heads, &s.heads)}
	defer socket.lane.forget()
	dog := newWatchdog(socket.lane.forget)
	watch.Go(func() { dog.run(watching) })
	if full, ok := listener.(interface{ MakeRoom(room func() bool) }); ok && s.config.GiveWay {
		full.MakeRoom(dog.makeRoom)
	}
	socket.handle = handlerOf(socket)
	defer s.pacer.forget(&socket.bucket)
	server := socket.httpServer(dog.state)
	served := make(chan error, 1)
	go func() { served <- server.Serve(watched{listener, dog, socket}) }()

	select {
	case err := <-served:
		cut()
		_ = server.Close() // closes what is closed already
		dog.connections.Wait()
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	drain()
	server.SetKeepAlivesEnabled(false)
	_ = listener.Close() // what it can't do, such as removing its file, is no reason to keep clients waiting
	<-served             //nolint:errcheck // net.ErrClosed, always
	dog.awaitRequests()
	grace, cancel := context.WithTimeout(background, DrainTimeout)
	defer cancel()
	defer context.AfterFunc(grace, func() { // net/http does not know what is left in the lane
		cut()
		dog.cut(func(*Conn) bool { return true })
	})()
	if server.Shutdown(grace) != nil { // the grace is over: cut off what is left
		cut()
		_ = server.Close()
	}
	dog.connections.Wait()
	return nil
}

// httpServer returns a server of net/http, with a ceiling on everything that a client chooses. It has no timeouts of
// its own: the watchdog, by way of state, enforces them.
func (s *Socket) httpServer(state func(net.Conn, http.ConnState)) *http.Server {
	return &http.Server{
		Handler:                      http.HandlerFunc(s.serveHTTP),
		MaxHeaderBytes:               maxHeader,
		DisableGeneralOptionsHandler: true, // OPTIONS * goes through the authenticator like everything else
		ErrorLog:                     slog.NewLogLogger(s.server.config.Logger.Handler(), slog.LevelDebug),
		BaseContext:                  func(net.Listener) context.Context { return s.Open },
		ConnContext:                  s.connContext,
		ConnState:                    state,
	}
}

// connContext puts the connection into its context, with the peer that the kernel saw when it was made.
func (s *Socket) connContext(ctx context.Context, conn net.Conn) context.Context {
	c := conn.(*Conn)
	peer, err := s.server.config.PeerOf(c.Conn)
	if err != nil {
		s.server.config.Logger.Warn("connection closed: its peer is unknown", "error", err)
		_ = conn.Close() // no request can be read from it any more
		return ctx
	}
	c.Peer = peer
	c.ctx = context.WithValue(ctx, connKey{}, c)
	if more := s.server.config.ConnContext; more != nil {
		c.ctx = more(c.ctx)
	}
	return c.ctx
}

// serveHTTP bounds a request and hands it to the handler.
func (s *Socket) serveHTTP(w http.ResponseWriter, r *http.Request) {
	c := ConnOf(r.Context())
	if c == nil { // see connContext
		panic(http.ErrAbortHandler)
	}
	defer c.endUpgrade()
	c.begin() // a request that was read together with the one before it has not begun yet
	c.begun, c.remember = false, false
	c.enter(serving)
	defer c.enter(writing) // net/http writes the rest of the answer when this returns
	c.boundBody(w, r)
	defer func() {
		c.LeaveBody(w, r)
		c.body = nil // an idle connection holds nothing of a request
	}()
	s.handle(w, r, c)
	if c.remember && c.head != nil {
		s.lane.remember(c.head, r)
	}
	c.head, c.posted = nil, r.Method == http.MethodPost
}

// Sent counts an answer of that many bytes against the socket's pace.
func (s *Socket) Sent(bytes int) { s.server.pacer.answered(&s.bucket, bytes) }
