package handlers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"taskapi/auth"
	"taskapi/handlers/apierror"
)

// socketServer is the API on one socket.
type socketServer struct {
	*API
	owner auth.Owner

	// The life of the socket, not of a request: draining ends when the server begins to stop, and blocking queries with it; open
	// ends when what is still under way is cut off, and actions with it.
	draining, open context.Context

	streams atomic.Int64 // that are open
	waits   waits
	lane    lane
}

// ServeHTTP takes a request from its head to its answer: the authenticator, the row, the capability, the handler, the encoding. The authenticator
// comes before everything, so that what has no token learns of no path or method.
func (s *socketServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer s.recovered(w, r)
	conn := connectionOf(r.Context())
	if conn == nil { // it was closed as it came: see connContext
		panic(http.ErrAbortHandler)
	}
	conn.begin() // one that was in the buffer with the request before it has not begun yet
	conn.begun = false
	conn.enter(serving)
	defer conn.enter(writing) // what the handler has not written net/http writes when it returns
	body := boundBody(w, r)
	defer body.leave(w, r) // net/http answers when this returns, unless the answer is long
	if conn.ambiguous() {
		w.Header()["Connection"] = []string{"close"}
		s.fail(&request{Request: r, w: w}, apierror.New(apierror.AmbiguousLength))
		return
	}

	principal, denial := s.config.Authenticator.Authenticate(r, s.owner, conn.peer)
	if denial != nil {
		denial.Write(w)
		return
	}

	req := s.acquire(w, r, principal, conn.peer)
	defer s.release(req)
	route, allow := s.router.find(&req.route, r.Method, routePath(r))
	if route == nil {
		s.fail(req, noRoute(w, allow))
		return
	}

	if denial := s.config.Authenticator.Authorize(principal, route.capability); denial != nil {
		denial.Write(w)
		s.record(req, denial.Kind.Status(), denial.Reason)
		return
	}
	if route.maxBody > 0 && body != nil {
		r.Body = http.MaxBytesReader(w, body, route.maxBody)
	}

	ctx := r.Context()
	if route.mutates() { // a task that restarts itself is gone before it is done: an action outlives its client
		ctx = s.open
		if err := s.begin(req); err != nil && (!route.always || !principal.Operator()) {
			s.fail(req, err)
			return
		}
	}
	result, err := route.handle(ctx, req)
	conn.enter(writing)
	body.leave(w, r)
	status := s.answer(req, result, err)
	if _, denied := errors.AsType[*auth.Denial](err); route.mutates() && !denied { // the authenticator has recorded what it denied
		s.record(req, status, auth.NotRefused)
	}
}

// answer writes what a handler has given back, and returns the status.
func (s *socketServer) answer(r *request, result answer, err error) int {
	switch {
	case err != nil:
		return s.fail(r, err)
	case result.sent:
	case r.pretty():
		result.body = result.body.pretty()
		fallthrough
	default:
		s.pacer.answered(&s.lane, len(result.body.bytes))
		result.write(r.w, http.StatusOK)
	}
	return http.StatusOK
}

// recheck asks the authenticator again about a request that has waited: its token may have expired or been revoked meanwhile. The error is a
// *auth.Denial.
func (r *request) recheck() error {
	if denial := r.server.config.Authenticator.Recheck(r.Request, r.Principal, r.server.owner, r.Peer); denial != nil {
		return denial
	}
	return nil
}

// requestBody is a request's body, which knows whether it has been read to its end.
type requestBody struct {
	io.ReadCloser // net/http's
	read          bool
}

// boundBody bounds a request's body in size and time. It is nil for a request that has none.
func boundBody(w http.ResponseWriter, r *http.Request) *requestBody {
	if r.Body == http.NoBody {
		return nil
	}
	b := &requestBody{ReadCloser: r.Body}
	r.Body = http.MaxBytesReader(w, b, maxBody)
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(requestTimeout)) // net/http lifts it once the body is read
	return b
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read = b.read || err == io.EOF
	return n, err
}

// leave shortens the wait for what is left of a body that nobody reads: before net/http answers it reads that, so that the connection
// can be used again, or closes it. A client that waits for 100 Continue is answered at once.
func (b *requestBody) leave(w http.ResponseWriter, r *http.Request) {
	if b == nil || b.read {
		return
	}
	r.Body = b.ReadCloser // net/http knows its own
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(leftoverTimeout))
}

// routePath is the path as the router matches it: escaped where the escaping says more than the decoded text.
func routePath(r *http.Request) string {
	if r.URL.RawPath != "" {
		return r.URL.RawPath
	}
	return r.URL.Path
}

// fail answers with an error and returns the status. It is the one place that logs a fault of ours.
func (s *socketServer) fail(r *request, err error) int {
	if denial, ok := errors.AsType[*auth.Denial](err); ok {
		denial.Write(r.w)
		return denial.Kind.Status()
	}
	known := asError(err)
	if abandoned(r.Context(), err) {
		known = apierror.New(apierror.CutOff)
	}
	status := known.Kind.Status()
	if status == http.StatusInternalServerError {
		s.config.Logger.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", clip(r.URL.EscapedPath()),
			"alloc", s.owner.AllocationID, "task", s.owner.Task, "error", err)
	}
	if known.RetryAfter > 0 {
		r.w.Header().Set("Retry-After", strconv.Itoa(int((known.RetryAfter+time.Second-1)/time.Second)))
	}
	answer{body: newBody([]byte(known.Message), plainType)}.write(r.w, status)
	return status
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

// begin asks the auditor whether a change may be carried out.
func (s *socketServer) begin(r *request) error {
	if s.config.Auditor == nil {
		return nil
	}
	err := s.config.Auditor.Begin(auth.NewRecord(r.Method, r.URL.EscapedPath(), s.owner, r.Peer, r.Principal, 0))
	if err != nil {
		return apierror.New(apierror.Unavailable, err)
	}
	return nil
}

// record tells the auditor what became of a request; reason is the authenticator's when it refused.
func (s *socketServer) record(r *request, status int, reason auth.Reason) {
	if s.config.Auditor == nil {
		return
	}
	record := auth.NewRecord(r.Method, r.URL.EscapedPath(), s.owner, r.Peer, r.Principal, status)
	if reason != auth.NotRefused {
		record.Outcome, record.Reason = auth.Denied, reason.String()
	}
	s.config.Auditor.Audit(record)
}

// acquire takes a request from the pool: with the matcher's scratch space in it, routing allocates nothing.
func (s *socketServer) acquire(w http.ResponseWriter, r *http.Request, principal *auth.Principal, peer auth.Peer) *request {
	req := s.requests.Get().(*request)
	req.Request, req.Principal, req.Peer, req.server, req.w = r, principal, peer, s, w
	return req
}

// release gives it back, holding on to nothing but the scratch space.
func (s *socketServer) release(req *request) {
	req.route.Reset()
	*req = request{route: req.route}
	s.requests.Put(req)
}
