package allocrunner_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/same"
)

// diary is what hooks have been called, in order.
type diary struct {
	mu    sync.Mutex // guards calls
	calls []string
}

func (d *diary) note(s string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, s)
}

func (d *diary) read() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// noting is every hook of an allocation at once.
type noting struct {
	*diary
	ctx context.Context // of Prerun
	env interfaces.Env
}

func (n *noting) Name() string { return "noting" }

func (n *noting) Prerun(ctx context.Context, req *interfaces.RunnerPrerunRequest) error {
	n.ctx, n.env = ctx, req.Env
	n.note("prerun " + req.Env.Get("NOMAD_GROUP_NAME"))
	return nil
}

func (n *noting) PreKill() { n.note("prekill") }

func (n *noting) Postrun(context.Context) error { n.note("postrun"); return nil }

func (n *noting) Destroy(context.Context) error { n.note("destroy"); return nil }

func (n *noting) Update(_ context.Context, req *interfaces.RunnerUpdateRequest) error {
	n.note("update " + req.Env.Get("NOMAD_META_COLOUR"))
	return nil
}

func (n *noting) PreTaskRestart(context.Context) error { n.note("pre-task-restart"); return nil }

func (n *noting) Shutdown() { n.note("shutdown") }

// notingTask is every hook of a task at once.
type notingTask struct {
	*diary
	task string
	ctxs []context.Context // of Prestart
}

func (n *notingTask) Name() string { return "noting" }

func (n *notingTask) Prestart(ctx context.Context,
	req *interfaces.TaskPrestartRequest) (*interfaces.TaskPrestartResponse, error) {
	n.ctxs = append(n.ctxs, ctx)
	n.note(n.task + " prestart, restored " + map[bool]string{true: "yes", false: "no"}[req.Restored] + ", kept " +
		req.Kept["n"])
	req.Keep(map[string]string{"n": req.Kept["n"] + "I"})
	return &interfaces.TaskPrestartResponse{Env: map[string]string{"HOOK": n.task}}, nil
}

func (n *notingTask) Poststart(_ context.Context, req *interfaces.TaskPoststartRequest) error {
	n.note(n.task + " poststart, HOOK=" + req.Env.Get("HOOK"))
	return nil
}

func (n *notingTask) PreKilling(context.Context) error { n.note(n.task + " prekill"); return nil }

func (n *notingTask) Exited(context.Context, interfaces.ExitResult) error {
	n.note(n.task + " exited")
	return nil
}

func (n *notingTask) Update(_ context.Context, req *interfaces.TaskUpdateRequest) error {
	n.note(n.task + " update " + req.Env.Get("NOMAD_META_COLOUR"))
	return nil
}

func (n *notingTask) Stop(context.Context) error { n.note(n.task + " stop"); return nil }

func (n *notingTask) Shutdown() { n.note(n.task + " shutdown") }

// noted gives an allocation the noting hooks.
func noted(d *diary, c *interfaces.Config) {
	c.Hooks = []interfaces.RunnerHook{&noting{diary: d}}
	c.TaskHooks = func(_ *api.Allocation, task *api.Task) []interfaces.TaskHook {
		return []interfaces.TaskHook{&notingTask{diary: d, task: task.Name}}
	}
}

// TestHooksInOrder calls every kind of hook of an allocation that is updated, restarted, stopped and removed.
func TestHooksInOrder(t *testing.T) {
	t.Parallel()
	d := &diary{}
	r := runWith(t, "service", func(_ *api.TaskGroup, c *interfaces.Config) { noted(d, c) },
		shell("main", `test "$HOOK" = main && exec sleep 1000`))
	r.untilCalls(d, "main poststart", 1)
	next := r.version(func(j *api.Job) { j.Meta = map[string]string{"colour": "blue"} })
	must.OK(t, r.runner.Update(t.Context(), next))
	must.OK(t, r.runner.RestartAll(t.Context()))
	r.until("started again", func(a *api.Allocation) bool {
		s := a.TaskStates["main"]
		return s.State == "running" && s.Restarts == 1
	})
	r.untilCalls(d, "main poststart", 2)
	same.Error(t, interfaces.ErrNotTerminal, r.runner.Destroy(t.Context()), "removing an allocation that runs")
	must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
	must.OK(t, r.end())
	must.OK(t, r.runner.Destroy(t.Context()))
	want := []string{
		"prerun g",
		"main prestart, restored no, kept ", "main poststart, HOOK=main",
		"update blue", "main update blue",
		"pre-task-restart", "main prekill", "main exited",
		"main prestart, restored no, kept I", "main poststart, HOOK=main",
		"prekill", "main prekill", "main exited", "main stop",
		"postrun", "destroy",
	}
	same.As(t, want, d.read(), "calls")
}

// TestHooksOfATaskThatNeverStarted end with Stop, without a Prestart.
func TestHooksOfATaskThatNeverStarted(t *testing.T) {
	t.Parallel()
	d := &diary{}
	r := runWith(t, "batch", func(_ *api.TaskGroup, c *interfaces.Config) { noted(d, c) },
		shell("init", "exit 1", lifecycle("prestart", false)), shell("main", "exit 0"))
	_ = r.end()
	var ofMain []string
	for _, call := range d.read() {
		if strings.HasPrefix(call, "main ") {
			ofMain = append(ofMain, call)
		}
	}
	same.As(t, []string{"main stop"}, ofMain, "calls")
}

