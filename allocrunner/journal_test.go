package allocrunner_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestASetUpThatFailsIsWritten with the reason in every task's state, as readers see it.
func TestASetUpThatFailsIsWritten(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	must.OK(t, os.WriteFile(file, nil, 0o600))
	for name, edit := range map[string]func(*api.TaskGroup, *config){
		"a file is in the way": func(_ *api.TaskGroup, c *config) { c.Dir = filepath.Join(file, "alloc") },
		"a hook refuses":       func(_ *api.TaskGroup, c *config) { c.Hooks = []interfaces.RunnerHook{refusing{}} },
	} {
		r := runWith(t, "batch", edit, shell("a", "exit 0"), shell("b", "exit 0"))
		if err := r.end(); err == nil || errors.Is(err, allocrunner.ErrFailed) || !r.runner.Terminal() {
			t.Errorf("%s: got %v, over %v; want the reason", name, err, r.runner.Terminal())
		}
		saved, shown := r.saved(), r.runner.Alloc()
		if !saved.Terminal || saved.Alloc.ClientStatus != "failed" ||
			saved.Alloc.ClientDescription != shown.ClientDescription {
			t.Errorf("%s: written: terminal %v, %s (%s); want it terminal, and failed with %q", name, saved.Terminal,
				saved.Alloc.ClientStatus, saved.Alloc.ClientDescription, shown.ClientDescription)
		}
		same.As(t, shown.TaskStates, saved.Alloc.TaskStates, name, ": task states, shown and written")
		for task, is := range saved.Tasks {
			if got := types(is.State); is.Phase != "dead" || !is.State.Failed || len(got) != 1 || got[0] != "Setup Failure" {
				t.Errorf("%s: %s is %s with events %q, failed %v; want a dead one with Setup Failure", name, task, is.Phase,
					got, is.State.Failed)
			}
		}
	}
}

func healthKnown(a *api.Allocation) bool {
	return a.DeploymentStatus != nil && a.DeploymentStatus.Healthy != nil
}
