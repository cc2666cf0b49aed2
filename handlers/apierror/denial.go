package apierror

import (
	"cmp"
	"net/http"

	"taskapi/auth"
)

// Forbidden are the words for a token that is not valid. They don't say why.
const Forbidden = "Forbidden"

// wordsOf returns the words of the answer to a request that auth refused for the reason.
func wordsOf(why auth.Reason) string {
	switch why {
	case auth.NoToken:
		return "Unauthorized"
	case auth.AmbiguousToken:
		return "Ambiguous credentials: send one token, in X-Nomad-Token or in Authorization: Bearer"
	case auth.CallerLimited, auth.GlobalLimited:
		return "Too many failed authentication attempts"
	case auth.RequestLimited:
		return "Too many requests"
	case auth.MissingCapability:
		return "Permission denied"
	}
	return Forbidden
}

// WriteDenial answers a request that auth refused, and returns the status. A 401 has WWW-Authenticate; a 429 has
// Retry-After.
func WriteDenial(w http.ResponseWriter, denial *auth.Denial) int {
	status := cmp.Or(denial.Reason.Status(), http.StatusInternalServerError)
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	switch status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	case http.StatusTooManyRequests:
		h.Set("Retry-After", RetryAfter(denial.RetryAfter))
	}
	words := wordsOf(denial.Reason)
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