// TestHooksWithoutPrerun are called safely after another's Prerun failed.
func TestHooksWithoutPrerun(t *testing.T) {
	t.Parallel()
	d := &diary{}
	r := runWith(t, "batch", func(_ *api.TaskGroup, c *interfaces.Config) {
		noted(d, c)
		c.Hooks = append([]interfaces.RunnerHook{refusing{}}, c.Hooks...)
	}, shell("main", "exit 0"))
	same.Says(t, nil, "refusing", r.end())
	same.As(t, []string{"postrun"}, d.read(), "calls")
}

// TestPrestartContextsEnd with their calls.
func TestPrestartContextsEnd(t *testing.T) {
	t.Parallel()
	d := &diary{}
	hook := &notingTask{diary: d, task: "main"}
	alloc := &noting{diary: d}
	r := runWith(t, "service", func(_ *api.TaskGroup, c *interfaces.Config) {
		c.Hooks = []interfaces.RunnerHook{alloc}
		c.TaskHooks = func(*api.Allocation, *api.Task) []interfaces.TaskHook { return []interfaces.TaskHook{hook} }
	}, shell("main", "exec sleep 1000"))
	r.untilState("main", "running")
	for i, ctx := range append(hook.ctxs, alloc.ctx) {
		if ctx.Err() == nil {
			t.Errorf("context %d outlives its call", i)
		}
	}
}

// TestHookCallsAreCounted with their failures.
func TestHookCallsAreCounted(t *testing.T) {
	t.Parallel()
	r := runWith(t, "batch", func(_ *api.TaskGroup, c *interfaces.Config) { noted(&diary{}, c) }, shell("main", "exit 0"))
	must.OK(t, r.end())
	counted := map[string]uint64{}
	for _, s := range r.runner.HookStats() {
		if s.Hook == "noting" {
			counted[s.Step] = s.Calls
		}
	}
	want := map[string]uint64{
		"prerun": 1, "postrun": 1, "task_prestart": 1, "task_poststart": 1, "task_exited": 1, "task_stop": 1,
	}
	same.As(t, want, counted, "calls")
}

// leftRunning returns a runner that has left its allocation, with its task main running, and what another one needs to
// go on with it.
func leftRunning(t *testing.T) (*running, config, *diary) {
	t.Helper()
	d := &diary{}
	r := runWith(t, "service", func(_ *api.TaskGroup, c *config) { noted(d, c) },
		shell("main", "echo $$ >> $NOMAD_TASK_DIR/pids; exec sleep 1000"))
	r.untilCalls(d, "main poststart", 1)
	r.untilFile("main/local/pids")
	return r, r.leave(), d
}

// TestLeaveKeepsTasksRunning and tells hooks of it; the next runner takes the same processes over.
func TestLeaveKeepsTasksRunning(t *testing.T) {
	t.Parallel()
	r, cfg, d := leftRunning(t)
	index := r.runner.Alloc().ModifyIndex

	next := begin(t, cfg)
	next.until("running", func(a *api.Allocation) bool { return a.ClientStatus == "running" })
	next.untilCalls(d, "restored yes", 1)
	if got := next.runner.Alloc().ModifyIndex; got <= index {
		t.Errorf("the index went from %d to %d", index, got)
	}
	must.OK(t, next.runner.Stop(t.Context(), interfaces.StopRequest{}))
	must.OK(t, next.end())
	if pids := next.untilFile("main/local/pids"); strings.Contains(pids, "\n") {
		t.Errorf("a second copy was started: pids %q", pids)
	}
	want := []string{
		"prerun g", "main prestart, restored no, kept ", "main poststart, HOOK=main",
		"shutdown", "main shutdown",
		"prerun g", "main prestart, restored yes, kept I",
		"prekill", "main prekill", "main exited", "main stop", "postrun",
	}
	same.As(t, want, d.read(), "calls")
}

// TestWhatCanNotBeTakenOverRunsOn: its hooks learn that this process ends, not that the tasks have, and another try
// finds them.
func TestWhatCanNotBeTakenOverRunsOn(t *testing.T) {
	t.Parallel()
	r, cfg, d := leftRunning(t)
	before := len(d.read())

	refused := cfg
	refused.Hooks = append(slices.Clone(cfg.Hooks), refusing{})
	second := begin(t, refused)
	if err := second.end(); err == nil || errors.Is(err, interfaces.ErrDetached) ||
		errors.Is(err, allocrunner.ErrFailed) || !strings.Contains(err.Error(), "refusing") {
		t.Errorf("got %v, want the hook that refused alone", err)
	}
	same.As(t, []string{"prerun g", "shutdown", "main shutdown"}, d.read()[before:], "calls")
	if second.runner.Terminal() {
		t.Error("it has ended, with a task that runs")
	}

	cfg.Saved = r.saved()
	third := begin(t, cfg)
	third.untilState("main", "running")
	must.OK(t, third.runner.Stop(t.Context(), interfaces.StopRequest{}))
	must.OK(t, third.end())
	if pids := third.untilFile("main/local/pids"); strings.Contains(pids, "\n") {
		t.Errorf("a second copy was started: pids %q", pids)
	}
	if got := strings.Join(d.read(), "; "); strings.Count(got, "postrun") != 1 || !strings.HasSuffix(got, "postrun") {
		t.Errorf("calls: %s", got)
	}
}

// untilCalls waits for as many calls of hooks that have the words.
func (r *running) untilCalls(d *diary, words string, n int) {
	r.t.Helper()
	if !polltest.Until(func() bool { return strings.Count(strings.Join(d.read(), "; "), words) == n }) {
		r.t.Fatalf("not %d calls %q: %v", n, words, d.read())
	}
}
