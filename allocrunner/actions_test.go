package allocrunner_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/same"
)

// pausing is a hook that holds up a restart of all tasks until the test goes on.
type pausing struct{ entered, goOn chan struct{} }

func newPausing() *pausing { return &pausing{make(chan struct{}), make(chan struct{})} }

func (p *pausing) Name() string { return "pausing" }

func (p *pausing) PreTaskRestart(ctx context.Context) error {
	close(p.entered)
	select {
	case <-p.goOn:
	case <-ctx.Done():
	}
	return nil
}

// gated is a hook whose Prestart lasts until its context ends, and then for as long as last takes.
type gated struct {
	entered chan struct{}
	last    func()
}

func (g *gated) Name() string { return "gated" }

func (g *gated) Prestart(ctx context.Context,
	_ *interfaces.TaskPrestartRequest) (*interfaces.TaskPrestartResponse, error) {
	select {
	case g.entered <- struct{}{}:
	default: // a later start
	}
	<-ctx.Done()
	g.last()
	return nil, ctx.Err()
}

// later runs f beside the test and gives its result.
func later(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return result
}

// result waits for what later began.
func result(t *testing.T, of <-chan error) error {
	t.Helper()
	select {
	case err := <-of:
		return err
	case <-time.After(deadline):
		t.Fatal("no answer")
		return nil
	}
}

func until(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(deadline):
		t.Fatal("it does not happen")
	}
}

// TestAStopDuringARestartOfAll wins, also over tasks that are dead when their restart reaches them.
func TestAStopDuringARestartOfAll(t *testing.T) {
	t.Parallel()
	hook := newPausing()
	r := runWith(t, "service", func(_ *api.TaskGroup, c *config) { c.Hooks = []interfaces.RunnerHook{hook} },
		shell("main", "exec sleep 1000"))
	r.untilState("main", "running")
	restarted := later(func() error { return r.runner.RestartAll(t.Context()) })
	until(t, hook.entered)
	must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
	r.untilState("main", "dead")
	close(hook.goOn)
	same.Error(t, interfaces.ErrTerminal, result(t, restarted), "the restart says")
	must.OK(t, r.end())
	r.wantEvents("main", "Received", "Task Setup", "Started", "Killing", "Terminated", "Killed")
}

// TestAStopBeforeARestartKills leaves the tasks the group's shutdown_delay, into which the restart would kill them.
func TestAStopBeforeARestartKills(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]func(*allocrunner.Runner, context.Context) error{
		"running": (*allocrunner.Runner).RestartRunning, "all": (*allocrunner.Runner).RestartAll,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, hook := &diary{}, newPausing()
			r := runWith(t, "service", func(g *api.TaskGroup, c *config) {
				noted(d, c)
				c.Hooks = append(c.Hooks, hook)
				g.ShutdownDelay = new(time.Hour)
			}, shell("main", "exec sleep 1000"))
			r.untilCalls(d, "main poststart", 1)
			restarted := later(func() error { return restart(r.runner, t.Context()) })
			until(t, hook.entered)
			must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
			r.untilCalls(d, "prekill", 1)
			close(hook.goOn)
			same.Error(t, interfaces.ErrTerminal, result(t, restarted), "the restart says")
			r.untilEvents("main", "Waiting for shutdown delay", 1)
			r.wantEvents("main", "Received", "Task Setup", "Started", "Waiting for shutdown delay")
			r.runner.Kill()
			must.OK(t, r.end())
		})
	}
}

