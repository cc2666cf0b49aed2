package auth

import (
	"strconv"

	"taskapi/handlers/apierror"
	"taskapi/identity"
)

// Reason is why a request was refused, for counters, logs and the audit; the client never reads it. The set is closed.
type Reason uint8

const (
	// NotRefused is that of a request that was let in.
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

	// Of a token with a good signature and good static claims.

	KeyRemoved         // its key is not trusted any more
	Revoked            // it was revoked
	UnknownAllocation  // its allocation is not here
	EarlierLife        // it was issued for another life of its allocation, or for none
	WrongClaims        // its namespace, job, group or task is not that of its allocation
	TerminalAllocation // its allocation has ended
	WrongSocket        // it is not for the owner of this socket

	// Of the caller.

	WrongPeer         // a process of a user that this socket is not for
	UnknownSecret     // a secret on the operator's socket, which stands for no token
	CallerLimited     // too many failed look-ups on this socket
	GlobalLimited     // too many of all peers together
	RequestLimited    // too many good requests on this socket
	MissingCapability // known, and not allowed to do that

	reasons // how many there are
)

// meaning is a reason's name and what a client gets.
type meaning struct {
	name string // in counters, logs and the audit
	kind apierror.Kind
}

var meanings = [reasons]meaning{
	NotRefused:         {"none", 0},
	NoToken:            {"no_token", apierror.Unauthorized},
	AmbiguousToken:     {"ambiguous_token", apierror.AmbiguousCredentials},
	FromBrowser:        {"from_browser", apierror.Forbidden},
	TooLong:            {string(identity.ReasonTooLong), apierror.Forbidden},
	Malformed:          {string(identity.ReasonMalformed), apierror.Forbidden},
	BadHeader:          {string(identity.ReasonHeader), apierror.Forbidden},
	BadAlgorithm:       {string(identity.ReasonAlgorithm), apierror.Forbidden},
	BadKeyID:           {string(identity.ReasonKeyID), apierror.Forbidden},
	BadClaims:          {string(identity.ReasonClaims), apierror.Forbidden},
	UnknownKey:         {string(identity.ReasonUnknownKey), apierror.Forbidden},
	BadSignature:       {string(identity.ReasonSignature), apierror.Forbidden},
	Expired:            {string(identity.ReasonExpired), apierror.Forbidden},
	NotYetValid:        {string(identity.ReasonNotYetValid), apierror.Forbidden},
	BadLifetime:        {string(identity.ReasonLifetime), apierror.Forbidden},
	WrongAudience:      {string(identity.ReasonAudience), apierror.Forbidden},
	WrongIssuer:        {string(identity.ReasonIssuer), apierror.Forbidden},
	WrongRole:          {string(identity.ReasonRole), apierror.Forbidden},
	KeyRemoved:         {"key_removed", apierror.Forbidden},
	Revoked:            {"revoked", apierror.Forbidden},
	UnknownAllocation:  {"unknown_allocation", apierror.Forbidden},
	EarlierLife:        {"earlier_life", apierror.Forbidden},
	WrongClaims:        {"wrong_claims", apierror.Forbidden},
	TerminalAllocation: {"terminal_allocation", apierror.Forbidden},
	WrongSocket:        {"wrong_socket", apierror.Forbidden},
	WrongPeer:          {"wrong_peer", apierror.Forbidden},
	UnknownSecret:      {"unknown_secret", apierror.Forbidden},
	CallerLimited:      {"limited_caller", apierror.TooManyFailures},
	GlobalLimited:      {"limited_global", apierror.TooManyFailures},
	RequestLimited:     {"limited_requests", apierror.TooManyRequests},
	MissingCapability:  {"missing_capability", apierror.PermissionDenied},
}

// tokenReason returns the reason of an error of package identity, Malformed for one that is not in the table.
func tokenReason(err error) Reason {
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
	if r == NotRefused || r >= reasons {
		return 0
	}
	return meanings[r].kind.Status()
}
