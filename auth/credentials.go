package auth

import (
	"net/http"

	"taskapi/identity"
)

// bearer is the scheme of RFC 6750, in lower case.
const bearer = "bearer"

// credentials returns the one token of a request, or the reason why there is none.
//
// The token comes in X-Nomad-Token, or in Authorization with the scheme Bearer in any case. At most one line of each is
// allowed, and if both hold a token, the two must be equal byte for byte. An empty header holds nothing. An
// Authorization with another scheme holds nothing either, unless it stands beside an X-Nomad-Token: of two credentials
// none may be ignored. A token in the query string is ignored, since it would end up in logs. Browsers send Origin and
// Referer. A page that found a way to the socket must not have its user's rights, so these are refused whatever the
// token.
//
// The map is read directly, under the canonical keys of net/http, since r.Header.Get would cost four canonicalisations.
func credentials(h http.Header) (token string, why Reason) {
	if len(h["Origin"]) != 0 || len(h["Referer"]) != 0 {
		return "", FromBrowser
	}
	own, standard := h["X-Nomad-Token"], h["Authorization"]
	if len(own) > 1 || len(standard) > 1 {
		return "", AmbiguousToken
	}
	if len(own) == 1 {
		token = own[0]
	}
	if len(standard) == 1 && standard[0] != "" {
		second, ok := bearerToken(standard[0])
		switch {
		case token == "":
			token = second
		case second == "" && ok: // "Bearer" and nothing behind it
		case second != token:
			return "", AmbiguousToken
		}
	}
	switch {
	case token == "":
		return "", NoToken
	case len(token) > identity.MaxTokenLength:
		return "", TooLong
	}
	return token, NotRefused
}

// bearerToken returns the text after the scheme Bearer; ok is false for another scheme. One or several spaces end the
// scheme (RFC 9110 section 11.4). Anything odd after them stays in the token, which is then malformed.
func bearerToken(value string) (token string, ok bool) {
	if len(value) < len(bearer) {
		return "", false
	}
	for i := range len(bearer) {
		if value[i]|0x20 != bearer[i] { // every byte of the scheme is a letter; |0x20 is its lower case
			return "", false
		}
	}
	value = value[len(bearer):]
	if value == "" {
		return "", true
	}
	if value[0] != ' ' {
		return "", false
	}
	for value != "" && value[0] == ' ' {
		value = value[1:]
	}
	return value, true
}
