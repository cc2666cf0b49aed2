package route

import (
	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/transport"
)

// slow delays a task's change when the task changes more than its limit allows. Each change has a line in the audit
// log, which no task may fill. Errors: those of Await, the end of the request's context when the client has gone.
func (s *socket) slow(r *Request) error {
	if s.changes == nil || s.changes.Allow() {
		return nil
	}
	err := r.Await(r.Context(), s.changes.Wait)
	if err == nil {
		transport.RenewBodyTime(r.w, r.Request)
	}
	return err
}

// begin records a change that is about to be carried out; its error refuses the change.
func (s *socket) begin(r *Request) error {
	if s.config.Auditor == nil {
		return nil
	}
	err := s.config.Auditor.Begin(s.recordOf(r, 0))
	if err != nil {
		return apierror.New(apierror.Unavailable, err)
	}
	return nil
}

// record records the result of a request that was let in.
func (s *socket) record(r *Request, status int) {
	if s.config.Auditor == nil {
		return
	}
	r.recorded = true
	s.config.Auditor.Audit(s.recordOf(r, status))
}

// lacking records a request whose caller lacks each of the capabilities, and returns the Denial. It names the
// capabilities to a process of the operator's that is not the task's: a task reads Nomad's words alone.
func (s *socket) lacking(r *Request, anyOf auth.CapabilitySet) *auth.Denial {
	denial := &auth.Denial{Reason: auth.MissingCapability}
	if !s.owner.AnyUser && r.conn.Peer.UID != s.owner.UID {
		denial.Needs = anyOf
	}
	s.config.Refusals.Lacked(s.owner, r.Method, r.matched.Pattern, r.URL.EscapedPath(), anyOf)
	if s.config.Auditor != nil {
		r.recorded = true
		record := s.recordOf(r, 0).Refused(denial.Reason)
		record.Capability = anyOf.AnyOf()
		s.config.Auditor.Audit(record)
	}
	return denial
}

// recordRead records a request of a known caller that changes nothing, if such requests are recorded. It does so before
// the client has the answer, and for a stream when it begins.
func (s *socket) recordRead(r *Request, status int) {
	if s.config.AuditReads && r.Principal != nil && (r.matched == nil || !r.matched.mutates()) {
		s.record(r, status)
	}
}

// recordOf returns the record of a request, with the details that its route adds from the query.
func (s *socket) recordOf(r *Request, status int) auth.Record {
	record := auth.NewRecord(r.Method, r.URL.EscapedPath(), s.owner, r.conn.Peer, r.Principal, status)
	if r.matched == nil || r.matched.detail == nil || r.parseQuery() != nil {
		return record
	}
	return r.matched.detail(record, r.Namespace, r.Query())
}
