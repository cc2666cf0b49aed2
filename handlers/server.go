package handlers

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"taskapi/auth"
)

// The ceilings of a connection.
const (
	// maxHeader leaves room for the longest token the authenticator takes (4 KiB) and as much again. net/http adds 4 KiB of its own.
	maxHeader = 8 << 10
	// requestTimeout is for the first byte on a connection, for a request's head from its first byte, and for its body.
	requestTimeout = 10 * time.Second
	// leftoverTimeout is for the rest of a body that nobody reads, as that of a request which is refused.
	leftoverTimeout = time.Second
	// idleTimeout outlasts the pools of common clients (Go's keeps a connection for 90 s), so that none is closed under a
	// request that is just being sent.
	idleTimeout = 10 * time.Minute
	// pagingTimeout is for one message of a command's output: as long as the operator's token lasts, which ends the session in any case.
	pagingTimeout = time.Hour
	// drainTimeout is for requests under way when the server stops; after it they are cut off.
	drainTimeout = 3 * time.Second
)

// Refusal is the HTTP response for a connection over a limit, which is closed after it without reading a request. Retry-After is a
// second, about what a short request and its connection take.
const Refusal = "HTTP/1.1 503 Service Unavailable\r\n" +
	"Connection: close\r\n" +
	"Content-Length: 20\r\n" +
	"Content-Type: text/plain; charset=utf-8\r\n" +
	"Retry-After: 1\r\n" +
	"\r\n" +
	"too many connections"

// Serve answers requests on the owner's socket until ctx ends or the listener fails. When ctx ends it lets requests under way
// finish for three seconds, blocking queries and streams ending at once, and returns nil; the listener is closed and every goroutine and
// connection is gone by then. Errors: the listener's, with its address.
func (a *API) Serve(ctx context.Context, listener net.Listener, owner auth.Owner) error {
	background := context.WithoutCancel(ctx)
	draining, drain := context.WithCancel(background)
	defer drain()
	open, cut := context.WithCancel(background)
	defer cut()

	var watch sync.WaitGroup
	defer watch.Wait()
	watching, stopWatching := context.WithCancel(background)
	defer stopWatching()
	dog := newWatchdog()
	watch.Go(func() { dog.run(watching) })
	s := newSocketServer(a, owner, draining, open)
	defer a.pacer.forget(&s.bucket)
	defer s.share.Leave()
	server := a.server(s, dog.state)
	served := make(chan error, 1)
	go func() { served <- server.Serve(dog.listen(listener, s)) }()

	select {
	case err := <-served:
		cut()
		_ = server.Close() // closes what is closed already
		dog.connections.Wait()
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	drain()
	dog.closeSilent()
	grace, cancel := context.WithTimeout(background, drainTimeout)
	defer cancel()
	if server.Shutdown(grace) != nil { // the grace is over, or the listener can't be closed twice: cut off what is left
		cut()
		_ = server.Close()
	}
	<-served //nolint:errcheck // http.ErrServerClosed, always
	dog.connections.Wait()
	return nil
}

// server returns a server of net/http, with a ceiling on everything that a client chooses. It has no timeouts of its own: the watchdog,
// by way of state, enforces them.
func (a *API) server(s *socketServer, state func(net.Conn, http.ConnState)) *http.Server {
	return &http.Server{
		Handler:                      s,
		MaxHeaderBytes:               maxHeader,
		DisableGeneralOptionsHandler: true, // OPTIONS * goes through the authenticator like everything else
		ErrorLog:                     slog.NewLogLogger(a.config.Logger.Handler(), slog.LevelDebug),
		BaseContext:                  func(net.Listener) context.Context { return s.open },
		ConnContext:                  a.connContext,
		ConnState:                    state,
	}
}

// connContext puts the connection into its context, with the peer that the kernel saw when it was made.
func (a *API) connContext(ctx context.Context, conn net.Conn) context.Context {
	c := conn.(*connection)
	peer, err := a.config.PeerOf(c.Conn)
	if err != nil {
		a.config.Logger.Warn("connection closed: its peer is unknown", "error", err)
		_ = conn.Close() // no request can be read from it any more
		return ctx
	}
	c.peer = peer
	return context.WithValue(ctx, connectionKey{}, c)
}
