package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"

	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/budget"
)

// socketServer is the API on one socket.
type socketServer struct {
	*API
	owner auth.Owner

	// These are of the socket, not of a request: draining ends when the server begins to stop, and blocking queries with it; open
	// ends when requests that are still under way are cut off, and actions with it.
	draining, open context.Context

	limits  limitset.Set
	streams atomic.Int64 // that are open
	waits   waits
	bucket  bucket
	changes *rate.Limiter // nil for no limit

	filtering chan struct{} // holds one while a filter is read or applied
	long      sync.Map      // the length of the latest answer of a *Route, if it was long
	making    chan struct{} // holds one while an answer of unknown length is made
	share     *budget.Share // of the memory for long answers
}

func newSocketServer(a *API, owner auth.Owner, draining, open context.Context) *socketServer {
	set := a.config.Limits
	if owner.Task == "" {
		set = set.Operator()
	}
	s := &socketServer{
		API: a, owner: owner, draining: draining, open: open, limits: set, waits: waits{most: set.Waits},
		filtering: make(chan struct{}, 1), making: make(chan struct{}, 1), share: a.budget.Join(),
	}
	if a.config.Auditor != nil {
		s.changes = rate.NewLimiter(rate.Limit(set.Changes.PerSecond), set.Changes.Burst)
	}
	return s
}

// ServeHTTP leads a request from its head to its answer: authentication, route, capability, handler, encoding. Authentication comes first,
// so that a caller without a token learns of no path or method.
func (s *socketServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	conn := connectionOf(r.Context())
	if conn == nil { // see connContext
		panic(http.ErrAbortHandler)
	}
	defer conn.endUpgrade()
	defer s.recovered(w, r)
	conn.begin() // one that was read together with the request before it has not begun yet
	conn.begun = false
	conn.enter(serving)
	defer conn.enter(writing) // net/http writes the rest of the answer when this returns
	body := boundBody(w, r)
	defer body.leave(w, r) // net/http answers when this returns, unless the answer is long
	if conn.ambiguous() {
		w.Header()["Connection"] = []string{"close"}
		s.fail(&request{Request: r, w: w}, apierror.New(apierror.AmbiguousLength))
		return
	}

	principal, denial := s.config.Authenticator.Authenticate(r, s.owner, conn.peer)
	if denial != nil {
		apierror.WriteDenial(w, denial)
		return
	}

	req := s.acquire(w, r, principal, conn.peer)
	defer s.release(req)
	if s.fault(req) {
		return
	}
	route, allow := s.router.find(&req.route, r.Method, routePath(r))
	if route != nil && route.Answer == Upgrade && r.Method == http.MethodHead {
		route, allow = nil, route.Methods
	}
	if route == nil {
		s.fail(req, noRoute(w, allow))
		return
	}
	req.matched = route

	if denial := s.config.Authenticator.Authorize(principal, route.AnyOf); denial != nil {
		apierror.WriteDenial(w, denial)
		s.recordLacking(req, denial)
		return
	}
	if route.maxBody > 0 && body != nil {
		r.Body = http.MaxBytesReader(w, body, route.maxBody)
	}

	ctx := r.Context()
	if route.mutates() { // a task that restarts itself is gone before it is done: an action outlives its client
		ctx = s.open
		if err := s.slow(req); err != nil {
			s.fail(req, err)
			return
		}
		req.unrecorded = s.begin(req)
		if req.unrecorded != nil && (!route.evenUnrecorded || !principal.Operator()) {
			s.fail(req, req.unrecorded)
			return
		}
	}
	var result answer
	err := req.checkPlace()
	defer req.giveBack()
	if err == nil {
		result, err = s.handle(ctx, req)
	}
	conn.enter(writing)
	body.leave(w, r)
	status := s.answer(ctx, req, route, result, err)
	if route.mutates() && !req.recorded && !denied(err) { // the authenticator has recorded what it denied
		s.record(req, status, auth.NotRefused)
	}
}

// answer sends what a handler has returned, as the route's kind has it, and returns the status.
func (s *socketServer) answer(ctx context.Context, r *request, route *Route, result answer, err error) int {
	switch {
	case err != nil:
		return s.fail(r, err)
	case route.Answer == Upgrade:
		return s.upgrade(ctx, r, result)
	case route.Answer != JSON:
		return s.stream(ctx, r, result)
	}
	status := cmp.Or(result.status, http.StatusOK)
	s.pacer.answered(&s.bucket, result.body.size())
	s.recordRead(r, status)
	if result.read = !route.mutates(); !result.read {
		s.record(r, status, auth.NotRefused)
	}
	result.write(r.w, status) // of a long answer the client has all before the handler returns
	if s.config.Answered != nil {
		index := result.index
		if result.shared {
			index = 0
		}
		s.config.Answered(s.owner, index)
	}
	return status
}

// recheck decides again on a request that has waited: its token may have expired or been revoked meanwhile. Errors: *auth.Denial.
func (r *request) recheck() error {
	if denial := r.server.config.Authenticator.Recheck(r.Request, r.Principal, r.server.owner, r.Peer); denial != nil {
		return denial
	}
	return nil
}

// routePath returns the path as the router matches it: escaped where decoding would lose something.
func routePath(r *http.Request) string {
	if r.URL.RawPath != "" {
		return r.URL.RawPath
	}
	return r.URL.Path
}

// fail answers with an error and returns the status. It is the one place that logs faults.
func (s *socketServer) fail(r *request, err error) int {
	if denial, ok := errors.AsType[*auth.Denial](err); ok {
		return apierror.WriteDenial(r.w, denial)
	}
	known := apierror.Of(err)
	if abandoned(r.Context(), err) {
		known = apierror.New(apierror.CutOff)
	}
	status := known.Kind.Status()
	if status == http.StatusInternalServerError {
		s.config.Logger.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", clip(r.URL.EscapedPath()),
			"alloc", s.owner.AllocationID, "task", s.owner.Task, "error", err)
	}
	s.recordRead(r, status)
	if known.RetryAfter > 0 {
		r.w.Header().Set("Retry-After", apierror.RetryAfter(known.RetryAfter))
	}
	answer{body: newBody([]byte(known.Message), plainType), index: r.missingSince(known), read: true}.write(r.w, status)
	return status
}

// missingSince returns the index of an error that says that something does not exist, so that a client can wait until
// it does; 0 for none.
func (r *request) missingSince(e *apierror.Error) uint64 {
	if e.Index != 0 || r.matched == nil || r.matched.mutates() || !e.Kind.Waitable() {
		return e.Index
	}
	return r.index()
}

// recovered turns a panic into a 500 and a line in the log; the connection and the server live on.
func (s *socketServer) recovered(w http.ResponseWriter, r *http.Request) {
	cause := recover()
	if cause == nil {
		return
	}
	if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(cause)
	}
	s.fail(&request{Request: r, w: w}, apierror.New(apierror.Internal).Because(fmt.Errorf("panic: %v\n%s", cause, debug.Stack())))
}

// acquire returns a request from the pool: with the matcher's scratch space in it, routing allocates nothing.
func (s *socketServer) acquire(w http.ResponseWriter, r *http.Request, principal *auth.Principal, peer auth.Peer) *request {
	req := s.requests.Get().(*request)
	req.Request, req.Principal, req.Peer, req.server, req.w = r, principal, peer, s, w
	return req
}

// release puts a request back into the pool, with nothing in it but the scratch space.
func (s *socketServer) release(req *request) {
	req.route.Reset()
	*req = request{route: req.route}
	s.requests.Put(req)
}
