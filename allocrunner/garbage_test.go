package allocrunner

import (
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// heavy is an environment that nobody reads.
type heavy struct {
	interfaces.Env
	_ [64]byte // so that it shares its block of memory with nothing else
}

// TestHooksKeepNoRequest: the environment, and the version of the allocation, that a hook is given are garbage when it
// has returned.
func TestHooksKeepNoRequest(t *testing.T) {
	group := api.NewTaskGroup("g", 1)
	group.Update = &api.UpdateStrategy{MinHealthyTime: new(time.Hour), HealthyDeadline: new(2 * time.Hour)}
	group.Services = []*api.Service{{Name: "s", Provider: "nomad", PortLabel: "1", Checks: []api.ServiceCheck{
		{Type: "tcp", Interval: time.Hour, Timeout: time.Second},
	}}}
	group.Tasks = []*api.Task{api.NewTask("t", "raw_exec")}
	job := &api.Job{ID: new("job"), Name: new("job"), Type: new("service"), TaskGroups: []*api.TaskGroup{group}}
	job.Canonicalize()
	version := func() *api.Allocation {
		return &api.Allocation{ID: "115ef685-6b9e-3eaf-e74b-6b04f094ebca", Namespace: "default", JobID: "job", Job: job,
			TaskGroup: "g"}
	}
	r, err := New(interfaces.Config{Alloc: version(), Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	must.OK(t, err)
	defer r.health.Shutdown()
	defer r.serving.Shutdown()

	freed := make(chan string, 100)
	given := map[string]int{}
	env := func(what string) interfaces.Env {
		e := &heavy{}
		given["environment of "+what]++
		runtime.AddCleanup(e, func(what string) { freed <- what }, "environment of "+what)
		return e
	}
	alloc := func(what string) *api.Allocation {
		a := version()
		given["allocation of "+what]++
		runtime.AddCleanup(a, func(what string) { freed <- what }, "allocation of "+what)
		return a
	}
	called := map[string]int{}
	do := func(step string, err error) {
		called[step]++
		if err != nil {
			t.Fatal(step, err)
		}
	}
	for _, hook := range r.hookList {
		if h, ok := hook.(interfaces.RunnerPrerunHook); ok {
			do("prerun", h.Prerun(t.Context(), &interfaces.RunnerPrerunRequest{Alloc: alloc("prerun"), Env: env("prerun")}))
		}
		if h, ok := hook.(interfaces.RunnerUpdateHook); ok {
			do("update", h.Update(t.Context(), &interfaces.RunnerUpdateRequest{Alloc: alloc("update"), Env: env("update")}))
		}
	}
	task := &taskServices{services: &r.serving, task: "t"}
	_, err = task.Prestart(t.Context(), &interfaces.TaskPrestartRequest{Alloc: alloc("prestart"), Env: env("prestart"),
		Restored: true})
	do("prestart", err)
	do("poststart",
		task.Poststart(t.Context(), &interfaces.TaskPoststartRequest{Alloc: alloc("poststart"), Env: env("poststart")}))
	if called["prerun"] != 2 || called["update"] != 2 {
		t.Errorf("called: %v", called)
	}

	deadline := time.After(polltest.Deadline())
	for len(given) > 0 {
		runtime.GC()
		select {
		case what := <-freed:
			if given[what]--; given[what] == 0 {
				delete(given, what)
			}
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatalf("kept alive: %v", given)
		}
	}
	runtime.KeepAlive(r)
	runtime.KeepAlive(task)
}
