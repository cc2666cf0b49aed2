package handlers

import (
	"taskapi/auth"
	"taskapi/handlers/apierror"
)

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

// recordRead records a request of a known caller that changes nothing, if such are recorded: before the client has the answer, and for a stream at
// its begin.
func (s *socketServer) recordRead(r *request, status int) {
	if s.config.AuditReads && r.Principal != nil && (r.matched == nil || !r.matched.mutates()) {
		s.record(r, status, auth.NotRefused)
	}
}

// recordOf returns the record of a request; one that runs a program in a task has its name, as the query says it.
func (s *socketServer) recordOf(r *request, status int) auth.Record {
	record := auth.NewRecord(r.Method, r.URL.EscapedPath(), s.owner, r.Peer, r.Principal, status)
	if r.matched == nil || r.matched.program == nil {
		return record
	}
	query, err := r.values()
	if err != nil {
		return record
	}
	if program := r.matched.program(query); program != "" {
		return record.Runs(query.Get("task"), program)
	}
	return record
}
