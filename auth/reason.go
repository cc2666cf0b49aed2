package auth

import (
	"net/http"
	"strconv"
	"time"

	"taskapi/identity"
)

// Reason is why a request was refused, for counters, logs and the audit; the client never reads it. The set is closed.
type Reason uint8

const (
	// NotRefused is the reason of a request that was let in.
	NotRefused Reason = iota

	// Of the credentials in the headers.

	NoToken        // neither header holds a token
	AmbiguousToken // a header came twice, or the two differ
	FromBrowser    // the request carries Origin or Referer

	// Of the token: those of package identity, under the same names.

	TooLong
	Malformed
	BadHeader
	BadAlgorithm
	BadKeyID
	BadClaims
	UnknownKey
	BadSignature
	Expired
	NotYetValid
	BadLifetime
	WrongAudience
	WrongIssuer
	WrongRole

	// Of what a good token meets here.

	KeyRemoved         // its key is trusted no longer
	UnknownAllocation  // its allocation is not here
	EarlierLife        // it was issued for another life of its allocation, or for none
	WrongClaims        // its namespace, job, group or task is not that of its allocation
	TerminalAllocation // its allocation has ended
	WrongSocket        // it is not for the owner of this socket

	// Of the caller.

	WrongPeer         // a process of a user that this socket is not for
	CallerLimited     // too many failed look-ups on this socket
	GlobalLimited     // too many of all peers together
	MissingCapability // known, and not allowed to do that

	reasons // how many there are
)

// meaning is what a reason is called and what a client gets.
type meaning struct {
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

var meanings = [reasons]meaning{
	NotRefused:         {"none", http.StatusOK, ""},
	NoToken:            {"no_token", http.StatusUnauthorized, unauthorized},
	AmbiguousToken:     {"ambiguous_token", http.StatusBadRequest, ambiguous},
	FromBrowser:        {"from_browser", http.StatusForbidden, forbidden},
	TooLong:            {string(identity.ReasonTooLong), http.StatusForbidden, forbidden},
	Malformed:          {string(identity.ReasonMalformed), http.StatusForbidden, forbidden},
	BadHeader:          {string(identity.ReasonHeader), http.StatusForbidden, forbidden},
	BadAlgorithm:       {string(identity.ReasonAlgorithm), http.StatusForbidden, forbidden},
	BadKeyID:           {string(identity.ReasonKeyID), http.StatusForbidden, forbidden},
	BadClaims:          {string(identity.ReasonClaims), http.StatusForbidden, forbidden},
	UnknownKey:         {string(identity.ReasonUnknownKey), http.StatusForbidden, forbidden},
	BadSignature:       {string(identity.ReasonSignature), http.StatusForbidden, forbidden},
	Expired:            {string(identity.ReasonExpired), http.StatusForbidden, forbidden},
	NotYetValid:        {string(identity.ReasonNotYetValid), http.StatusForbidden, forbidden},
	BadLifetime:        {string(identity.ReasonLifetime), http.StatusForbidden, forbidden},
	WrongAudience:      {string(identity.ReasonAudience), http.StatusForbidden, forbidden},
	WrongIssuer:        {string(identity.ReasonIssuer), http.StatusForbidden, forbidden},
	WrongRole:          {string(identity.ReasonRole), http.StatusForbidden, forbidden},
	KeyRemoved:         {"key_removed", http.StatusForbidden, forbidden},
	UnknownAllocation:  {"unknown_allocation", http.StatusForbidden, forbidden},
	EarlierLife:        {"earlier_life", http.StatusForbidden, forbidden},
	WrongClaims:        {"wrong_claims", http.StatusForbidden, forbidden},
	TerminalAllocation: {"terminal_allocation", http.StatusForbidden, forbidden},
	WrongSocket:        {"wrong_socket", http.StatusForbidden, forbidden},
	WrongPeer:          {"wrong_peer", http.StatusForbidden, forbidden},
	CallerLimited:      {"limited_caller", http.StatusTooManyRequests, tooMany},
	GlobalLimited:      {"limited_global", http.StatusTooManyRequests, tooMany},
	MissingCapability:  {"missing_capability", http.StatusForbidden, permissionDenied},
}

// tokenReason is the reason of an error of package identity. One that nobody knows is Malformed: refused it is in any case.
func tokenReason(err error) Reason {
	why, _ := identity.ReasonOf(err)
	for r, v := range meanings {
		if v.name == string(why) {
			return Reason(r)
		}
	}
	return Malformed
}

// String is the reason's name in counters, logs and the audit.
func (r Reason) String() string {
	if r >= reasons {
		return "reason(" + strconv.Itoa(int(r)) + ")"
	}
	return meanings[r].name
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
	for r, v := range meanings {
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
