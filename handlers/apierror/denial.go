package apierror

import (
	"net/http"

	"taskapi/auth"
)

// OfDenial returns the Kind of a request that auth refused for the reason. It is the one place where a reason becomes
// words.
func OfDenial(why auth.Reason) Kind {
	switch why {
	case auth.NotRefused:
		return Internal
	case auth.NoToken:
		return Unauthorized
	case auth.AmbiguousToken:
		return AmbiguousCredentials
	case auth.CallerLimited, auth.GlobalLimited:
		return TooManyFailures
	case auth.RequestLimited:
		return TooManyRequests
	case auth.MissingCapability:
		return PermissionDenied
	}
	return Forbidden // an answer does not say why a token is not valid
}

// WriteDenial answers a request that auth refused, and returns the status. A 401 has WWW-Authenticate; a 429 has
// Retry-After.
func WriteDenial(w http.ResponseWriter, denial *auth.Denial) int {
	kind := OfDenial(denial.Reason)
	status := kind.Status()
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	switch status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	case http.StatusTooManyRequests:
		h.Set("Retry-After", RetryAfter(denial.RetryAfter))
	}
	words := kind.Words()
	switch { // Nomad's words come first: clients look for them
	case denial.Needs != 0:
		words += ": needs " + denial.Needs.AnyOf()
	case denial.Astray:
		words += ": this operator's token is for another socket"
	}
	w.WriteHeader(status)
	_, _ = w.Write([]byte(words)) // a client that does not read a refusal loses nothing
	return status
}
