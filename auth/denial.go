package auth

import (
	"net/http"
	"time"
)

// Denial is the error of a request that was refused. It is shared and never changed. The caller answers with the status
// of the Reason, 400, 401, 403 or 429, and with words that don't tell the reason: see handlers/apierror.
type Denial struct {
	Reason     Reason
	RetryAfter time.Duration // for 429: how long to wait, from the moment when the Denial was returned; otherwise zero

	// Needs are the capabilities of which the caller lacks each one, if the answer may name them.
	Needs CapabilitySet
	// Astray means that the token is good, and that of an operator on another socket. The answer may say so.
	Astray bool
}

// denials holds a Denial for every reason, so that a refusal allocates none.
var denials = func() (all [reasons]Denial) {
	for r := range all {
		all[r].Reason = Reason(r)
	}
	return all
}()

// Error returns the reason's name.
func (d *Denial) Error() string { return d.Reason.String() }

// refuse counts, audits and logs a refusal, delays it if the caller is over a limit, and returns it.
func (a *Authenticator) refuse(r *http.Request, owner Owner, peer Peer, v verdict) *Denial {
	a.counters.refused[v.why].Add(1)
	a.config.Refusals.add(owner, Refusal{Reason: v.why.String()})
	if a.config.Auditor != nil {
		a.config.Auditor.Audit(NewRecord(r.Method, r.URL.EscapedPath(), owner, peer, v.from, 0).Refused(v.why))
	}
	if due(&a.logs) {
		a.config.Logger.WarnContext(r.Context(), "request refused", "alloc", owner.AllocationID, "task", owner.Task,
			"uid", peer.UID, "pid", peer.PID, "reason", v.why.String(), "suppressed", a.suppressed.Swap(0))
	} else {
		a.suppressed.Add(1)
	}
	if v.limited() || !a.limits.refusals.Allow(a.config.Now(), callerOf(owner, peer)).OK {
		a.delay(r)
	}
	switch {
	case v.limited():
		return &Denial{Reason: v.why, RetryAfter: a.limits.lookups.Peek(a.config.Now(), callerOf(owner, peer)).RetryAfter}
	case v.from.Operator() && (v.why == WrongSocket || v.why == UnknownAllocation && !v.from.MaySee(owner.AllocationID)):
		return &Denial{Reason: v.why, Astray: true}
	case v.why == RequestLimited:
		return &Denial{Reason: v.why, RetryAfter: a.limits.requests.Peek(a.config.Now(), owner.anyUser()).RetryAfter}
	}
	return &denials[v.why]
}

// delay makes the caller wait, and reports whether it did.
func (a *Authenticator) delay(r *http.Request) bool {
	if !a.limits.tarpit.Delay(r.Context()) {
		return false
	}
	a.counters.delayed.Add(1)
	return true
}
