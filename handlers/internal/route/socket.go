package route

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/transport"
)

type socket struct {
	*Server
	*transport.Socket
	owner auth.Owner

	limits  limitset.Set
	streams atomic.Int64 // that are open
	waits   waits
	changes *rate.Limiter // nil for no limit

	filtering *semaphore.Weighted // one at a time reads or applies a filter
	making    *semaphore.Weighted // one at a time makes an answer of unknown length, or waits for shared memory
	own       *semaphore.Weighted // memory for long answers
}

func (s *Server) newSocket(on *transport.Socket, owner auth.Owner) *socket {
	set := s.config.Limits
	if owner.Task == "" {
		set = set.Operator()
	}
	one := &socket{
		Server: s, Socket: on, owner: owner, limits: set, waits: waits{most: set.Waits},
		filtering: semaphore.NewWeighted(1), making: semaphore.NewWeighted(1), own: semaphore.NewWeighted(ownBytes),
	}
	if s.config.Auditor != nil {
		one.changes = rate.NewLimiter(rate.Limit(set.Changes.PerSecond), set.Changes.Burst)
	}
	return one
}

// serve authenticates a request, and then leads it to its route. Authentication comes first, so that a caller without a
// token learns of no path or method.
func (s *socket) serve(w http.ResponseWriter, r *http.Request, conn *transport.Conn) {
	defer s.recovered(w, r)
	if conn.Ambiguous() {
		w.Header()["Connection"] = []string{"close"}
		s.fail(&Request{Request: r, w: w}, apierror.New(apierror.AmbiguousLength))
		return
	}

	principal, denial := s.config.Authenticator.Authenticate(r, s.owner, conn.Peer)
	conn.Known(denial == nil)
	if denial != nil {
		apierror.WriteDenial(w, denial)
		return
	}

	req := requestOf(r)
	*req = Request{Request: r, Principal: principal, conn: conn, socket: s, w: w}
	defer func() { *req = Request{} }() // an idle connection keeps nothing of a request
	if !s.fault(req) {
		s.router.serve(w, r, r.URL.EscapedPath())
	}
}

// routed leads a request from its route to its answer: capability, record, handler, encoding.
func (s *socket) routed(req *Request, route *Route) {
	req.matched = route
	if s.config.Authenticator.Authorize(req.Principal, route.AnyOf) != nil {
		apierror.WriteDenial(req.w, s.lacking(req, route.AnyOf))
		return
	}
	if route.maxBody > 0 {
		req.conn.LimitBody(req.w, req.Request, route.maxBody)
	}

	ctx := req.Context()
	if route.mutates() { // a task that restarts itself is gone before it is done: an action outlives its client
		ctx = s.Open
		if err := s.slow(req); err != nil {
			s.fail(req, err)
			return
		}
		req.Unrecorded = s.begin(req)
		if req.Unrecorded != nil && (!route.evenUnrecorded || !req.Principal.Operator()) {
			s.fail(req, req.Unrecorded)
			return
		}
	}
	var result Answer
	err := req.checkQuery()
	defer req.held.keep(0)
	if err == nil {
		result, err = s.handle(ctx, req)
	}
	req.conn.Writing()
	req.conn.LeaveBody(req.w, req.Request)
	status := s.answer(ctx, req, result, err)
	if route.mutates() && !req.recorded && !Denied(err) { // the authenticator has recorded what it denied
		s.record(req, status)
	}
}

// answer sends what a handler has returned, as the route's kind has it, and returns the status.
func (s *socket) answer(ctx context.Context, r *Request, result Answer, err error) int {
	switch {
	case err != nil:
		return s.fail(r, err)
	case result.Upgrade != nil:
		return s.upgrade(ctx, r, result)
	case result.Stream != nil:
		return s.stream(ctx, r, result)
	}
	status := cmp.Or(result.Status, http.StatusOK)
	s.Sent(result.Body.size())
	s.recordRead(r, status)
	if result.read = !r.matched.mutates(); !result.read {
		s.record(r, status)
	}
	if result.read && s.repeatable(r, result, status) {
		r.conn.Remember()
	}
	result.write(r.w, status) // of a long answer the client has all before the handler returns
	index := result.Index
	if result.Shared {
		index = 0
	}
	s.config.Answered(s.owner, index)
	return status
}

// repeatable reports whether a read is always answered at once, so that its head may be remembered. A query with an
// index may wait, and so may a long answer.
func (s *socket) repeatable(r *Request, a Answer, status int) bool {
	return status == http.StatusOK && s.config.Fault == nil && a.Body.size() <= ShortBytes &&
		!r.Query().Has("index") && !r.Query().Has("filter")
}

// fail answers with an error and returns the status. It is the one place that logs faults.
func (s *socket) fail(r *Request, err error) int {
	if denial, ok := errors.AsType[*auth.Denial](err); ok {
		return apierror.WriteDenial(r.w, denial)
	}
	known := apierror.Of(err)
	if r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		// The client has gone, or the server's end cut the request off. Nothing went wrong, but nothing was done either,
		// which a client that still reads has to learn.
		known = apierror.New(apierror.CutOff)
	}
	status := known.Kind.Status()
	if status == http.StatusInternalServerError {
		s.config.Logger.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", Clip(r.URL.EscapedPath()),
			"alloc", s.owner.AllocationID, "task", s.owner.Task, "error", err)
	}
	s.recordRead(r, status)
	if known.RetryAfter > 0 {
		r.w.Header().Set("Retry-After", apierror.RetryAfter(known.RetryAfter))
	}
	index := known.Index // of an object that does not exist, so that a client can wait until it does
	if index == 0 && r.matched != nil && !r.matched.mutates() && known.Kind.Waitable() {
		index = r.Index()
	}
	Answer{Body: NewBody([]byte(known.Message), PlainType), Index: index, read: true}.write(r.w, status)
	return status
}

// recovered turns a panic into a 500 and a line in the log; the connection and the server live on.
func (s *socket) recovered(w http.ResponseWriter, r *http.Request) {
	cause := recover()
	if cause == nil {
		return
	}
	if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(cause)
	}
	failed := fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
	s.fail(&Request{Request: r, w: w}, apierror.New(apierror.Internal).Because(failed))
}

// fault answers a request for which there is a fault, and reports whether it did. It makes the record first, since a
// fault may last, or end the connection.
func (s *socket) fault(r *Request) bool {
	if s.config.Fault == nil {
		return false
	}
	status, answer := s.config.Fault(r.Request, s.owner)
	if answer == nil {
		return false
	}
	if s.config.Auditor != nil {
		record := s.recordOf(r, status)
		record.Outcome, record.Reason = auth.Failed, "fault"
		s.config.Auditor.Audit(record)
	}
	answer.ServeHTTP(r.w, r.Request)
	return true
}
