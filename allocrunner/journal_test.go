package allocrunner_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/polltest"
)

// TestASetUpThatFailsIsWritten with the reason in every task's state, as readers see it.
func TestASetUpThatFailsIsWritten(t *testing.T) {
	t.Parallel()
	state := &memory{}
	r := runWith(t, "batch", func(_ *api.TaskGroup, c *interfaces.Config) {
		c.Hooks, c.State = []interfaces.RunnerHook{refusing{}}, state
	}, shell("a", "exit 0"), shell("b", "exit 0"))
	if err := r.end(); err == nil {
		t.Fatal("the set-up did not fail")
	}
	saved, shown := state.saved(), r.runner.Alloc()
	if !saved.Terminal || saved.Alloc.ClientStatus != "failed" ||
		saved.Alloc.ClientDescription != shown.ClientDescription {
		t.Errorf("written: terminal %v, %s (%s); want it terminal, and failed with %q", saved.Terminal,
			saved.Alloc.ClientStatus, saved.Alloc.ClientDescription, shown.ClientDescription)
	}
	if diff := cmp.Diff(shown.TaskStates, saved.Alloc.TaskStates); diff != "" {
		t.Errorf("task states (-shown +written):\n%s", diff)
	}
	for name, task := range saved.Tasks {
		if got := types(task.State); task.Phase != "dead" || !task.State.Failed || len(got) != 1 ||
			got[0] != "Setup Failure" {
			t.Errorf("%s is %s with events %q, failed %v; want a dead one with Setup Failure", name, task.Phase, got,
				task.State.Failed)
		}
	}
}

// TestWhatReadersSeeIsWritten without anybody's asking for it: here, the health of the allocation.
func TestWhatReadersSeeIsWritten(t *testing.T) {
	t.Parallel()
	state := &memory{}
	r := runWith(t, "service", func(g *api.TaskGroup, c *interfaces.Config) {
		g.Update = &api.UpdateStrategy{
			MaxParallel: new(1), HealthCheck: new("task_states"), MinHealthyTime: new(time.Millisecond), HealthyDeadline: new(
				time.Hour),
		}
		c.State = state
	}, shell("main", "exec sleep 1000"))
	r.until("its health is known", healthKnown)
	if !polltest.Until(func() bool { return healthKnown(state.saved().Alloc) }) {
		t.Fatal("the health of the allocation is not written")
	}
}

func healthKnown(a *api.Allocation) bool {
	return a.DeploymentStatus != nil && a.DeploymentStatus.Healthy != nil
}
