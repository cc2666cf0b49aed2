package auth

import (
	"net/http"
	"time"

	"taskapi/handlers/apierror"
)

// Denial is a refusal: what the client gets, and why. It is shared and never changed. As an error it can be found by errors.As.
type Denial struct {
	Kind       apierror.Kind // of 400, 401, 403 or 429
	RetryAfter time.Duration // with 429: how long to wait, from the moment the Denial was returned; otherwise zero
	Reason     Reason
}

// denials holds one Denial for every reason, so that refusing costs no memory.
var denials = func() (all [reasons]Denial) {
	for r, v := range meanings {
		all[r] = Denial{Kind: v.kind, Reason: Reason(r)}
	}
	return all
}()

// Error returns the reason's name.
func (d *Denial) Error() string { return d.Reason.String() }

// Write answers the request: plain text, WWW-Authenticate on 401, Retry-After in whole seconds on 429.
func (d *Denial) Write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	if d.Kind == apierror.Unauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if d.Kind.Status() == http.StatusTooManyRequests {
		h.Set("Retry-After", apierror.RetryAfter(d.RetryAfter))
	}
	w.WriteHeader(d.Kind.Status())
	_, _ = w.Write([]byte(d.Kind.Words())) // a client that does not read a refusal loses nothing
}

// refuse counts, audits and logs a refusal, delays it if the caller is over a limit, and returns it.
func (a *Authenticator) refuse(r *http.Request, owner Owner, peer Peer, v verdict) *Denial {
	a.counters.refused[v.why].Add(1)
	now := a.now()
	a.auditDenial(r, owner, peer, v)
	if suppressed, ok := a.logs.pass(now); ok {
		a.logger.WarnContext(r.Context(), "request refused", "alloc", owner.AllocationID, "task", owner.Task,
			"uid", peer.UID, "pid", peer.PID, "reason", v.why.String(), "suppressed", suppressed)
	}
	if v.limited() || !a.limits.refusals.Allow(now, owner).OK {
		a.delay(r)
	}
	denial := &denials[v.why]
	switch {
	case v.limited():
		denial = &Denial{Kind: denial.Kind, Reason: v.why, RetryAfter: a.limits.lookups.Peek(a.now(), owner).RetryAfter}
	case v.why == RequestLimited:
		denial = &Denial{Kind: denial.Kind, Reason: v.why, RetryAfter: a.limits.requests.Peek(a.now(), owner).RetryAfter}
	}
	return denial
}

// delay makes the caller wait, and reports whether it did.
func (a *Authenticator) delay(r *http.Request) bool {
	if !a.limits.tarpit.Delay(r.Context()) {
		return false
	}
	a.counters.delayed.Add(1)
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
