package handlers

import (
	"context"
	"strings"

	"taskapi/auth"
	"taskapi/handlers/apierror"
)

// slow makes a task wait when it changes more than its limit allows. Each change has a line in the audit log, and no
// task may fill that log. Errors: CutOff when the client has gone or the server stops; *auth.Denial when the token is
// not valid any more.
func (s *socketServer) slow(r *request) error {
	if s.changes == nil || s.changes.Allow() {
		return nil
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.draining, cancel)()
	if s.changes.Wait(ctx) != nil {
		return apierror.New(apierror.CutOff)
	}
	r.renewBodyTime()
	return r.recheck()
}

// begin records a change that is about to be carried out; its error refuses the change.
func (s *socketServer) begin(r *request) error {
	if s.config.Auditor == nil {
		return nil
	}
	err := s.config.Auditor.Begin(s.recordOf(r, 0))
	if err != nil {
		return apierror.New(apierror.Unavailable, err)
	}
	return nil
}

// record records the result of a request; reason is the authenticator's when it refused.
func (s *socketServer) record(r *request, status int, reason auth.Reason) {
	if s.config.Auditor == nil {
		return
	}
	r.recorded = true
	record := s.recordOf(r, status)
	if reason != auth.NotRefused {
		record.Outcome, record.Reason = auth.Denied, reason.String()
	}
	s.config.Auditor.Audit(record)
}

// recordLacking records a request whose caller lacks the capability that its route needs.
func (s *socketServer) recordLacking(r *request, denial *auth.Denial) {
	s.record(r, denial.Reason.Status(), denial.Reason)
	if s.config.Lacking != nil {
		s.config.Lacking(r.matched.AnyOf.String(), strings.TrimPrefix(r.URL.EscapedPath(), "/v1/var/"))
	}
}

// recordRead records a request of a known caller that changes nothing, if such are recorded: before the client has the answer, and for a stream at
// its begin.
func (s *socketServer) recordRead(r *request, status int) {
	if s.config.AuditReads && r.Principal != nil && (r.matched == nil || !r.matched.mutates()) {
		s.record(r, status, auth.NotRefused)
	}
}

// recordOf returns the record of a request, with the details that its route adds from the query.
func (s *socketServer) recordOf(r *request, status int) auth.Record {
	record := auth.NewRecord(r.Method, r.URL.EscapedPath(), s.owner, r.Peer, r.Principal, status)
	if r.matched == nil || r.matched.detail == nil {
		return record
	}
	query, err := r.values()
	if err != nil {
		return record
	}
	return r.matched.detail(record, r, query)
}
