package route

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/handlers/internal/transport"
)

// Authenticator decides who a request comes from and what that caller may do. A nil Denial allows it.
type Authenticator interface {
	// Authenticate returns who sent a request on the owner's socket from the peer.
	Authenticate(r *http.Request, owner auth.Owner, peer auth.Peer) (*auth.Principal, *auth.Denial)
	// Recheck decides once more on a request that Authenticate has let in, after it has waited or while it goes on.
	Recheck(r *http.Request, p *auth.Principal, owner auth.Owner, peer auth.Peer) *auth.Denial
	// Authorize decides whether the principal has one of the capabilities.
	Authorize(p *auth.Principal, anyOf auth.CapabilitySet) *auth.Denial
}

var _ Authenticator = (*auth.Authenticator)(nil)

// Config has what the server of a table needs. All but Auditor, Refusals and Fault are required; package handlers has
// defaults for Limits and for the callbacks.
type Config struct {
	Authenticator Authenticator
	Allocs        Allocs
	Region        string // a request for another one is refused

	// PeerOf returns the process at the other end of a connection. A connection for which it fails is closed.
	PeerOf func(net.Conn) (auth.Peer, error)

	// Logger gets faults of the server, once each, and at debug level net/http's lines on bad clients.
	Logger *slog.Logger

	// GiveWay lets a connection give way to a new one when the listener is full: the oldest one without a good token or,
	// if there is none, the one that has been idle for the longest time.
	GiveWay bool

	// Auditor gets a record of every request that may change something, and of every one without the capability; nil
	// for none. It may refuse a change before it is carried out, which is 503. The authenticator records its refusals
	// itself.
	Auditor auth.Auditor

	// AuditReads gives the Auditor a record of every other request, too, whose caller is known, before the client has
	// the answer.
	AuditReads bool

	// Fault returns a handler that answers a request instead of its route, as a server in trouble would, and the status
	// for the record. With a nil handler, the route answers. It is called for callers who are known, and may wait until
	// the request's context ends. Nil for no faults: they are for tests of clients, and nothing else.
	Fault func(r *http.Request, owner auth.Owner) (status int, answer http.Handler)

	// Limits bound the streams and the waiting queries of a task's socket; the zero value is limitset.Default.
	Limits limitset.Set

	// Refusals remembers the requests of tasks whose caller is known but lacks the capability. The authenticator adds its
	// refusals itself. Nil for none.
	Refusals *auth.Refusals

	// Answered is called after each answer but errors, streams and upgrades, with the index of the allocation in it, 0
	// for none; nil for nobody.
	Answered func(owner auth.Owner, index uint64)

	// Elsewhere returns where another machine runs the allocation with an ID, for the operator to read; empty when it
	// does not know. Nil without other machines.
	Elsewhere func(ctx context.Context, id string) string
}

// Server answers the requests on any number of sockets, by the routes of one table.
type Server struct {
	config    Config
	router    *Router
	rows      []Route
	transport *transport.Server
	shared    *semaphore.Weighted // memory for long answers
	views     [Views]atomic.Pointer[view]
}

// NewServer returns a server for the routes of a table. It panics when the router is that of another table.
func NewServer(config Config, router *Router, table []Route) *Server {
	if !slices.EqualFunc(router.rows, table, func(a, b Route) bool {
		return a.Pattern == b.Pattern && slices.Equal(a.Methods, b.Methods)
	}) {
		panic("route: the router is that of another table")
	}
	return &Server{
		config: config, router: router, rows: table, shared: semaphore.NewWeighted(sharedBytes),
		transport: transport.New(transport.Config{
			PeerOf: config.PeerOf, Logger: config.Logger, Heads: config.Limits.Heads, GiveWay: config.GiveWay,
			ConnContext: connContext,
		}),
	}
}

// Serve answers requests on the owner's socket until ctx ends or the listener fails. When ctx ends, requests under way
// have three seconds to finish, blocking queries and streams end at once, and Serve returns nil. The listener is closed
// and every goroutine and connection is gone by then. Errors: the listener's, with its address.
func (s *Server) Serve(ctx context.Context, listener net.Listener, owner auth.Owner) error {
	return s.transport.Serve(ctx, listener, func(on *transport.Socket) transport.Handler {
		return s.newSocket(on, owner).serve
	})
}
