package apierror_test

import (
	"net/http"
	"testing"

	"taskapi/handlers/apierror"
)

// TestTable: every kind has a status that fits its place in the list, and words; no two kinds without verbs share both.
func TestTable(t *testing.T) {
	for kind := apierror.Invalid; kind < apierror.Kinds; kind++ {
		if status := kind.Status(); status < 400 || status > 503 || http.StatusText(status) == "" || status == 500 {
			t.Errorf("kind %d has the status %d", kind, status)
		}
		if kind.Words() == "" {
			t.Errorf("kind %d has no words", kind)
		}
	}
	for _, kind := range []apierror.Kind{apierror.Internal, apierror.Kinds, 255} {
		if got := apierror.New(kind); kind.Status() != 500 || got.Message != "internal error" {
			t.Errorf("kind %d is %d %q, want a bare 500", kind, kind.Status(), got.Message)
		}
	}
}
