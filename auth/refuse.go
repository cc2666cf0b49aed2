package auth

import (
	"net/http"
	"time"
)

// refuse counts, audits and logs a refusal, holds it back where that is due, and returns it.
func (d *Door) refuse(r *http.Request, owner Owner, peer Peer, v verdict) *Denial {
	d.counters.refused[v.why].Add(1)
	now := time.Now()
	d.auditDenial(r, owner, peer, v)
	if suppressed, ok := d.logs.pass(now, logsPerSecond); ok {
		d.logger.WarnContext(r.Context(), "request refused", "alloc", owner.AllocationID, "task", owner.Task,
			"uid", peer.UID, "pid", peer.PID, "reason", v.why.String(), "suppressed", suppressed)
	}
	if v.limited() || !d.limits.refusals.Allow(now, owner).OK {
		d.hold(r)
	}
	if !v.limited() {
		return &denials[v.why]
	}
	denial := denials[v.why]
	denial.RetryAfter = d.limits.lookups.Peek(time.Now(), owner).RetryAfter
	return &denial
}

// hold lets the caller wait, and reports whether it did.
func (d *Door) hold(r *http.Request) bool {
	if !d.limits.holder.Hold(r.Context()) {
		return false
	}
	d.counters.held.Add(1)
	return true
}

// auditDenial writes a refusal into the audit log.
func (d *Door) auditDenial(r *http.Request, owner Owner, peer Peer, v verdict) {
	if d.auditor == nil {
		return
	}
	record := NewRecord(r.Method, r.URL.EscapedPath(), owner, peer, v.from, meanings[v.why].status)
	record.Outcome, record.Reason = Denied, v.why.String()
	d.auditor.Audit(record)
}
