package handlers

import (
	"taskapi/auth"
)

// reasonFault is the reason in the record of a request that got a fault instead of its route.
const reasonFault = "fault"

// fault answers a request that is to get a fault, and reports whether it did. The record is made before: a fault may last, or end the connection.
func (s *socketServer) fault(r *request) bool {
	if s.config.Fault == nil {
		return false
	}
	status, answer := s.config.Fault(r.Request, s.owner)
	if answer == nil {
		return false
	}
	if s.config.Auditor != nil {
		record := s.recordOf(r, status)
		record.Outcome, record.Reason = auth.Failed, reasonFault
		s.config.Auditor.Audit(record)
	}
	answer.ServeHTTP(r.w, r.Request)
	return true
}
