package taskrunner

import (
	"context"
	"reflect"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/restarts"
	"taskapi/internal/same"
)

// TestResume decides for every way in which an earlier runner can have left a task.
func TestResume(t *testing.T) {
	now := time.Unix(10_000, 0)
	runs, old := found{handle: "7"}, found{handle: "7", ended: true}
	newer, newerRuns := found{handle: "8", ended: true}, found{handle: "8"}
	var none found
	beganAgain, began := started{run: newer}, started{run: newerRuns}
	r := testRules
	r.now, r.shutdownDelay, r.readyTimeout, r.watchdog = now, 2*time.Second, time.Minute, time.Second
	tells := func(timeout time.Duration) []effect { return []effect{stop{r.killSignal, timeout}} }
	waits := func(left time.Duration) []effect { return []effect{arm{left}} }
	for _, tc := range []struct {
		name  string
		saved interfaces.SavedTask
		known found
		want  resumption
	}{
		{"it ran, and runs", interfaces.SavedTask{Phase: "running"}, runs,
			resumption{state: state{phase: running}, process: true}},
		{"it ran, and has ended since", interfaces.SavedTask{Phase: "running"}, old,
			resumption{state: state{phase: running}, process: true, ended: true}},
		{"it ran, and its keeper is gone", interfaces.SavedTask{Phase: "running"}, none,
			resumption{state: state{phase: running}, process: true}},
		{"it ran, and had not said that it is ready", interfaces.SavedTask{Phase: "running", Due: now.Add(time.Second)},
			found{handle: "7", notice: &drivers.Notice{Status: "loading"}},
			resumption{state: state{phase: running, unready: true, status: "loading"}, process: true,
				effects: []effect{listen{}, arm{time.Second}}}},
		{"it ran, and is ready", interfaces.SavedTask{Phase: "running", Due: now.Add(-time.Second)},
			found{handle: "7", notice: &drivers.Notice{Ready: true}},
			resumption{state: state{phase: running}, process: true, effects: []effect{listen{}, guard{r.watchdog}}}},
		{"it was being killed, and says what it does", interfaces.SavedTask{Phase: "stopping", Intent: "kill"},
			found{handle: "7", notice: &drivers.Notice{Ready: true}},
			resumption{state: state{phase: stopping, intent: kill}, process: true, effects: append([]effect{listen{}},
				tells(1)...)}},
		{"it was being killed", interfaces.SavedTask{Phase: "stopping", Intent: "kill", Due: now.Add(time.Second)},
			runs,
			resumption{state: state{phase: stopping, intent: kill}, process: true, effects: tells(time.Second)}},
		{"it was being killed, and has ended", interfaces.SavedTask{Phase: "stopping", Intent: "kill",
			Due: now.Add(time.Second)}, old,
			resumption{state: state{phase: stopping, intent: kill}, process: true, ended: true}},
		{"it was being restarted", interfaces.SavedTask{Phase: "stopping", Intent: "restart"}, runs,
			resumption{state: state{phase: stopping, intent: restart}, process: true, effects: tells(1)}},
		{"it waited for its shutdown delay", interfaces.SavedTask{Phase: "shutdown_delay", Intent: "kill",
			Due: now.Add(time.Hour)}, runs,
			resumption{state: state{phase: shutdownDelay, intent: kill}, process: true, effects: waits(r.shutdownDelay)}},
		{"it was started unnoticed", interfaces.SavedTask{Phase: "starting"}, newerRuns,
			resumption{state: state{phase: starting, setUp: true}, process: true, first: began}},
		{"it was started and ended unnoticed", interfaces.SavedTask{Phase: "backoff"}, newer,
			resumption{state: state{phase: starting, setUp: true}, process: true, ended: true, first: beganAgain}},
		{"it was restarted, and the new process is not known of",
			interfaces.SavedTask{Phase: "stopping", Intent: "restart"}, newerRuns,
			resumption{state: state{phase: starting, setUp: true}, process: true, first: began}},
		{"it was to be killed while it was started", interfaces.SavedTask{Phase: "starting", Intent: "kill"}, newerRuns,
			resumption{state: state{phase: starting, setUp: true, intent: kill}, process: true, first: began}},
		{"all tasks were to be restarted while it was started",
			interfaces.SavedTask{Phase: "starting", Intent: "reset"}, newerRuns,
			resumption{state: state{phase: starting, setUp: true, intent: reset}, process: true, first: began}},
		{"it never came to a process", interfaces.SavedTask{Phase: "starting"}, old,
			resumption{state: state{phase: backoff}, ended: true, first: elapsed{}}},
		{"it was to be given up", interfaces.SavedTask{Phase: "starting", Intent: "kill"}, old,
			resumption{state: state{phase: starting, intent: kill}, ended: true, first: startFailed{}}},
		{"it waits", interfaces.SavedTask{Phase: "backoff", Due: now.Add(time.Second)}, old,
			resumption{state: state{phase: backoff}, ended: true, effects: waits(time.Second)}},
		{"its wait is over", interfaces.SavedTask{Phase: "backoff", Due: now.Add(-time.Second)}, old,
			resumption{state: state{phase: backoff}, ended: true, effects: waits(1)}},
		{"it waits, and the clock was set back by a day", interfaces.SavedTask{Phase: "backoff",
			Due: now.Add(24 * time.Hour)}, old,
			resumption{state: state{phase: backoff}, ended: true, effects: waits(max(r.policy.Interval, 2*r.policy.Delay))}},
		{"it was dead", interfaces.SavedTask{Phase: "dead", Failed: true}, old,
			resumption{state: state{phase: dead, failed: true}, ended: true}},
		{"its turn had not come", interfaces.SavedTask{Phase: "waiting"}, none, resumption{}},
		{"nothing that can be read", interfaces.SavedTask{Phase: "?", Intent: "?"}, none, resumption{}},
		{"its interval began in what is the future now", interfaces.SavedTask{Phase: "waiting",
			IntervalStart: now.Add(time.Hour), Attempts: 1}, none,
			resumption{state: state{attempts: restarts.State{Start: now, Count: 1}}}},
	} {
		tc.saved.Handle = interfaces.Handle("7")
		if got := tc.known.resume(r, tc.saved); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", tc.name, got, tc.want)
		}
	}
}

