package apierror_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskapi/auth"
	"taskapi/handlers/apierror"
)

func TestWriteDenial(t *testing.T) {
	for _, test := range []struct {
		denial auth.Denial
		words  string
		want   http.Header
	}{
		{auth.Denial{Reason: auth.NoToken}, "Unauthorized", http.Header{"Www-Authenticate": {"Bearer"}}},
		{auth.Denial{Reason: auth.BadSignature}, "Forbidden", http.Header{}},
		{auth.Denial{Reason: auth.MissingCapability}, "Permission denied", http.Header{}},
		{auth.Denial{Reason: auth.MissingCapability, Needs: auth.CapabilitySet(auth.ReadJob).With(auth.NodeRead)},
			"Permission denied: needs read-job or node:read", http.Header{}},
		{auth.Denial{Reason: auth.WrongSocket, Astray: true}, "Forbidden: this operator's token is for another socket",
			http.Header{}},
		{auth.Denial{Reason: auth.CallerLimited, RetryAfter: 1}, "Too many failed authentication attempts",
			http.Header{"Retry-After": {"1"}}},
		{auth.Denial{Reason: auth.GlobalLimited, RetryAfter: 2 * time.Second}, "Too many failed authentication attempts",
			http.Header{"Retry-After": {"2"}}},
		{auth.Denial{Reason: auth.RequestLimited, RetryAfter: 2*time.Second + 1}, "Too many requests",
			http.Header{"Retry-After": {"3"}}},
		{auth.Denial{Reason: auth.RequestLimited}, "Too many requests", http.Header{"Retry-After": {"1"}}},
	} {
		w := httptest.NewRecorder()
		status := apierror.WriteDenial(w, &test.denial)
		test.want.Set("Content-Type", "text/plain; charset=utf-8")
		test.want.Set("X-Content-Type-Options", "nosniff")
		if diff := cmp.Diff(test.want, w.Header()); diff != "" || w.Code != status || w.Body.String() != test.words {
			t.Errorf("%+v is %d %q %s", test.denial, w.Code, w.Body, diff)
		}
	}
}

// TestStatusOfDenials: a client gets the status that auth writes into the audit log, and it blames the caller.
func TestStatusOfDenials(t *testing.T) {
	for _, why := range auth.Reasons() {
		w := httptest.NewRecorder()
		got := apierror.WriteDenial(w, &auth.Denial{Reason: why})
		if got != why.Status() || got < 400 || got >= 500 {
			t.Errorf("%s: the client gets %d, the audit log %d", why, got, why.Status())
		}
	}
}