// TestWhatEndsDuringARestartOfAll: a task that ends during a restart of all starts again with the others, even if its
// end would have ended them.
func TestWhatEndsDuringARestartOfAll(t *testing.T) {
	t.Parallel()
	hook := newPausing()
	r := runWith(t, "batch", func(_ *api.TaskGroup, c *config) { c.Hooks = []interfaces.RunnerHook{hook} },
		shell("main", "until [ -e $NOMAD_ALLOC_DIR/fail ]; do sleep 0.05; done; rm $NOMAD_ALLOC_DIR/fail; exit 1"),
		shell("other", "exec sleep 1000"))
	r.untilState("main", "running")
	r.untilState("other", "running")
	restarted := later(func() error { return r.runner.RestartAll(t.Context()) })
	until(t, hook.entered)
	r.write("alloc/fail", "")
	r.until("main has failed", func(a *api.Allocation) bool { return a.TaskStates["main"].Failed })
	close(hook.goOn)
	must.OK(t, result(t, restarted))
	r.until("both run again", func(a *api.Allocation) bool {
		main, other := a.TaskStates["main"], a.TaskStates["other"]
		return main.State == "running" && main.Restarts == 1 && !main.Failed && other.State == "running" &&
			other.Restarts == 1
	})
}

// TestARestartOfAllIsCompleted in its order when the caller has gone away.
func TestARestartOfAllIsCompleted(t *testing.T) {
	t.Parallel()
	r := run(t, "service",
		shell("init", `echo init >> $NOMAD_ALLOC_DIR/order`, lifecycle("prestart", false)),
		shell("main",
			`trap 'until [ -e $NOMAD_ALLOC_DIR/go ]; do sleep 0.05; done; echo end >> $NOMAD_ALLOC_DIR/order; exit' INT
			echo main >> $NOMAD_ALLOC_DIR/order; while :; do sleep 0.05; done`,
			func(t *api.Task) { t.KillTimeout = new(deadline) }))
	r.untilLines("alloc/order", 2)
	r.untilState("main", "running")
	ctx, cancel := context.WithCancel(t.Context())
	restarted := later(func() error { return r.runner.RestartAll(ctx) })
	r.untilEvents("main", "Restart Signaled", 1)
	cancel()
	same.Error(t, context.Canceled, result(t, restarted))
	r.write("alloc/go", "")
	same.As(t, "init\nmain\nend\ninit\nmain", r.untilLines("alloc/order", 5), "order")
}

// TestARestartOfAllWaitsForAStartUnderWay to be given up: the hook's context ends, as it does when the task is killed,
// and nothing starts.
func TestARestartOfAllWaitsForAStartUnderWay(t *testing.T) {
	t.Parallel()
	answered := make(chan struct{})
	hook := &gated{entered: make(chan struct{}, 1), last: func() {
		select {
		case <-answered:
			t.Error("the restart was answered while the start was still under way")
		case <-time.After(50 * time.Millisecond): // time enough for an answer that comes too soon
		}
	}}
	r := runWith(t, "service", func(_ *api.TaskGroup, c *config) {
		c.TaskHooks = func(*api.Allocation, *api.Task) []interfaces.TaskHook { return []interfaces.TaskHook{hook} }
	}, shell("main", "exec sleep 1000"))
	until(t, hook.entered)
	same.Error(t, interfaces.ErrTaskNotRunning, r.runner.Signal(t.Context(), "main", "SIGHUP"), "a signal")
	same.Error(t, interfaces.ErrTaskNotRunning, r.runner.RestartTask(t.Context(), "main"), "a restart")
	err := r.runner.RestartAll(t.Context())
	close(answered)
	must.OK(t, err)
	until(t, hook.entered)
	hook.last = func() {}
	r.stop()
	must.OK(t, r.end())
	r.wantEvents("main", "Received", "Task Setup", "Restart Signaled", "Restarting", "Killing")
}

