package rawexec

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/taskenv"
)

// kept is a supervisor that has one process of before.
type kept struct {
	drivers.Supervisor
	process *drivers.ProcessStatus
}

func (k kept) Found(string) (drivers.ProcessStatus, bool) {
	if k.process == nil {
		return drivers.ProcessStatus{}, false
	}
	return *k.process, true
}

// TestRecover finds the process of the handle, a later one that was never saved, and one of which the supervisor knows
// nothing any more.
func TestRecover(t *testing.T) {
	const handle = `{"PID":7,"StartedAt":"2026-01-02T03:04:05.000000006+01:00"}`
	at := time.Date(2026, 1, 2, 2, 4, 5, 6, time.UTC)
	exit := &interfaces.ExitResult{ExitCode: 3}
	for name, tc := range map[string]struct {
		handle  string
		process *drivers.ProcessStatus
		want    string // the handle of the run; empty for none
		pid     int
	}{
		"nothing": {"", nil, "", 0},
		"what was saved": {handle, &drivers.ProcessStatus{PID: 7, StartedAt: at, Exit: exit,
			NoCgroup: "why"}, handle, 7},
		"one that was never saved": {"", &drivers.ProcessStatus{PID: 8, StartedAt: at},
			`{"PID":8,"StartedAt":"2026-01-02T02:04:05.000000006Z"}`, 8},
		"the next one": {handle, &drivers.ProcessStatus{PID: 7, StartedAt: at.Add(1)},
			`{"PID":7,"StartedAt":"2026-01-02T02:04:05.000000007Z"}`, 7},
		"one that nobody knows":       {handle, nil, handle, 7},
		"a handle that can't be read": {"?", nil, "?", 0},
	} {
		got, err := Driver{}.Recover(t.Context(), drivers.Task{Task: &api.Task{Name: "t"},
			Processes: kept{process: tc.process}}, interfaces.Handle(tc.handle))
		if tc.want == "" {
			if !errors.Is(err, drivers.ErrNoRun) {
				t.Errorf("%s: %v, %v", name, got, err)
			}
			continue
		}
		if err != nil || string(got.Handle()) != tc.want || got.(*run).status.PID != tc.pid {
			t.Errorf("%s: %+v, %v", name, got, err)
			continue
		}
		status, err := got.Inspect(t.Context())
		if tc.process != nil && (status.Exit != tc.process.Exit ||
			status.Details["no_cgroup"] != tc.process.NoCgroup) ||
			err != nil {
			t.Errorf("%s: %+v, %v", name, status, err)
		}
	}
}

// unstarted is a supervisor that must start nothing.
type unstarted struct {
	drivers.Supervisor
	t *testing.T
}

func (u unstarted) Start(context.Context, drivers.Spec) (drivers.ProcessStatus, error) {
	u.t.Error("a process was started")
	return drivers.ProcessStatus{}, nil
}

// TestAStartThatWasGivenUp starts no process.
func TestAStartThatWasGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	job := api.NewBatchJob("j", "j", "global", 50)
	task := api.NewTask("a", "raw_exec").SetConfig("command", "/bin/true")
	job.AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(task))
	job.Canonicalize()
	alloc := &api.Allocation{ID: "1", Job: job, JobID: "j", TaskGroup: "g", Name: "j.g[0]"}
	env := taskenv.New(taskenv.Config{Alloc: alloc}).WithTask(taskenv.Task{Task: task})
	_, err := Driver{}.Start(ctx, drivers.Task{Task: task, Env: env, Processes: unstarted{t: t}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v; want that the start was given up", err)
	}
}
