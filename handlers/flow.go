package handlers

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"

	"taskapi/auth"
)

// site is the API on one socket.
type site struct {
	*API
	owner    auth.Owner
	draining context.Context // ends when the server begins to stop, and blocking queries with it
}

// ServeHTTP takes a request from its head to its answer: the door, the row, the capability, the handler, the encoding. The door
// comes before everything, so that what has no token learns of no path or method.
func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer s.recovered(w, r)
	peer, ok := r.Context().Value(peerKey{}).(auth.Peer)
	if !ok { // its connection was closed as it came: see connContext
		panic(http.ErrAbortHandler)
	}
	boundBody(w, r)

	principal, denial := s.door.Authenticate(r, s.owner, peer)
	if denial != nil {
		s.refuse(w, r, peer, nil, denial)
		return
	}

	req := s.acquire(w, r, principal, peer)
	defer s.release(req)
	route, allow := s.router.find(&req.route, r.Method, routePath(r))
	if route == nil {
		s.fail(req, noRoute(w, allow))
		return
	}

	if denial := s.door.Authorize(principal, route.capability); denial != nil {
		s.refuse(w, r, peer, principal, denial)
		return
	}

	result, err := route.handle(r.Context(), req)
	if req.slow || route.mutates() {
		renewWriteDeadline(w)
	}
	status := http.StatusOK
	if err != nil {
		status = s.fail(req, err)
	} else {
		if req.pretty() {
			result.body = result.body.pretty()
		}
		result.write(w, status)
	}
	if route.mutates() {
		s.record(r, peer, principal, status, auth.NotRefused)
	}
}

// routePath is the path as the router matches it: escaped where the escaping says more than the decoded text.
func routePath(r *http.Request) string {
	if r.URL.RawPath != "" {
		return r.URL.RawPath
	}
	return r.URL.Path
}

// refuse gives the door's answer.
func (s *site) refuse(w http.ResponseWriter, r *http.Request, peer auth.Peer, principal *auth.Principal, denial *auth.Denial) {
	denial.Write(w)
	s.record(r, peer, principal, denial.Status, denial.Reason)
}

// statusAbandoned stands in the audit log for a request whose client left before the answer; nginx made the number known.
const statusAbandoned = 499

// fail answers with an error and returns the status. It is the one place that logs a fault of ours.
func (s *site) fail(r *request, err error) int {
	if abandoned(r.Context(), err) {
		return statusAbandoned
	}
	known := asError(err)
	status := known.status()
	if status == http.StatusInternalServerError {
		s.logger.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", clip(r.URL.EscapedPath()),
			"alloc", s.owner.AllocationID, "task", s.owner.Task, "error", err)
	}
	message := known.Message
	if message == "" {
		message = http.StatusText(status)
	}
	answer{body: newBody([]byte(message), plainType)}.write(r.w, status)
	return status
}

// recovered turns a panic into a 500 and a line in the log; the connection and the server live on.
func (s *site) recovered(w http.ResponseWriter, r *http.Request) {
	cause := recover()
	if cause == nil {
		return
	}
	if cause == http.ErrAbortHandler {
		panic(cause)
	}
	s.fail(&request{Request: r, w: w}, &Error{
		Message: internalMessage,
		Err:     fmt.Errorf("panic: %v\n%s", cause, debug.Stack()),
	})
}

func (s *site) record(r *http.Request, peer auth.Peer, principal *auth.Principal, status int, reason auth.Reason) {
	if s.audit == nil {
		return
	}
	s.audit(r.Context(), Event{
		Owner: s.owner, Peer: peer, Principal: principal,
		Method: r.Method, Path: r.URL.EscapedPath(), Status: status, Reason: reason,
	})
}

// acquire takes a request from the pool: with the matcher's scratch space in it, routing allocates nothing.
func (s *site) acquire(w http.ResponseWriter, r *http.Request, principal *auth.Principal, peer auth.Peer) *request {
	req := s.requests.Get().(*request)
	req.Request, req.Principal, req.Peer, req.site, req.w = r, principal, peer, s, w
	return req
}

// release gives it back, holding on to nothing but the scratch space.
func (s *site) release(req *request) {
	req.route.Reset()
	*req = request{route: req.route}
	s.requests.Put(req)
}
