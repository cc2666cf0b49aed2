package apierror_test

import (
	"net/http"
	"testing"

	"taskapi/handlers/apierror"
)

// TestKinds: every kind has a status of an error, and words; no two are equal.
func TestKinds(t *testing.T) {
	known := map[apierror.Kind]bool{}
	for _, kind := range apierror.Kinds() {
		if status := kind.Status(); status < 400 || status > 503 || http.StatusText(status) == "" || status == 500 {
			t.Errorf("%q has the status %d", kind.Words(), status)
		}
		if kind.Words() == "" || known[kind] {
			t.Errorf("%d %q has no words, or those of another kind", kind.Status(), kind.Words())
		}
		known[kind] = true
	}
	got := apierror.New(apierror.Internal)
	if len(known) == 0 || got.Kind.Status() != 500 || got.Message != "internal error" {
		t.Errorf("of %d kinds, Internal is %d %q, want a bare 500", len(known), got.Kind.Status(), got.Message)
	}
}
