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
		status int
		words  string
		want   http.Header
	}{
		{auth.Denial{Reason: auth.AmbiguousToken}, 400,
			"Ambiguous credentials: send one token, in X-Nomad-Token or in Authorization: Bearer", http.Header{}},
		{auth.Denial{Reason: auth.NoToken}, 401, "Unauthorized", http.Header{"Www-Authenticate": {"Bearer"}}},
		{auth.Denial{Reason: auth.BadSignature}, 403, "Forbidden", http.Header{}},
		{auth.Denial{Reason: auth.MissingCapability}, 403, "Permission denied", http.Header{}},
		{auth.Denial{Reason: auth.MissingCapability, Needs: auth.CapabilitySet(auth.ReadJob).With(auth.NodeRead)},
			403, "Permission denied: needs read-job or node:read", http.Header{}},
		{auth.Denial{Reason: auth.WrongSocket, Astray: true}, 403, "Forbidden: this operator's token is for another socket",
			http.Header{}},
		{auth.Denial{Reason: auth.CallerLimited, RetryAfter: 1}, 429, "Too many failed authentication attempts",
			http.Header{"Retry-After": {"1"}}},
		{auth.Denial{Reason: auth.GlobalLimited, RetryAfter: 2 * time.Second}, 429, "Too many failed authentication attempts",
			http.Header{"Retry-After": {"2"}}},
		{auth.Denial{Reason: auth.RequestLimited, RetryAfter: 2*time.Second + 1}, 429, "Too many requests",
			http.Header{"Retry-After": {"3"}}},
		{auth.Denial{}, 500, "Forbidden", http.Header{}},
		{auth.Denial{Reason: auth.RequestLimited}, 429, "Too many requests", http.Header{"Retry-After": {"1"}}},
	} {
		w := httptest.NewRecorder()
		status := apierror.WriteDenial(w, &test.denial)
		test.want.Set("Content-Type", "text/plain; charset=utf-8")
		test.want.Set("X-Content-Type-Options", "nosniff")
		if diff := cmp.Diff(test.want, w.Header()); diff != "" || status != test.status || w.Code != status ||
			w.Body.String() != test.words {
			t.Errorf("%+v is %d %q %s", test.denial, w.Code, w.Body, diff)
		}
	}
}
