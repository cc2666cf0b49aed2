// Package simulate runs allocations whose tasks exist in memory alone. A task has its directory, its hooks and its events, and so
// whatever the hooks make, such as sockets and tokens; it has no process, and runs until the allocation is stopped. All tasks start at
// once, and services are registered; ports, checks and templates do nothing, and no state is saved. Benchmarks and tests run many such
// allocations in one process.
package simulate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/allocfs"
	"taskapi/allocrunner/internal/registration"
	"taskapi/allocrunner/internal/snapshots"
	"taskapi/allocrunner/taskenv"
	"taskapi/internal/signals"
)

var (
	_ interfaces.Factory     = New
	_ interfaces.AllocRunner = (*runner)(nil)
)

// runner is one simulated allocation.
type runner struct {
	cfg       interfaces.Config
	resources interfaces.HookResources
	tasks     []*task
	acting    chan struct{} // holds one value while tasks start, restart or end
	ending    chan struct{} // closed by end
	end       func()
	detaching chan struct{} // closed by detach
	detach    func()
	snapshots snapshots.Snapshots
	files     *allocfs.Tree
	terminal  atomic.Bool
}

// task is one simulated task.
type task struct {
	runner *runner
	spec   *api.Task
	user   interfaces.User
	dir    interfaces.TaskDir
	hooks  []interfaces.TaskHook

	mu    sync.Mutex // guards the field below
	saved map[string]map[string]string
}

// New makes the runner of a new allocation. Errors: the allocation was run before.
func New(cfg interfaces.Config) (interfaces.AllocRunner, error) {
	if cfg.Saved != nil {
		return nil, errors.New("a simulated allocation can't be resumed: it leaves nothing")
	}
	group := cfg.Alloc.GetTaskGroup()
	if group == nil {
		return nil, fmt.Errorf("the job has no group %q", cfg.Alloc.TaskGroup)
	}
	r := &runner{
		cfg: cfg, acting: make(chan struct{}, 1), ending: make(chan struct{}), detaching: make(chan struct{}),
	}
	r.end = sync.OnceFunc(func() { close(r.ending) })
	r.detach = sync.OnceFunc(func() { close(r.detaching) })
	alloc := *cfg.Alloc
	alloc.DeploymentID = "" // nothing decides whether it is healthy
	r.snapshots.Init(&alloc, cfg.Previous)
	services := servicesHook{runner: r, registrar: registration.New(cfg.Alloc.ID, cfg.ServiceProviders)}
	r.cfg.Hooks = append([]interfaces.RunnerHook{services}, cfg.Hooks...)
	var names []string
	for _, spec := range group.Tasks {
		names = append(names, spec.Name)
		t := &task{runner: r, spec: spec, dir: allocdir.Paths(cfg.Dir, spec.Name), saved: map[string]map[string]string{}}
		t.hooks = []interfaces.TaskHook{taskServices{services, spec.Name}}
		if cfg.TaskHooks != nil {
			t.hooks = append(t.hooks, cfg.TaskHooks(r.Alloc(), spec)...)
		}
		r.tasks = append(r.tasks, t)
	}
	r.files = allocfs.New(cfg.Dir, names)
	return r, nil
}

// Run starts every task, and ends when the allocation is stopped.
func (r *runner) Run(ctx context.Context) error {
	r.acting <- struct{}{}
	err := r.start(ctx)
	if err == nil {
		<-r.acting
		select {
		case <-ctx.Done():
			r.requestStop(interfaces.StopRequest{})
		case <-r.ending:
		case <-r.detaching:
			r.shutdown()
			return interfaces.ErrDetached
		}
		r.acting <- struct{}{}
	}
	r.end()
	for h := range interfaces.Having[interfaces.RunnerPreKillHook](r.cfg.Hooks) {
		h.PreKill()
	}
	background := context.WithoutCancel(ctx)
	for _, t := range r.tasks {
		err = errors.Join(err, t.stop(background))
	}
	r.finish(err)
	for h := range interfaces.Having[interfaces.RunnerPostrunHook](r.cfg.Hooks) {
		err = errors.Join(err, h.Postrun(background))
	}
	return err
}

