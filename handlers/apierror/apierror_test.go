package apierror_test

import (
	"errors"
	"fmt"
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

func TestReword(t *testing.T) {
	cause := errors.New("no such task")
	found := fmt.Errorf("restart: %w", apierror.New(apierror.NoTask).Because(cause))
	got, ok := errors.AsType[*apierror.Error](apierror.Reword(found, apierror.NoTask, apierror.NoTaskRunner, "100%"))
	if !ok || got.Message != "Could not find task runner for task: 100%" || !errors.Is(got, cause) {
		t.Errorf("reworded: %v", got)
	}
	for _, other := range []error{nil, cause, apierror.New(apierror.TaskNotRunning)} {
		if got := apierror.Reword(other, apierror.NoTask, apierror.NoTaskRunner, "x"); !errors.Is(got, other) {
			t.Errorf("%v became %v", other, got)
		}
	}
}
