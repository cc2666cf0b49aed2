package auth

import (
	"net/http"
	"strconv"

	"taskapi/identity"
)

// Reason is why a request was refused, for counters, logs and the audit; the client never reads it. The set is closed.
type Reason uint8

const (
	// NotRefused means that the request was let in.
	NotRefused Reason = iota

	// Faults of the credentials in the headers.

	NoToken        // neither header holds a token
	AmbiguousToken // a header came twice, or the two differ
	FromBrowser    // the request carries Origin or Referer

	// Faults of the token: the reasons of package identity, under the same names.

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

	// Faults of a token with a good signature and good static claims.

	KeyRemoved         // its key is not trusted any more
	Revoked            // it was revoked
	UnknownAllocation  // its allocation is not here
	EarlierLife        // it was issued for another life of its allocation, or for no life
	WrongClaims        // its namespace, job, group or task is not that of its allocation
	TerminalAllocation // its allocation has ended
	WrongSocket        // it is not for the owner of this socket

	// Faults of the caller.

	WrongPeer         // a process of a user that this socket is not for
	UnknownSecret     // a secret on the operator's socket that stands for no token
	CallerLimited     // too many failed look-ups on this socket
	GlobalLimited     // too many of all peers together
	RequestLimited    // too many good requests on this socket
	MissingCapability // the token is good, and lacks the capability

	reasons // how many there are
)

// meaning is a reason's name and the HTTP status that a client gets. The words of the answer are in handlers/apierror.
type meaning struct {
	name   string // in counters, logs and the audit
	status int
}

var meanings = [reasons]meaning{
	NotRefused:         {"none", 0},
	NoToken:            {"no_token", http.StatusUnauthorized},
	AmbiguousToken:     {"ambiguous_token", http.StatusBadRequest},
	FromBrowser:        {"from_browser", http.StatusForbidden},
	TooLong:            {string(identity.ReasonTooLong), http.StatusForbidden},
	Malformed:          {string(identity.ReasonMalformed), http.StatusForbidden},
	BadHeader:          {string(identity.ReasonHeader), http.StatusForbidden},
	BadAlgorithm:       {string(identity.ReasonAlgorithm), http.StatusForbidden},
	BadKeyID:           {string(identity.ReasonKeyID), http.StatusForbidden},
	BadClaims:          {string(identity.ReasonClaims), http.StatusForbidden},
	UnknownKey:         {string(identity.ReasonUnknownKey), http.StatusForbidden},
	BadSignature:       {string(identity.ReasonSignature), http.StatusForbidden},
	Expired:            {string(identity.ReasonExpired), http.StatusForbidden},
	NotYetValid:        {string(identity.ReasonNotYetValid), http.StatusForbidden},
	BadLifetime:        {string(identity.ReasonLifetime), http.StatusForbidden},
	WrongAudience:      {string(identity.ReasonAudience), http.StatusForbidden},
	WrongIssuer:        {string(identity.ReasonIssuer), http.StatusForbidden},
	WrongRole:          {string(identity.ReasonRole), http.StatusForbidden},
	KeyRemoved:         {"key_removed", http.StatusForbidden},
	Revoked:            {"revoked", http.StatusForbidden},
	UnknownAllocation:  {"unknown_allocation", http.StatusForbidden},
	EarlierLife:        {"earlier_life", http.StatusForbidden},
	WrongClaims:        {"wrong_claims", http.StatusForbidden},
	TerminalAllocation: {"terminal_allocation", http.StatusForbidden},
	WrongSocket:        {"wrong_socket", http.StatusForbidden},
	WrongPeer:          {"wrong_peer", http.StatusForbidden},
	UnknownSecret:      {"unknown_secret", http.StatusForbidden},
	CallerLimited:      {"limited_caller", http.StatusTooManyRequests},
	GlobalLimited:      {"limited_global", http.StatusTooManyRequests},
	RequestLimited:     {"limited_requests", http.StatusTooManyRequests},
	MissingCapability:  {"missing_capability", http.StatusForbidden},
}

// ReasonOf returns the reason for an error of package identity. It is Malformed for another error.
func ReasonOf(err error) Reason {
	why, _ := identity.ReasonOf(err)
	for r, v := range meanings {
		if v.name == string(why) {
			return Reason(r)
		}
	}
	return Malformed
}

// String returns the reason's name in counters, logs and the audit.
func (r Reason) String() string {
	if r >= reasons {
		return "reason(" + strconv.Itoa(int(r)) + ")"
	}
	return meanings[r].name
}

// Status returns the HTTP status with which the reason is answered, 0 for NotRefused.
func (r Reason) Status() int {
	if r >= reasons {
		return 0
	}
	return meanings[r].status
}
