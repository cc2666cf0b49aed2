package auth

import (
	"net/http"
	"strconv"
	"time"
)

// Reason is why a request was refused, for counters, logs and the audit; the client never reads it. The set is closed.
type Reason uint8

const (
	// NotRefused is the reason of a request that was let in.
	NotRefused Reason = iota
	// NoToken: neither header holds a token.
	NoToken
	// AmbiguousToken: a header came twice, or the two headers differ.
	AmbiguousToken
	// FromBrowser: the request carries Origin or Referer.
	FromBrowser
	// TooLong: the token is longer than MaxTokenBytes.
	TooLong
	// Malformed: the token has not the form or the header of one of ours; no key was looked up.
	Malformed
	// UnknownKey: no trusted key has the token's key ID.
	UnknownKey
	// BadSignature: the key did not sign this token.
	BadSignature
	// BadClaims: signed, and its claims are not what a token must say.
	BadClaims
	// WrongAudience: signed for somebody else.
	WrongAudience
	// Expired: past its exp.
	Expired
	// NotYet: before its nbf.
	NotYet
	// KeyRemoved: signed by a key that is trusted no longer.
	KeyRemoved
	// UnknownAllocation: of an allocation that is not here.
	UnknownAllocation
	// TerminalAllocation: of an allocation that has ended.
	TerminalAllocation
	// WrongSocket: good, and not for the owner of this socket.
	WrongSocket
	// CallerLimited: the caller had too many failed look-ups on this socket.
	CallerLimited
	// GlobalLimited: all callers together had too many.
	GlobalLimited
	// GaveUp: the caller went away before its token was verified.
	GaveUp
	// MissingCapability: known, and not allowed to do that.
	MissingCapability
	// NoPeer: the kernel's word on who is at the other end is missing or the socket has no owner.
	NoPeer

	reasons // how many there are
)

// verdict is what a reason means on the wire and for the limits.
type verdict struct {
	name   string // in counters, logs and the audit
	status int
	body   string
}

// The bodies that clients match on; they are Nomad's.
const (
	unauthorized     = "Unauthorized"
	forbidden        = "Forbidden"
	permissionDenied = "Permission denied"
	tooMany          = "Too many failed authentication attempts"
	ambiguous        = "Ambiguous credentials: send one token, in X-Nomad-Token or in Authorization: Bearer"
)

var verdicts = [reasons]verdict{
	NotRefused:         {"none", http.StatusOK, ""},
	NoToken:            {"no-token", http.StatusUnauthorized, unauthorized},
	AmbiguousToken:     {"ambiguous-token", http.StatusBadRequest, ambiguous},
	FromBrowser:        {"from-browser", http.StatusForbidden, forbidden},
	TooLong:            {"too-long", http.StatusForbidden, forbidden},
	Malformed:          {"malformed", http.StatusForbidden, forbidden},
	UnknownKey:         {"unknown-key", http.StatusForbidden, forbidden},
	BadSignature:       {"bad-signature", http.StatusForbidden, forbidden},
	BadClaims:          {"bad-claims", http.StatusForbidden, forbidden},
	WrongAudience:      {"wrong-audience", http.StatusForbidden, forbidden},
	Expired:            {"expired", http.StatusForbidden, forbidden},
	NotYet:             {"not-yet-valid", http.StatusForbidden, forbidden},
	KeyRemoved:         {"key-removed", http.StatusForbidden, forbidden},
	UnknownAllocation:  {"unknown-allocation", http.StatusForbidden, forbidden},
	TerminalAllocation: {"terminal-allocation", http.StatusForbidden, forbidden},
	WrongSocket:        {"wrong-socket", http.StatusForbidden, forbidden},
	CallerLimited:      {"limited-caller", http.StatusTooManyRequests, tooMany},
	GlobalLimited:      {"limited-global", http.StatusTooManyRequests, tooMany},
	GaveUp:             {"gave-up", http.StatusForbidden, forbidden},
	MissingCapability:  {"missing-capability", http.StatusForbidden, permissionDenied},
	NoPeer:             {"no-peer", http.StatusForbidden, forbidden},
}

// String is the reason's name in counters, logs and the audit.
func (r Reason) String() string {
	if r >= reasons {
		return "reason(" + strconv.Itoa(int(r)) + ")"
	}
	return verdicts[r].name
}

// Denial is a refusal: what the client gets, and why. It is shared and never changed.
type Denial struct {
	Status     int           // 400, 401, 403 or 429
	Body       string        // the answer, without a line end
	RetryAfter time.Duration // with 429: how long to wait, from the moment the Denial was returned; otherwise zero
	Reason     Reason
}

// denials holds one Denial for every reason, so that refusing costs no memory.
var denials = func() (all [reasons]Denial) {
	for r, v := range verdicts {
		all[r] = Denial{Status: v.status, Body: v.body, Reason: Reason(r)}
	}
	return all
}()

// Error is the reason's name: a Denial can be carried as an error, and errors.As finds it.
func (d *Denial) Error() string { return d.Reason.String() }

// Write answers the request: plain text, WWW-Authenticate on 401, Retry-After in whole seconds on 429.
func (d *Denial) Write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	if d.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if d.Status == http.StatusTooManyRequests {
		h.Set("Retry-After", strconv.Itoa(d.retryAfterSeconds()))
	}
	w.WriteHeader(d.Status)
	_, _ = w.Write([]byte(d.Body)) // whoever does not read a refusal has lost nothing
}

// retryAfterSeconds is the wait in the unit of RFC 9110 section 10.2.3, rounded up so that it is never too short, at least 1.
func (d *Denial) retryAfterSeconds() int {
	return max(1, int((d.RetryAfter+time.Second-1)/time.Second))
}
