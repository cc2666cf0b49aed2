package upstream

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/transport"
)

// mostBody is the ceiling of a request's body: that of a large job.
const mostBody = 8 << 20

// noKeys are the words for callers whose tokens can't be verified.
const noKeys = "the agent's public keys are not there"

// Config has the parts of a Server. Agent, Authenticator, Ready, PeerOf and Logger are required.
type Config struct {
	Agent         *Agent
	Authenticator *auth.Authenticator
	// Ready reports whether tokens can be verified: the agent's public keys are there.
	Ready func() bool
	// Region is the allocation's; a request for another one is refused, because its tokens are not good there.
	Region string
	// Allowed decides whether a policy of this gateway lets a caller send a request. namespace is that of the variable
	// that the request is about. The agent decides about the rest. Nil lets every request pass.
	Allowed func(r *http.Request, namespace string, p *auth.Principal) *auth.Denial
	PeerOf  func(net.Conn) (auth.Peer, error)
	Logger  *slog.Logger
	// Auditor gets a record of each change, and of each read with AuditReads; nil for none.
	Auditor    auth.Auditor
	AuditReads bool
	// Detail adds to a record what the request's query says and the namespace of its variable; nil adds nothing.
	Detail func(record auth.Record, method string, u *url.URL, namespace string) auth.Record
	Limits limitset.Set // of each socket
}

// Server answers the requests on any number of sockets.
type Server struct {
	config    Config
	transport *transport.Server
	proxy     *httputil.ReverseProxy
	epoch     atomic.Uint64 // grows with each change that was made
}

// New returns a server.
func New(config Config) *Server {
	s := &Server{config: config, transport: transport.New(transport.Config{
		PeerOf: config.PeerOf, Logger: config.Logger, Heads: config.Limits.Heads, GiveWay: true,
	})}
	s.proxy = s.newProxy()
	return s
}

// Serve answers requests on the owner's socket until ctx ends or the listener fails. Errors: the listener's.
func (s *Server) Serve(ctx context.Context, listener net.Listener, owner auth.Owner) error {
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	var queries sync.WaitGroup
	defer queries.Wait()
	defer stop()
	return s.transport.Serve(ctx, listener, func(on *transport.Socket) transport.Handler {
		one := &taskSocket{
			Server: s, Socket: on, owner: owner, cache: newCache(following, s.config.Agent, &s.epoch, &queries),
		}
		if s.config.Auditor != nil {
			one.changes = rate.NewLimiter(rate.Limit(s.config.Limits.Changes.PerSecond), s.config.Limits.Changes.Burst)
		}
		return one.serve
	})
}

// taskSocket is the server on one socket.
type taskSocket struct {
	*Server
	*transport.Socket
	owner   auth.Owner
	cache   *cache
	waits   atomic.Int64
	streams atomic.Int64  // requests that are passed on
	changes *rate.Limiter // nil for no limit
}

// request is a request whose sender is known.
type request struct {
	*http.Request
	w         http.ResponseWriter
	conn      *transport.Conn
	owner     auth.Owner
	principal *auth.Principal
	cache     *cache
	path      string // escaped
	namespace string // of the variable that it is about; empty for another request, and while nobody needs to know
	change    bool
	sent      atomic.Bool // a connection to the agent was taken for it
	status    int         // of the answer that was passed on
}

// serve leads a request to its answer. Authentication comes first, so that nothing of a caller without a good token
// reaches the cache or the agent.
func (s *taskSocket) serve(w http.ResponseWriter, r *http.Request, conn *transport.Conn) {
	if conn.Ambiguous() {
		w.Header()["Connection"] = []string{"close"}
		fail(w, apierror.New(apierror.AmbiguousLength))
		return
	}
	if !s.config.Ready() {
		fail(w, unavailable(noKeys))
		return
	}
	owner := s.owner
	if owner.AnyUser {
		owner.UID = conn.Peer.UID // bad tokens of one user must not shut another out
	}
	principal, denial := s.config.Authenticator.Authenticate(r, owner, conn.Peer)
	conn.Known(denial == nil)
	if denial != nil {
		apierror.WriteDenial(w, denial)
		return
	}
	req := &request{
		Request: r, w: w, conn: conn, owner: owner, principal: principal, cache: s.cache, path: r.URL.EscapedPath(),
	}
	req.change = isChange(r.Method, r.URL.Path)
	query, err := s.check(req)
	conn.LimitBody(w, r, mostBody)
	if err == nil && (s.config.Allowed != nil || s.config.Auditor != nil) {
		req.namespace, err = namespaceOf(r, query)
	}
	if err == nil && s.config.Allowed != nil {
		if denial := s.config.Allowed(r, req.namespace, principal); denial != nil {
			if s.config.Auditor != nil {
				s.config.Auditor.Audit(s.record(req, 0).Refused(denial.Reason))
			}
			err = denial
		}
	}
	if err != nil {
		failWith(w, err)
		return
	}
	if r.Method == http.MethodGet && !req.change && isResource(req.path) {
		q, cached, err := readOf(req.path, query)
		if err != nil {
			failWith(w, err)
			return
		}
		if cached && s.fromCache(req, q) {
			return
		}
	}
	s.pass(req)
}