// TestAttemptsAreSaved, so that the next runner does not give them again.
func TestAttemptsAreSaved(t *testing.T) {
	var r record
	want := restarts.State{Start: time.Unix(1000, 0), Count: 2}
	r.set(state{phase: backoff, attempts: want}, time.Unix(1001, 0), nil)
	same.As(t, want, (found{}).resume(testRules, r.saved()).state.attempts, "resumed with")
}

// found is a run that a driver has found; without a handle it has found none.
type found struct {
	drivers.Run
	handle string
	ended  bool
	notice *drivers.Notice
}

func (f found) Handle() interfaces.Handle { return interfaces.Handle(f.handle) }

func (f found) resume(r rules, saved interfaces.SavedTask) resumption {
	status := drivers.Status{Notice: f.notice}
	if f.ended {
		status.Exit = &interfaces.ExitResult{}
	}
	if f.handle == "" {
		return r.resume(saved, nil, status)
	}
	return r.resume(saved, f, status)
}

// oneProcess is a supervisor that has one process after the other: each runs until it gets a signal.
type oneProcess struct {
	drivers.Supervisor
	starts chan struct{}

	mu    sync.Mutex    // guards ended
	ended chan struct{} // closed with the process
}

func newOneProcess() *oneProcess {
	return &oneProcess{starts: make(chan struct{}, 1), ended: make(chan struct{})}
}

func (p *oneProcess) Start(context.Context, drivers.Spec) (drivers.ProcessStatus, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = make(chan struct{})
	p.starts <- struct{}{}
	return drivers.ProcessStatus{}, nil
}

func (p *oneProcess) Wait(ctx context.Context, _ string) (interfaces.ExitResult, error) {
	p.mu.Lock()
	ended := p.ended
	p.mu.Unlock()
	select {
	case <-ended:
		return interfaces.ExitResult{}, nil
	case <-ctx.Done():
		return interfaces.ExitResult{}, ctx.Err()
	}
}

func (p *oneProcess) Signal(context.Context, drivers.ProcessID, syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.ended)
	return nil
}

func (p *oneProcess) KillTree(context.Context, drivers.ProcessID) (int, error) { return 0, nil }

func (p *oneProcess) Found(string) (drivers.ProcessStatus, bool) {
	return drivers.ProcessStatus{}, false
}

// stopped is a supervisor that does not answer: what is requested of it waits until the caller gives up.
type stopped struct {
	*oneProcess
	kills chan struct{}
}

func (p *stopped) Signal(ctx context.Context, _ drivers.ProcessID, _ syscall.Signal) error {
	<-ctx.Done()
	return ctx.Err()
}

func (p *stopped) KillTree(ctx context.Context, _ drivers.ProcessID) (int, error) {
	p.kills <- struct{}{}
	<-ctx.Done()
	return 0, ctx.Err()
}

// TestAKillIsHeard also while a signal can't be sent, because the process that sends it has been stopped.
func TestAKillIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &stopped{oneProcess: newOneProcess(), kills: make(chan struct{}, 1)}
		r := newRunner(t, ready{p}, Config{})
		ctx, cancel := context.WithCancel(t.Context())
		restore(t, r, interfaces.SavedTask{Phase: "running"}, p)
		go r.Run(ctx)
		synctest.Wait()
		r.Kill(nil, Graceful)
		r.Kill(nil, AtOnce)
		synctest.Wait()
		same.As(t, 1, len(p.kills), "the second kill is not heard")
		cancel()
		r.Close()
		synctest.Wait()
	})
}

// TestARestartUnderWayIsCarriedOut for a task that was being restarted when its runner was killed.
func TestARestartUnderWayIsCarriedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newOneProcess()
		r := newRunner(t, ready{p}, Config{})
		restore(t, r, interfaces.SavedTask{Phase: "stopping", Intent: "restart"}, p)
		go r.Run(t.Context())
		synctest.Wait()
		if len(p.starts) != 1 || r.Saved().Phase != "running" {
			t.Errorf("%d starts, phase %s; want one start, running", len(p.starts), r.Saved().Phase)
		}
		r.Close()
		synctest.Wait()
	})
}

// TestWhoIsResetting: something of the task is there that will be gone. A task that nothing would ever take from there
// is not.
func TestWhoIsResetting(t *testing.T) {
	for saved, want := range map[[2]string]bool{
		{"stopping", "reset"}: true, {"starting", "reset"}: true, {"stopping", "restart"}: false, {"running",
			""}: false,
		{"waiting", ""}: false, {"of a later version", "reset"}: false,
	} {
		var r record
		r.set(found{}.resume(testRules, interfaces.SavedTask{Phase: saved[0], Intent: saved[1]}).state,
			time.Unix(0, 0), nil)
		same.As(t, want, r.stands().resetting, "phase ", saved[0], ", intent ", saved[1])
	}
}
