package auth

import (
	"net/http"
	"time"
)

// refuse counts, audits and logs a refusal, holds it back where that is due, and returns it. The principal is nil unless the
// token is good.
func (d *Door) refuse(r *http.Request, p *Principal, owner Owner, peer Peer, v verdict) *Denial {
	d.counters.refused[v.why].Add(1)
	now := time.Now()
	d.auditDenial(r, p, owner, peer, v.why, now)
	if suppressed, ok := d.logs.pass(now, logsPerSecond); ok {
		d.logger.WarnContext(r.Context(), "request refused", "alloc", owner.AllocationID, "task", owner.Task,
			"uid", peer.UID, "pid", peer.PID, "reason", v.why.String(), "suppressed", suppressed)
	}
	if v.limited() { // held already
		denial := denials[v.why]
		denial.RetryAfter = v.retryAfter
		return &denial
	}
	if d.limits.slow(r.Context(), caller{owner, peer.UID}) {
		d.counters.held.Add(1)
	}
	return &denials[v.why]
}

// auditDenial writes a refusal into the audit log, unless there were too many of its kind.
func (d *Door) auditDenial(r *http.Request, p *Principal, owner Owner, peer Peer, why Reason, now time.Time) {
	if d.auditor == nil {
		return
	}
	suppressed, ok := d.audits[why].pass(now, auditsPerSecond)
	if !ok {
		d.counters.auditDropped.Add(1)
		return
	}
	record := NewRecord(r.Method, r.URL.EscapedPath(), owner, peer, p, meanings[why].status)
	record.Outcome, record.Reason, record.Suppressed = Denied, why.String(), suppressed
	d.auditor.Audit(record)
}