// start makes the directories, and starts every task.
func (r *runner) start(ctx context.Context) error {
	access, names := allocdir.OnlyOwner, []string{}
	for _, t := range r.tasks {
		var err error
		if t.user, err = allocdir.LookupUser(t.spec.User); err != nil {
			return fmt.Errorf("task %q: %w", t.spec.Name, err)
		}
		if t.spec.User != "" {
			access = allocdir.AnyUser
		}
		names = append(names, t.spec.Name)
	}
	if err := allocdir.BuildAlloc(r.cfg.Dir, access, names); err != nil {
		return err
	}
	request := &interfaces.RunnerPrerunRequest{Alloc: r.Alloc(), Env: r.env(), Resources: &r.resources}
	for h := range interfaces.Having[interfaces.RunnerPrerunHook](r.cfg.Hooks) {
		if err := h.Prerun(ctx, request); err != nil {
			return fmt.Errorf("prerun hook %q: %w", h.Name(), err)
		}
	}
	for _, t := range r.tasks {
		t.enter("pending", api.TaskReceived, "Task received by client")
	}
	for _, t := range r.tasks {
		if _, err := allocdir.BuildTask(r.cfg.Dir, t.spec.Name, t.user); err != nil {
			return fmt.Errorf("task %q: %w", t.spec.Name, err)
		}
		if err := t.start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// finish notes that the allocation has ended.
func (r *runner) finish(err error) {
	r.change(func(a *api.Allocation) {
		a.ClientStatus, a.ClientDescription = api.AllocClientStatusComplete, "All tasks have completed"
		if err != nil {
			a.ClientStatus, a.ClientDescription = api.AllocClientStatusFailed, err.Error()
		}
		r.terminal.Store(true)
	})
}

func (r *runner) shutdown() {
	for h := range interfaces.Having[interfaces.ShutdownHook](r.cfg.Hooks) {
		h.Shutdown()
	}
	for _, t := range r.tasks {
		for h := range interfaces.Having[interfaces.ShutdownHook](t.hooks) {
			h.Shutdown()
		}
	}
}

func (r *runner) env() *taskenv.Env {
	alloc := r.Alloc()
	return taskenv.New(taskenv.Config{Alloc: alloc, Dir: allocdir.Paths(r.cfg.Dir, ""), Node: taskenv.Node{
		ID: alloc.NodeID, Name: alloc.NodeName, Datacenter: r.cfg.Datacenter,
	}})
}

// start runs the task's hooks, and has it run.
func (t *task) start(ctx context.Context) error {
	t.enter("pending", api.TaskSetup, "Building Task Directory")
	alloc, env := t.runner.Alloc(), t.runner.env().WithTask(taskenv.Task{Task: t.spec, User: t.user, Dir: t.dir})
	for h := range interfaces.Having[interfaces.TaskPrestartHook](t.hooks) {
		response, err := h.Prestart(ctx, &interfaces.TaskPrestartRequest{
			Alloc: alloc, Task: t.spec, Dir: t.dir, User: t.user, Env: env, Resources: &t.runner.resources,
			Kept: t.kept(h.Name()), Keep: func(kept map[string]string) { t.keep(h.Name(), kept) },
			WriteFile: t.writeFile, Lifecycle: lifecycle{t},
		})
		if err != nil {
			return fmt.Errorf("task %q: prestart hook %q: %w", t.spec.Name, h.Name(), err)
		}
		if response != nil {
			env = env.With(response.Env)
		}
	}
	t.enter("running", api.TaskStarted, "Task started by client")
	for h := range interfaces.Having[interfaces.TaskPoststartHook](t.hooks) {
		if err := h.Poststart(ctx, &interfaces.TaskPoststartRequest{Alloc: alloc, Task: t.spec, Env: env}); err != nil {
			t.runner.cfg.Logger.Warn("a poststart hook failed", "task", t.spec.Name, "hook", h.Name(), "error", err)
		}
	}
	return nil
}

// exit ends what stands for the task's process, if there is any.
func (t *task) exit(ctx context.Context, state string) error {
	if t.state() != "running" {
		return nil
	}
	var errs []error
	for h := range interfaces.Having[interfaces.TaskPreKillHook](t.hooks) {
		errs = append(errs, h.PreKilling(ctx))
	}
	t.enter(state, api.TaskTerminated, "Exit Code: 0")
	for h := range interfaces.Having[interfaces.TaskExitedHook](t.hooks) {
		errs = append(errs, h.Exited(ctx, interfaces.ExitResult{At: time.Now()}))
	}
	return errors.Join(errs...)
}

// stop ends the task for good.
func (t *task) stop(ctx context.Context) error {
	err := t.exit(ctx, "dead")
	for h := range interfaces.Having[interfaces.TaskStopHook](t.hooks) {
		err = errors.Join(err, h.Stop(ctx))
	}
	return err
}

// restart ends the task and starts it again. Errors: interfaces.ErrTerminal when the allocation ends, ctx's.
func (t *task) restart(ctx context.Context, reason string) error {
	release, err := t.runner.act(ctx)
	if err != nil {
		return err
	}
	defer release()
	if t.state() != "running" {
		return interfaces.ErrTaskNotRunning
	}
	t.enter("running", api.TaskRestartSignal, reason)
	if err := t.exit(ctx, "pending"); err != nil {
		return err
	}
	return t.start(context.WithoutCancel(ctx))
}

// act keeps others from starting or ending tasks until release.
func (r *runner) act(ctx context.Context) (release func(), err error) {
	select {
	case r.acting <- struct{}{}:
	case <-r.ending:
		return nil, interfaces.ErrTerminal
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case <-r.ending:
		<-r.acting
		return nil, interfaces.ErrTerminal
	default:
		return func() { <-r.acting }, nil
	}
}

func (t *task) kept(hook string) map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.saved[hook])
}

