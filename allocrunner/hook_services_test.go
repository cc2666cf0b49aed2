package allocrunner

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/checks"
	"taskapi/allocrunner/internal/registration"
	"taskapi/allocrunner/internal/services"
)

// fakeServed is an allocation with a check of its group, and no tasks.
type fakeServed struct {
	alloc   *api.Allocation
	changed chan int // how many results there are
}

func (f fakeServed) services(alloc *api.Allocation) (services.Owned, error) {
	return services.Resolver{}.ResolveAll(alloc, "dc1")
}
func (f fakeServed) checkConfig(alloc *api.Allocation) checks.Config {
	return checks.Config{Alloc: alloc, Logger: slog.New(slog.DiscardHandler)}
}
func (f fakeServed) checkedTasks(string) []checkedTask            { return nil }
func (f fakeServed) preTaskRestart(context.Context)               {}
func (f fakeServed) checksChanged(results api.AllocCheckStatuses) { f.changed <- len(results) }

// TestAPoststopTaskBeginsNoChecks of the group, whose services have left, also when these have requested a restart just before.
func TestAPoststopTaskBeginsNoChecks(t *testing.T) {
	t.Parallel()
	group := api.NewTaskGroup("g", 1)
	group.Services = []*api.Service{{Name: "s", Provider: "nomad", PortLabel: "1", Checks: []api.ServiceCheck{
		{Name: "c", Type: "tcp", Interval: time.Hour, Timeout: time.Second},
	}}}
	job := &api.Job{ID: new("job"), Name: new("job"), TaskGroups: []*api.TaskGroup{group}}
	job.Canonicalize()
	alloc := &api.Allocation{ID: "115ef685-6b9e-3eaf-e74b-6b04f094ebca", Name: "job.g[0]", Job: job, TaskGroup: "g"}
	fake := fakeServed{alloc, make(chan int, 100)}
	h := servicesHook{alloc: fake, logger: slog.New(slog.DiscardHandler), registrar: registration.New(alloc.ID, nil)}
	if err := h.Prerun(t.Context(), &interfaces.RunnerPrerunRequest{Alloc: alloc}); err != nil {
		t.Fatal(err)
	}
	defer h.Shutdown()
	for <-fake.changed != 1 { // until they run
	}
	h.restart("", "unhealthy")
	h.groupEnded(true)
	started := func(task *taskServices) {
		if err := task.Poststart(t.Context(), nil); err != nil {
			t.Error(err)
		}
	}
	started(&taskServices{services: &h, task: "last"})
	if got, _ := h.results(); got != nil {
		t.Errorf("the services have checks without a task: %v", got)
	}
	h.groupEnded(false)
	started(&taskServices{services: &h, task: "main", serves: true})
	if got, _ := h.results(); len(got) != 1 {
		t.Errorf("got %d checks after the start of a task that serves, want 1", len(got))
	}
}
