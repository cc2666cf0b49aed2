package taskrunner

import (
	"context"
	"log/slog"
	"reflect"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/processes"
	"taskapi/allocrunner/internal/restarts"
)

// TestResume decides for every way in which an earlier runner can have left a task.
func TestResume(t *testing.T) {
	now := time.Unix(10_000, 0)
	startedAt := now.Add(-time.Minute)
	runs := &processes.Status{PID: 7, StartedAt: startedAt}
	old := &processes.Status{PID: 7, StartedAt: startedAt, Exit: &interfaces.ExitResult{}}
	newer := &processes.Status{PID: 7, StartedAt: startedAt.Add(time.Second), Exit: &interfaces.ExitResult{}} // its number is used again
	newerRuns := &processes.Status{PID: 8, StartedAt: startedAt.Add(-time.Hour)}                              // the clock was set back
	beganAgain := started{handle: interfaces.Handle{PID: 7, StartedAt: newer.StartedAt}}
	began := started{handle: interfaces.Handle{PID: 8, StartedAt: newerRuns.StartedAt}}
	r := testRules
	r.shutdownDelay = 2 * time.Second
	tells := []any{signal{r.killSignal}}
	for _, tc := range []struct {
		name  string
		saved interfaces.SavedTask
		known *processes.Status
		want  resumption
	}{
		{"it ran, and runs", interfaces.SavedTask{Phase: "running"}, runs, resumption{machine: machine{phase: running}, process: true}},
		{"it ran, and has ended since", interfaces.SavedTask{Phase: "running"}, old, resumption{machine: machine{phase: running}, process: true, ended: true}},
		{"it ran, and its keeper is gone", interfaces.SavedTask{Phase: "running"}, nil, resumption{machine: machine{phase: running}, process: true}},
		{"it was being killed", interfaces.SavedTask{Phase: "stopping", Intent: "kill", Due: now.Add(time.Second)}, runs,
			resumption{machine: machine{phase: stopping, intent: kill}, process: true, acts: tells, wait: time.Second}},
		{"it was being killed, and has ended", interfaces.SavedTask{Phase: "stopping", Intent: "kill", Due: now.Add(time.Second)}, old,
			resumption{machine: machine{phase: stopping, intent: kill}, process: true, ended: true}},
		{"it was being restarted", interfaces.SavedTask{Phase: "stopping", Intent: "restart"}, runs,
			resumption{machine: machine{phase: stopping, intent: restart}, process: true, acts: tells, wait: 1}},
		{"it waited for its shutdown delay", interfaces.SavedTask{Phase: "shutdown_delay", Intent: "kill", Due: now.Add(time.Hour)}, runs,
			resumption{machine: machine{phase: shutdownDelay, intent: kill}, process: true, wait: r.shutdownDelay}},
		{"it was started unnoticed", interfaces.SavedTask{Phase: "starting"}, newerRuns,
			resumption{machine: machine{phase: starting, setUp: true}, process: true, first: began}},
		{"it was started and ended unnoticed", interfaces.SavedTask{Phase: "backoff"}, newer,
			resumption{machine: machine{phase: starting, setUp: true}, process: true, ended: true, first: beganAgain}},
		{"it was restarted, and the new process is not known of", interfaces.SavedTask{Phase: "stopping", Intent: "restart"}, newerRuns,
			resumption{machine: machine{phase: starting, setUp: true}, process: true, first: began}},
		{"it was to be killed while it was started", interfaces.SavedTask{Phase: "starting", Intent: "kill"}, newerRuns,
			resumption{machine: machine{phase: starting, setUp: true, intent: kill}, process: true, first: began}},
		{"all tasks were to be restarted while it was started", interfaces.SavedTask{Phase: "starting", Intent: "reset"}, newerRuns,
			resumption{machine: machine{phase: starting, setUp: true, intent: reset}, process: true, first: began}},
		{"it never came to a process", interfaces.SavedTask{Phase: "starting"}, old, resumption{machine: machine{phase: backoff}, ended: true, first: elapsed{}}},
		{"it was to be given up", interfaces.SavedTask{Phase: "starting", Intent: "kill"}, old,
			resumption{machine: machine{phase: starting, intent: kill}, ended: true, first: startFailed{}}},
		{"it waits", interfaces.SavedTask{Phase: "backoff", Due: now.Add(time.Second)}, old,
			resumption{machine: machine{phase: backoff}, ended: true, wait: time.Second}},
		{"its wait is over", interfaces.SavedTask{Phase: "backoff", Due: now.Add(-time.Second)}, old,
			resumption{machine: machine{phase: backoff}, ended: true, wait: 1}},
		{"it waits, and the clock was set back by a day", interfaces.SavedTask{Phase: "backoff", Due: now.Add(24 * time.Hour)}, old,
			resumption{machine: machine{phase: backoff}, ended: true, wait: r.longestBackoff()}},
		{"it was dead", interfaces.SavedTask{Phase: "dead", Failed: true}, old, resumption{machine: machine{phase: dead, failed: true}, ended: true}},
		{"its turn had not come", interfaces.SavedTask{Phase: "waiting"}, nil, resumption{}},
		{"nothing that can be read", interfaces.SavedTask{Phase: "?", Intent: "?"}, nil, resumption{}},
		{"its interval began in what is the future now", interfaces.SavedTask{Phase: "waiting", IntervalStart: now.Add(time.Hour), Attempts: 1}, nil,
			resumption{machine: machine{tracker: restarts.Tracker{Start: now, Count: 1}}}},
	} {
		tc.saved.Handle = &interfaces.Handle{PID: 7, StartedAt: startedAt}
		if got := r.resume(tc.saved, tc.known, now); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", tc.name, got, tc.want)
		}
	}
}

