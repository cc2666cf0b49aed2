package allocrunner_test

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
)

// TestMaxRunDuration stops the tasks of a batch job, and leaves those of a service alone.
func TestMaxRunDuration(t *testing.T) {
	t.Parallel()
	var longest time.Duration
	bounded := func(g *api.TaskGroup, _ *interfaces.Config) { g.MaxRunDuration = new(longest) }
	var r *running
	for longest = time.Second; ; longest *= 4 { // a busy machine may not have started the task by then
		r = runWith(t, "batch", bounded, shell("main", "exec sleep 1000"))
		must.OK(t, r.end())
		if !r.runner.Alloc().TaskStates["main"].StartedAt.IsZero() {
			break
		}
	}
	r.wantEvents("main", "Received", "Task Setup", "Started", "Killing", "Terminated", "Killed")
	a := r.runner.Alloc()
	if a.ClientStatus != "complete" || a.DesiredDescription != "allocation exceeded max_run_duration" ||
		event(a, "main", "Killing").DisplayMessage != a.DesiredDescription {
		t.Errorf("it ended as %s, %q: %+v", a.ClientStatus, a.DesiredDescription, event(a, "main", "Killing"))
	}

	longest = time.Second
	service := runWith(t, "service", bounded, shell("main", "exec sleep 1000"))
	service.untilState("main", "running")
	if got := service.runner.Alloc().DesiredStatus; got == api.AllocDesiredStatusStop {
		t.Errorf("the allocation of a service is to %s", got)
	}
}
