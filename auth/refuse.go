package auth

import (
	"net/http"
	"time"
)

// refuse counts, audits and logs a refusal, holds it back where that is due, and returns it.
func (a *Authenticator) refuse(r *http.Request, owner Owner, peer Peer, v verdict) *Denial {
	a.counters.refused[v.why].Add(1)
	now := time.Now()
	a.auditDenial(r, owner, peer, v)
	if suppressed, ok := a.logs.pass(now, logsPerSecond); ok {
		a.logger.WarnContext(r.Context(), "request refused", "alloc", owner.AllocationID, "task", owner.Task,
			"uid", peer.UID, "pid", peer.PID, "reason", v.why.String(), "suppressed", suppressed)
	}
	if v.limited() || !a.limits.refusals.Allow(now, owner).OK {
		a.hold(r)
	}
	if !v.limited() {
		return &denials[v.why]
	}
	denial := denials[v.why]
	denial.RetryAfter = a.limits.lookups.Peek(time.Now(), owner).RetryAfter
	return &denial
}

// hold lets the caller wait, and reports whether it did.
func (a *Authenticator) hold(r *http.Request) bool {
	if !a.limits.holder.Hold(r.Context()) {
		return false
	}
	a.counters.held.Add(1)
	return true
}

// auditDenial writes a refusal into the audit log.
func (a *Authenticator) auditDenial(r *http.Request, owner Owner, peer Peer, v verdict) {
	if a.auditor == nil {
		return
	}
	record := NewRecord(r.Method, r.URL.EscapedPath(), owner, peer, v.from, meanings[v.why].kind.Status())
	record.Outcome, record.Reason = Denied, v.why.String()
	a.auditor.Audit(record)
}