func (t *task) keep(hook string, kept map[string]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.saved[hook] = maps.Clone(kept)
}

func (t *task) writeFile(path string, data []byte) error {
	return allocdir.WriteFile(t.dir, path, data, 0o600, int(t.user.UID), int(t.user.GID))
}

// lifecycle is a task as its own hooks may act on it.
type lifecycle struct{ task *task }

func (l lifecycle) Restart(ctx context.Context, reason string) error {
	return l.task.restart(ctx, reason)
}

func (l lifecycle) Signal(_ context.Context, name string) error { return l.task.signal(name) }

func (t *task) signal(name string) error {
	if _, err := signals.Parse(name); err != nil {
		return err
	}
	if t.state() != "running" {
		return interfaces.ErrTaskNotRunning
	}
	t.enter("running", api.TaskSignaling, "Task being sent a signal")
	return nil
}

func (t *task) state() string { return t.runner.Alloc().TaskStates[t.spec.Name].State }

// enter gives the task a state and an event.
func (t *task) enter(state, kind, message string) {
	event := &api.TaskEvent{Type: kind, DisplayMessage: message, Details: map[string]string{}, Time: time.Now().UnixNano()}
	t.runner.change(func(a *api.Allocation) {
		next := *a.TaskStates[t.spec.Name]
		next.State, next.Events = state, append(slices.Clip(next.Events[max(0, len(next.Events)-9):]), event)
		switch {
		case kind == api.TaskStarted:
			next.StartedAt = time.Now()
		case state == "dead":
			next.FinishedAt = time.Now()
		}
		a.TaskStates = maps.Clone(a.TaskStates)
		a.TaskStates[t.spec.Name] = &next
		if kind == api.TaskStarted {
			a.ClientStatus, a.ClientDescription = api.AllocClientStatusRunning, "Tasks are running"
		}
		if t.runner.cfg.OnEvent != nil {
			t.runner.cfg.OnEvent(t.spec.Name, event)
		}
	})
}

// change makes the allocation's next version.
func (r *runner) change(edit func(*api.Allocation)) {
	r.snapshots.Change(edit)
	if r.cfg.Updates != nil {
		r.cfg.Updates.AllocUpdated(r.Alloc())
	}
}
