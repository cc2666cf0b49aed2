package taskrunner

import (
	"context"
	"log/slog"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/driver"
)

// TestResume decides for every way in which an earlier runner can have left a task.
func TestResume(t *testing.T) {
	now := time.Unix(10_000, 0)
	startedAt := now.Add(-time.Minute)
	runs := &driver.Status{StartedAt: startedAt}
	old := &driver.Status{StartedAt: startedAt.Add(-time.Second), Exit: &interfaces.ExitResult{}}
	newer := &driver.Status{StartedAt: startedAt.Add(time.Second), Exit: &interfaces.ExitResult{}}
	for _, tc := range []struct {
		name    string
		saved   interfaces.SavedTask
		known   *driver.Status
		phase   phase
		process bool
		first   any
		wait    time.Duration
	}{
		{"it ran, and runs", interfaces.SavedTask{Phase: "running"}, runs, running, true, nil, 0},
		{"it ran, and has ended since", interfaces.SavedTask{Phase: "running"}, old, running, true, nil, 0},
		{"it ran, and its keeper is gone", interfaces.SavedTask{Phase: "running"}, nil, running, true, nil, 0},
		{"it was being killed", interfaces.SavedTask{Phase: "stopping"}, runs, running, true, nil, 0},
		{"it was being restarted", interfaces.SavedTask{Phase: "stopping", Restarting: true}, runs, running, true, restarted{"restart was under way"}, 0},
		{"it was started unnoticed", interfaces.SavedTask{Phase: "starting"}, runs, starting, true, started{}, 0},
		{"it was started and ended unnoticed", interfaces.SavedTask{Phase: "backoff"}, newer, starting, true, started{}, 0},
		{"it never came to a process", interfaces.SavedTask{Phase: "starting"}, old, backoff, false, elapsed{}, 0},
		{"it waits", interfaces.SavedTask{Phase: "backoff", Due: now.Add(time.Second)}, old, backoff, false, nil, time.Second},
		{"its wait is over", interfaces.SavedTask{Phase: "backoff", Due: now.Add(-time.Second)}, old, backoff, false, nil, 1},
		{"it was dead", interfaces.SavedTask{Phase: "dead", Failed: true}, old, dead, false, nil, 0},
		{"its turn had not come", interfaces.SavedTask{Phase: "waiting"}, nil, waiting, false, nil, 0},
		{"nothing that can be read", interfaces.SavedTask{Phase: "?"}, nil, waiting, false, nil, 0},
	} {
		got := resume(tc.saved, startedAt, tc.known, now)
		if got.machine.phase != tc.phase || got.process != tc.process || got.first != tc.first || got.wait != tc.wait || got.machine.failed != tc.saved.Failed {
			t.Errorf("%s: got %+v", tc.name, got)
		}
	}
}

// oneProcess is a supervisor that has one process after the other: each runs until it gets a signal.
type oneProcess struct {
	driver.Supervisor
	ended  chan struct{}
	starts chan struct{}
}

func (p *oneProcess) Start(context.Context, driver.Spec) (driver.Status, error) {
	p.starts <- struct{}{}
	return driver.Status{}, nil
}

func (p *oneProcess) Wait(ctx context.Context, _ string) (interfaces.ExitResult, error) {
	select {
	case <-p.ended:
		return interfaces.ExitResult{}, nil
	case <-ctx.Done():
		return interfaces.ExitResult{}, ctx.Err()
	}
}

func (p *oneProcess) Signal(context.Context, string, syscall.Signal) error {
	p.ended <- struct{}{}
	return nil
}

func (p *oneProcess) KillTree(context.Context, string) (int, error) { return 0, nil }

// ready is a starter with nothing to prepare.
type ready struct{}

func (ready) Prepare(context.Context) (*interfaces.TaskPrestartRequest, error) {
	return &interfaces.TaskPrestartRequest{}, nil
}

func (ready) Spec(context.Context, *interfaces.TaskPrestartRequest, map[string]string) (driver.Spec, error) {
	return driver.Spec{}, nil
}

// TestARestartUnderWayIsCarriedOut for a task that was being restarted when its runner was killed.
func TestARestartUnderWayIsCarriedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := New(Config{
			Task: &api.Task{Name: "t"}, Starter: ready{}, Logger: slog.New(slog.DiscardHandler),
			OnEvent: func(string, *api.TaskEvent) {}, OnChange: func() {},
		})
		if err != nil {
			t.Fatal(err)
		}
		p := &oneProcess{ended: make(chan struct{}, 1), starts: make(chan struct{}, 1)}
		r.Restore(interfaces.SavedTask{Phase: "stopping", Restarting: true, SetUp: true}, &api.TaskState{}, &driver.Status{})
		go r.Run(t.Context(), p)
		synctest.Wait()
		if len(p.starts) != 1 || r.Saved().Phase != "running" {
			t.Errorf("%d starts, phase %s; want one start, running", len(p.starts), r.Saved().Phase)
		}
		r.Close()
		synctest.Wait()
	})
}
