package taskrunner

import (
	"context"
	"log/slog"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/drivers/builtin"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/taskenv"
	"taskapi/internal/must"
)

// testTask returns a task whose process a test's supervisor stands for.
func testTask() *api.Task {
	return api.NewTask("t", "raw_exec").SetConfig("command", "/bin/sh")
}

// newRunner returns a runner of a task of a service with the hooks and the observer of cfg, if it has any.
func newRunner(t *testing.T, starter Starter, cfg Config) *Runner {
	t.Helper()
	cfg.Task, cfg.JobType, cfg.Starter, cfg.Drivers = testTask(), "service", starter, builtin.Drivers
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Task.RestartPolicy = &api.RestartPolicy{}
	if cfg.Observer == nil {
		cfg.Observer = nobody{}
	}
	return must.Get(New(cfg))(t)
}

// restore gives a runner a task of an earlier one, with a process.
func restore(t *testing.T, r *Runner, saved interfaces.SavedTask, parent drivers.Supervisor) {
	t.Helper()
	saved.SetUp, saved.Handle = true, interfaces.Handle("{}")
	must.OK(t, r.Restore(t.Context(), saved, drivers.Task{Task: testTask(), Processes: parent}))
}

// ready is a starter with nothing to prepare.
type ready struct{ parent drivers.Supervisor }

func (ready) Prepare(context.Context) (*interfaces.TaskPrestartRequest, error) {
	return &interfaces.TaskPrestartRequest{Task: testTask()}, nil
}

func (ready) Await(context.Context) error { return nil }

func (ready) Alloc() *api.Allocation { return &api.Allocation{} }

func (ready) Env(*interfaces.TaskPrestartRequest, map[string]string) interfaces.Env { return nil }

func (r ready) DriverTask(req *interfaces.TaskPrestartRequest, _ *interfaces.TaskPrestartResponse) drivers.Task {
	env := taskenv.New(taskenv.Config{Alloc: &api.Allocation{Job: &api.Job{}}})
	return drivers.Task{Task: req.Task, Dir: interfaces.TaskDir{Dir: "/"}, Env: env, Processes: r.parent}
}

// nobody observes.
type nobody struct{}

func (nobody) TaskEvent(string, *api.TaskEvent) {}
func (nobody) TaskChanged(string)               {}
func (nobody) TaskRecorded(string)              {}
func (nobody) Save(string) error                { return nil }
