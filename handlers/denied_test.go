package handlers_test

import (
	"net/http"

	"taskapi/auth"
)

// denied is a denial of the fake authenticator.
func denied(status int, body string) *auth.Denial {
	denial := &auth.Denial{Status: status, Body: body, Reason: auth.NoToken}
	switch {
	case body == "Permission denied":
		denial.Reason = auth.MissingCapability
	case status == http.StatusForbidden:
		denial.Reason = auth.BadSignature
	}
	return denial
}