// TestRestartOfRunningTasks leaves dead tasks and tasks that wait for a restart alone, even if there are no others.
// A task that waits can be restarted by its name.
func TestRestartOfRunningTasks(t *testing.T) {
	t.Parallel()
	waits := func(t *api.Task) {
		t.RestartPolicy = &api.RestartPolicy{Attempts: new(1), Interval: new(2 * time.Hour), Delay: new(time.Hour),
			Mode: new("fail")}
	}
	r := run(t, "batch", shell("main", `exec sleep 1000`), shell("done", "exit 0"), shell("waits", "exit 1", waits))
	r.untilState("main", "running")
	r.untilState("done", "dead")
	r.untilEvents("waits", "Restarting", 1)
	must.OK(t, r.runner.RestartRunning(t.Context()))
	r.untilEvents("main", "Started", 2)
	r.wantReason("main", "User requested running tasks to restart")
	r.wantEvents("done", "Received", "Task Setup", "Started", "Terminated")
	r.wantEvents("waits", "Received", "Task Setup", "Started", "Terminated", "Restarting")
	must.OK(t, r.runner.RestartTask(t.Context(), "waits"))
	r.untilEvents("waits", "Started", 2)
}

// TestRestartOfAllInEveryState: dead, in a restart delay, and running, once and twice at the same time.
func TestRestartOfAllInEveryState(t *testing.T) {
	t.Parallel()
	r := run(t, "batch", shell("main", "exec sleep 1000"), shell("done", "exit 0"),
		shell("waits", "exit 1", func(t *api.Task) {
			t.RestartPolicy = &api.RestartPolicy{Attempts: new(1000), Interval: new(2000 * time.Hour), Delay: new(time.Hour),
				Mode: new("fail")}
		}))
	r.untilState("main", "running")
	r.untilState("done", "dead")
	r.untilEvents("waits", "Restarting", 1)
	twice := []<-chan error{
		later(func() error { return r.runner.RestartAll(t.Context()) }),
		later(func() error { return r.runner.RestartAll(t.Context()) }),
	}
	for _, of := range twice {
		must.OK(t, result(t, of))
	}
	r.wantReason("done", "User requested all tasks to restart")
	r.untilState("main", "running")
	r.until("all were started again", func(a *api.Allocation) bool {
		return a.TaskStates["done"].State == "dead" && a.TaskStates["done"].Restarts > 0 && a.TaskStates["waits"].Restarts > 2
	})
	r.stop()
	must.OK(t, r.end())
	same.Error(t, interfaces.ErrTerminal, r.runner.RestartAll(t.Context()), "when it has ended")
}

// TestAStopDuringARestart gives the task its kill_signal once more and the kill_timeout of now, and the caller who
// restarts it learns that nothing follows.
func TestAStopDuringARestart(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]func(*running) error{
		"of one":           func(r *running) error { return r.runner.RestartTask(t.Context(), "main") },
		"of those running": func(r *running) error { return r.runner.RestartRunning(t.Context()) },
		"of all":           func(r *running) error { return r.runner.RestartAll(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t, "service",
				shell("main", `trap 'echo INT >> local/signalled' INT; echo up > local/up; while :; do sleep 0.05; done`,
					func(t *api.Task) { t.KillTimeout = new(time.Hour) }))
			r.untilFile("main/local/up")
			r.untilState("main", "running")
			restarted := later(func() error { return restart(r) })
			r.untilLines("main/local/signalled", 1)
			must.OK(t, r.runner.Update(t.Context(), r.version(func(j *api.Job) {
				j.TaskGroups[0].Tasks[0].KillTimeout = new(2 * time.Second)
			})))
			must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
			r.untilLines("main/local/signalled", 2)
			same.Error(t, interfaces.ErrTerminal, result(t, restarted), "the restart says")
			must.OK(t, r.end())
			if got := event(r.runner.Alloc(), "main", "Killing").DisplayMessage; got != "Sent interrupt. Waiting 2s before "+
				"force killing" {
				t.Errorf("the event says %q", got)
			}
			r.wantEvents("main", "Received", "Task Setup", "Started", "Restart Signaled", "Killing", "Terminated", "Killed")
		})
	}
}