// check refuses requests that could mean something else to the agent than here.
func (s *taskSocket) check(r *request) (query url.Values, err error) {
	if !strings.HasPrefix(r.path, "/v1/") && !strings.HasPrefix(r.path, "/.well-known/") {
		return nil, apierror.New(apierror.NoRoute)
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPost, http.MethodDelete:
	default:
		return nil, apierror.New(apierror.WrongMethod)
	}
	if r.URL.RawQuery == "" {
		return nil, nil
	}
	if query, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		return nil, apierror.New(apierror.Invalid, "the query can't be read: write each parameter as NAME=VALUE, with %XX "+
			"for other characters")
	}
	if err := route.CheckPassedOn(query); err != nil {
		return nil, err
	}
	for _, region := range query["region"] {
		if region != s.config.Region {
			return nil, apierror.New(apierror.NoRegion)
		}
	}
	return query, nil
}

// fromCache answers a read, unless the cache has no place for it, and reports whether it did.
func (s *taskSocket) fromCache(r *request, q read) bool {
	ctx := r.Context()
	if q.after > 0 {
		if s.waits.Add(1) > int64(s.config.Limits.Waits) {
			s.waits.Add(-1)
			fail(r.w, later(apierror.TooManyWaits, s.config.Limits.Waits))
			return true
		}
		defer s.waits.Add(-1)
		waiting, cancel := context.WithTimeout(ctx, q.wait)
		defer cancel()
		defer context.AfterFunc(s.Draining, cancel)()
		lasting, end := context.WithCancelCause(waiting)
		defer end(nil)
		recheck := s.recheckOf(r)
		defer r.conn.Lasting(func() error {
			if !s.config.Ready() { // its key may be good, and a wait tells nothing
				return nil
			}
			return recheck()
		}, end)()
		ctx = lasting
	}
	v, age, err := s.cache.read(ctx, ofCache{q.of, tokenOf(r.Header)}, q)
	if errors.Is(err, errPassOn) {
		return false
	}
	denial, ended := errors.AsType[*auth.Denial](context.Cause(ctx))
	if !ended {
		denial = s.config.Authenticator.Recheck(r.Request, r.principal, r.owner, r.conn.Peer)
	}
	if denial != nil {
		if s.config.Ready() {
			apierror.WriteDenial(r.w, denial)
		} else { // its key may be good
			fail(r.w, unavailable(noKeys))
		}
		return true
	}
	r.conn.Writing()
	if err != nil {
		s.config.Logger.Debug("a read has no answer", "path", r.path, "error", err)
		known := unavailable("the agent does not answer")
		s.recordDone(r, known.Kind.Status())
		fail(r.w, known)
		return true
	}
	s.Sent(len(v.body))
	s.recordDone(r, v.status)
	if v.kept() && q.after == 0 && age == 0 {
		r.conn.Remember()
	}
	v.write(r.w, age)
	return true
}

// recheckOf returns a function that decides again on a request, at once: no refusal is delayed when its request's
// context has ended.
func (s *taskSocket) recheckOf(r *request) func() error {
	ended, end := context.WithCancel(r.Context())
	end()
	held := r.WithContext(ended)
	return func() error {
		if denial := s.config.Authenticator.Recheck(held, r.principal, r.owner, r.conn.Peer); denial != nil {
			return denial
		}
		return nil
	}
}

// tokenOf returns the token of a request that was authenticated: both headers, if they are there, hold the same.
func tokenOf(h http.Header) string {
	if own := h["X-Nomad-Token"]; len(own) == 1 && own[0] != "" {
		return own[0]
	}
	standard := h.Get("Authorization")
	return strings.TrimLeft(standard[min(len("Bearer"), len(standard)):], " ")
}

// unavailable is the error of an agent that is away.
func unavailable(why string) *apierror.Error { return later(apierror.Unavailable, why) }

// later returns an error after which the caller may try again.
func later(kind apierror.Kind, args ...any) *apierror.Error {
	err := apierror.New(kind, args...)
	err.RetryAfter = time.Second
	return err
}

// failWith answers with an error of this package, or a *auth.Denial.
func failWith(w http.ResponseWriter, err error) int {
	if denial, ok := errors.AsType[*auth.Denial](err); ok {
		return apierror.WriteDenial(w, denial)
	}
	return fail(w, apierror.Of(err))
}

// fail answers with an error and returns the status.
func fail(w http.ResponseWriter, err *apierror.Error) int {
	h := w.Header()
	h["Content-Type"] = []string{"text/plain; charset=utf-8"}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	if err.RetryAfter > 0 {
		h["Retry-After"] = []string{apierror.RetryAfter(err.RetryAfter)}
	}
	w.WriteHeader(err.Kind.Status())
	_, _ = w.Write([]byte(err.Message)) // a client that does not read it loses nothing
	return err.Kind.Status()
}

// The records of the audit log.

func (s *taskSocket) record(r *request, status int) auth.Record {
	record := auth.NewRecord(r.Method, r.path, r.owner, r.conn.Peer, r.principal, status)
	if s.config.Detail == nil {
		return record
	}
	return s.config.Detail(record, r.Method, r.URL, r.namespace)
}

// recordDone records a request that was answered with the status, if such requests are recorded.
func (s *taskSocket) recordDone(r *request, status int) {
	if s.config.Auditor != nil && (r.change || s.config.AuditReads) {
		s.config.Auditor.Audit(s.record(r, status))
	}
}
