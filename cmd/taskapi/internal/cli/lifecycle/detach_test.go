package lifecycle

import (
	"errors"
	"os"
	"slices"
	"testing"

	"taskapi/allocrunner/datadir"
	"taskapi/cmd/taskapi/internal/cli/base"
)

// TestMain ends a process that background has started: it would start the tests again, and they the next one.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, detachedFlag) {
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestBackgroundOfARemovedAllocation: a takeover, or a stop in the background, of an allocation that another process
// has removed starts nothing and does not make its directory again.
func TestBackgroundOfARemovedAllocation(t *testing.T) {
	d := datadir.Dir(t.TempDir())
	target := base.Target{Layout: base.Layout{Dir: d}, ID: "115ef685-6b9e-3eaf-e74b-6b04f094ebca"}
	err := background(t.Context(), target, base.Environment{}, []string{"takeover"}, nil, nil)
	if _, removed := errors.AsType[*datadir.RemovedError](err); !removed {
		t.Errorf("got %v, want a RemovedError", err)
	}
	if _, err := os.Stat(d.Allocs()); err == nil {
		t.Error("there is a directory")
	}
}
