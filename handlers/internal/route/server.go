package route

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/handlers/internal/budget"
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

// Config has what the server of a table needs. All but Auditor and Fault are required.
type Config struct {
	Authenticator Authenticator
	Allocs        Allocs
	Region        string
	PeerOf        func(net.Conn) (auth.Peer, error)
	Logger        *slog.Logger
	Auditor       auth.Auditor
	AuditReads    bool
	Fault         func(r *http.Request, owner auth.Owner) (status int, answer http.Handler)
	Limits        limitset.Set
	Lacking       func(capability, object string)
	Answered      func(owner auth.Owner, index uint64)
	Eased         func()
}

// Server answers the requests on any number of sockets, by the routes of one table.
type Server struct {
	config    Config
	router    *router
	transport *transport.Server
	requests  sync.Pool      // of *request
	budget    *budget.Budget // of the memory for long answers
	views     [Views]atomic.Pointer[view]
}

// NewServer returns a server for the routes.
func NewServer(config Config, table []Route) *Server {
	return &Server{
		config: config, router: newRouter(table), budget: budget.New(bulkyBytes),
		requests: sync.Pool{New: func() any { return new(Request) }},
		transport: transport.New(transport.Config{
			PeerOf: config.PeerOf, Logger: config.Logger, Eased: config.Eased, Heads: config.Limits.Heads,
		}),
	}
}

// Serve answers requests on the owner's socket until ctx ends or the listener fails. When ctx ends, requests under way
// have three seconds to finish, blocking queries and streams end at once, and Serve returns nil. The listener is closed
// and every goroutine and connection is gone by then. Errors: the listener's, with its address.
func (s *Server) Serve(ctx context.Context, listener net.Listener, owner auth.Owner) error {
	share := s.budget.Join()
	defer share.Leave()
	return s.transport.Serve(ctx, listener, func(on *transport.Socket) transport.Handler {
		return s.newSocket(on, owner, share).serve
	})
}