// TestInItsShutdownDelay a task can be signalled, and is neither restarted nor updated.
func TestInItsShutdownDelay(t *testing.T) {
	t.Parallel()
	r := run(t, "service",
		shell("main", `trap 'echo HUP > local/got' HUP; echo up > local/up; while :; do sleep 0.05; done`,
			func(t *api.Task) { t.ShutdownDelay = time.Hour }))
	r.untilFile("main/local/up")
	r.untilState("main", "running")
	must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
	r.untilEvents("main", "Waiting for shutdown delay", 1)
	same.As(t, "pending", r.runner.Alloc().TaskStates["main"].State, "it shows as")
	for _, task := range []string{"main", ""} {
		if err := errors.Join(os.RemoveAll(r.dir+"/main/local/got"),
			r.runner.Signal(t.Context(), task, "SIGHUP")); err != nil {
			t.Errorf("a signal to %q: %v", task, err)
		}
		r.untilFile("main/local/got")
	}
	next := r.version(func(j *api.Job) { j.Meta = map[string]string{"colour": "blue"} })
	for name, err := range map[string]error{
		"restart of one":          r.runner.RestartTask(t.Context(), "main"),
		"restart of running ones": r.runner.RestartRunning(t.Context()),
		"restart of all":          r.runner.RestartAll(t.Context()),
		"update":                  r.runner.Update(t.Context(), next),
	} {
		same.Error(t, interfaces.ErrTerminal, err, name)
	}
	r.runner.Kill()
	must.OK(t, r.end())
}

// TestKillSkipsTheGroupsDelay, also one that a stop has begun.
func TestKillSkipsTheGroupsDelay(t *testing.T) {
	t.Parallel()
	d := &diary{}
	r := runWith(t, "service", func(g *api.TaskGroup, c *config) { noted(d, c); g.ShutdownDelay = new(time.Hour) },
		shell("main", "exec sleep 1000"))
	r.untilCalls(d, "main poststart", 1)
	must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
	r.untilCalls(d, "prekill", 1)
	r.untilEvents("main", "Waiting for shutdown delay", 1)
	if got := r.of("main"); slices.Contains(got, "Killing") {
		t.Errorf("killed in the delay: %v", got)
	}
	r.runner.Kill()
	must.OK(t, r.end())
}

// TestKillSendsNoSignal but SIGKILL, also when a stop follows it.
func TestKillSendsNoSignal(t *testing.T) {
	t.Parallel()
	r := run(t, "service",
		shell("main", `trap 'echo signalled > local/signalled' INT; echo up > local/up; while :; do :; done`,
			func(t *api.Task) { t.KillTimeout = new(time.Hour) }))
	r.untilFile("main/local/up")
	r.untilState("main", "running")
	r.runner.Kill()
	same.As(t, "stop", r.runner.Alloc().DesiredStatus, "the desired status after a kill is")
	must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
	must.OK(t, r.end())
	if _, err := os.Stat(r.dir + "/main/local/signalled"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the task has handled its kill_signal: %v", err)
	}
	if e := event(r.runner.Alloc(), "main", "Terminated"); e.Details["signal"] != "9" {
		t.Errorf("it ended otherwise: %+v", e)
	}
	if e := event(r.runner.Alloc(), "main", "Killing"); e.DisplayMessage != "Force killing" || e.KillTimeout != 0 {
		t.Errorf("the event speaks of a signal: %+v", e)
	}
}