// oneProcess is a supervisor that has one process after the other: each runs until it gets a signal.
type oneProcess struct {
	processes.Supervisor
	ended  chan struct{}
	starts chan struct{}
}

func (p *oneProcess) Start(context.Context, drivers.Spec) (processes.Status, error) {
	p.starts <- struct{}{}
	return processes.Status{}, nil
}

func (p *oneProcess) Wait(ctx context.Context, _ string) (interfaces.ExitResult, error) {
	select {
	case <-p.ended:
		return interfaces.ExitResult{}, nil
	case <-ctx.Done():
		return interfaces.ExitResult{}, ctx.Err()
	}
}

func (p *oneProcess) Signal(context.Context, processes.ProcessID, syscall.Signal) error {
	p.ended <- struct{}{}
	return nil
}

func (p *oneProcess) KillTree(context.Context, processes.ProcessID) (int, error) { return 0, nil }

// stopped is a supervisor that does not answer: what is requested of it waits until the caller gives up.
type stopped struct {
	oneProcess
	kills chan struct{}
}

func (p *stopped) Signal(ctx context.Context, _ processes.ProcessID, _ syscall.Signal) error {
	<-ctx.Done()
	return ctx.Err()
}

func (p *stopped) KillTree(ctx context.Context, _ processes.ProcessID) (int, error) {
	p.kills <- struct{}{}
	<-ctx.Done()
	return 0, ctx.Err()
}

// TestAKillIsHeard also while a signal can't be sent, because the process that sends it has been stopped.
func TestAKillIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := New(Config{Task: &api.Task{Name: "t"}, Starter: ready{}, Logger: slog.New(slog.DiscardHandler), Observer: nobody{}})
		if err != nil {
			t.Fatal(err)
		}
		p := &stopped{oneProcess: oneProcess{ended: make(chan struct{})}, kills: make(chan struct{}, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		r.Restore(interfaces.SavedTask{Phase: "running", SetUp: true, Handle: &interfaces.Handle{}}, &processes.Status{})
		go r.Run(ctx, p)
		synctest.Wait()
		r.Kill(nil, Graceful)
		r.Kill(nil, AtOnce)
		time.Sleep(signalTimeout)
		synctest.Wait()
		if len(p.kills) != 1 {
			t.Error("the second kill is not heard")
		}
		cancel()
		r.Close()
		synctest.Wait()
	})
}

// ready is a starter with nothing to prepare.
type ready struct{}

func (ready) Prepare(context.Context) (*interfaces.TaskPrestartRequest, error) {
	return &interfaces.TaskPrestartRequest{}, nil
}

func (ready) Alloc() *api.Allocation { return nil }

func (ready) Env(*interfaces.TaskPrestartRequest, map[string]string) interfaces.Env { return nil }

func (ready) Spec(context.Context, *interfaces.TaskPrestartRequest, *interfaces.TaskPrestartResponse) (drivers.Spec, error) {
	return drivers.Spec{}, nil
}

// nobody observes.
type nobody struct{}

func (nobody) TaskEvent(string, *api.TaskEvent) {}
func (nobody) TaskChanged(string)               {}
func (nobody) TaskRecorded(string)              {}
func (nobody) Save(string)                      {}

// TestARestartUnderWayIsCarriedOut for a task that was being restarted when its runner was killed.
func TestARestartUnderWayIsCarriedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := New(Config{
			Task: &api.Task{Name: "t"}, Starter: ready{}, Logger: slog.New(slog.DiscardHandler),
			Observer: nobody{},
		})
		if err != nil {
			t.Fatal(err)
		}
		p := &oneProcess{ended: make(chan struct{}, 1), starts: make(chan struct{}, 1)}
		r.Restore(interfaces.SavedTask{Phase: "stopping", Intent: "restart", SetUp: true, Handle: &interfaces.Handle{}}, &processes.Status{})
		go r.Run(t.Context(), p)
		synctest.Wait()
		if len(p.starts) != 1 || r.Saved().Phase != "running" {
			t.Errorf("%d starts, phase %s; want one start, running", len(p.starts), r.Saved().Phase)
		}
		r.Close()
		synctest.Wait()
	})
}

// TestWhoIsResetting: something of the task is there that will be gone. A task that nothing would ever take from there is not.
func TestWhoIsResetting(t *testing.T) {
	for saved, want := range map[[2]string]bool{
		{"stopping", "reset"}: true, {"starting", "reset"}: true, {"stopping", "restart"}: false, {"running", ""}: false,
		{"waiting", ""}: false, {"of a later version", "reset"}: false,
	} {
		var r record
		r.set(testRules.resume(interfaces.SavedTask{Phase: saved[0], Intent: saved[1]}, nil, time.Unix(0, 0)).machine, time.Unix(0, 0), nil)
		if got := r.stands().resetting; got != want {
			t.Errorf("phase %q, intent %q: %v", saved[0], saved[1], got)
		}
	}
}