// TestNoShutdownDelay of the group or of its task is waited for any longer when a stop says so, also by another runner.
func TestNoShutdownDelay(t *testing.T) {
	t.Parallel()
	for name, group := range map[string]time.Duration{"of the group": time.Hour, "of the task": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &diary{}
			r := runWith(t, "service", func(g *api.TaskGroup, c *config) { noted(d, c); g.ShutdownDelay = new(group) },
				shell("main", "exec sleep 1000", func(t *api.Task) { t.ShutdownDelay = time.Hour }))
			r.untilCalls(d, "main poststart", 1)
			must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
			r.untilEvents("main", "Waiting for shutdown delay", 1)
			must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{NoShutdownDelay: true}))
			must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{})) // NoShutdownDelay stays
			must.OK(t, r.end())
			if got := event(r.runner.Alloc(), "main", "Terminated"); got.Details["signal"] != "2" {
				t.Errorf("its kill_signal was left out, too: %+v", got)
			}
			if !r.saved().Alloc.DesiredTransition.ShouldIgnoreShutdownDelay() {
				t.Error("another runner would wait for the shutdown delays")
			}
		})
	}
}

// wantReason compares why a task was last restarted.
func (r *running) wantReason(task, want string) {
	r.t.Helper()
	if e := event(r.runner.Alloc(), task, "Restart Signaled"); e == nil || e.DisplayMessage != want ||
		e.Details["restart_reason"] != want {
		r.t.Errorf("%s: restarted because of %+v, want %q", task, e, want)
	}
}

// untilEvents waits for as many events of one type.
func (r *running) untilEvents(task, kind string, n int) {
	r.t.Helper()
	if !polltest.Until(func() bool { return count(r.of(task), kind) >= n }) {
		r.t.Fatalf("not %d events %q of %s: %v", n, kind, task, r.of(task))
	}
}

// heldStart is a hook whose Prestart waits for the test from the second one on.
type heldStart struct {
	calls   atomic.Int32
	entered chan struct{}
	goOn    chan struct{}
}

func (h *heldStart) Name() string { return "held" }

func (h *heldStart) Prestart(ctx context.Context,
	_ *interfaces.TaskPrestartRequest) (*interfaces.TaskPrestartResponse, error) {
	if h.calls.Add(1) == 1 {
		return nil, nil
	}
	h.entered <- struct{}{}
	select {
	case <-h.goOn:
	case <-ctx.Done():
	}
	return nil, nil
}

// TestARestartDuringARestart: a restart is done already if the old process is gone and the next one is being started. A
// task that starts for another reason has no process to restart by its name, and starts with the others.
func TestARestartDuringARestart(t *testing.T) {
	t.Parallel()
	hook := &heldStart{entered: make(chan struct{}), goOn: make(chan struct{})}
	r := runWith(t, "service", func(_ *api.TaskGroup, c *config) {
		c.TaskHooks = func(*api.Allocation, *api.Task) []interfaces.TaskHook { return []interfaces.TaskHook{hook} }
	}, shell("main", "until [ -e $NOMAD_ALLOC_DIR/fail ]; do sleep 0.05; done; rm $NOMAD_ALLOC_DIR/fail; exit 1",
		func(t *api.Task) {
			t.RestartPolicy = &api.RestartPolicy{Attempts: new(1), Interval: new(time.Hour), Delay: new(time.Duration),
				Mode: new("fail")}
		}))
	r.untilState("main", "running")
	wantBoth := func(what string, want error) {
		t.Helper()
		same.Error(t, want, r.runner.RestartTask(t.Context(), "main"), what, ", a restart of it")
		same.Error(t, nil, r.runner.RestartRunning(t.Context()), what, ", a restart of the running")
	}
	for what, restart := range map[string]func(context.Context) error{
		"while one task is restarted":   func(ctx context.Context) error { return r.runner.RestartTask(ctx, "main") },
		"while all tasks are restarted": r.runner.RestartAll,
	} {
		must.OK(t, restart(t.Context()))
		until(t, hook.entered)
		wantBoth(what, nil)
		hook.goOn <- struct{}{}
		r.untilState("main", "running")
	}
	same.As(t, 2, r.runner.Alloc().TaskStates["main"].Restarts, "restarts")
	r.write("alloc/fail", "")
	until(t, hook.entered)
	wantBoth("while it starts after a failure", interfaces.ErrTaskNotRunning)
	hook.goOn <- struct{}{}
}
