// Package simulate has a runner of allocations whose tasks have no processes. It shows what another runner
// implements, and lets many allocations run in one process. A task has its directory, its hooks and its events, so
// also its socket and its token, and runs until the allocation is stopped. Services are registered. Ports and
// checks do nothing, and no state is saved.
package simulate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/allocfs"
	"taskapi/allocrunner/internal/registration"
	"taskapi/allocrunner/internal/services"
	"taskapi/allocrunner/internal/snapshots"
	"taskapi/allocrunner/taskenv"
	"taskapi/internal/ptr"
	"taskapi/internal/signals"
)

var _ interfaces.Factory = New

// runner is one simulated allocation.
type runner struct {
	cfg      interfaces.Config
	group    *api.TaskGroup
	services *registration.Registrar
	tasks    []*task
	names    []string // of the tasks
	files    *allocfs.Tree
	given    interfaces.HookResources // set by the prerun hooks
	snapshots.Snapshots
	acting sync.Mutex // held while tasks start, restart or end
	ending context.Context
	end    context.CancelCauseFunc // ends ending, with ErrDetached for Detach
}

// task is one simulated task.
type task struct {
	*runner
	spec  *api.Task
	user  interfaces.User
	dir   interfaces.TaskDir
	hooks []interfaces.TaskHook
	kept  sync.Map // what each hook keeps, by its name
}

// New makes the runner of a new allocation. Errors: the allocation was run before, or its job lacks the group.
func New(cfg interfaces.Config) (interfaces.AllocRunner, error) {
	group := cfg.Alloc.GetTaskGroup()
	switch {
	case cfg.Saved != nil:
		return nil, errors.New("a simulated allocation can't be resumed: it leaves nothing")
	case group == nil:
		return nil, fmt.Errorf("the job has no group %q", cfg.Alloc.TaskGroup)
	}
	r := &runner{cfg: cfg, group: group, services: registration.New(cfg.Alloc.ID, cfg.ServiceProviders)}
	r.ending, r.end = context.WithCancelCause(context.Background())
	alloc := *cfg.Alloc
	alloc.DeploymentID = "" // nothing decides whether it is healthy
	r.Init(&alloc, cfg.Previous)
	for _, spec := range group.Tasks {
		t := &task{runner: r, spec: spec, dir: allocdir.Paths(cfg.Dir, spec.Name)}
		if cfg.TaskHooks != nil {
			t.hooks = cfg.TaskHooks(r.Alloc(), spec)
		}
		r.tasks, r.names = append(r.tasks, t), append(r.names, spec.Name)
	}
	r.files = allocfs.New(cfg.Dir, r.names)
	return r, nil
}

// Run starts every task, and ends when the allocation is stopped.
func (r *runner) Run(ctx context.Context) error {
	r.acting.Lock()
	err := r.start(ctx)
	r.acting.Unlock()
	if err == nil {
		select {
		case <-ctx.Done():
			r.Kill()
		case <-r.ending.Done():
		}
		if context.Cause(r.ending) == interfaces.ErrDetached { //nolint:errorlint // it is Detach's own
			r.shutdown()
			return interfaces.ErrDetached
		}
	}
	r.end(nil)
	r.acting.Lock()
	defer r.acting.Unlock()
	background := context.WithoutCancel(ctx)
	if failed := r.register(background, "", registration.Dropped); failed != nil {
		r.cfg.Logger.Warn("services may still be registered", "error", failed)
	}
	for h := range interfaces.Having[interfaces.RunnerPreKillHook](r.cfg.Hooks) {
		h.PreKill()
	}
	for _, t := range r.tasks {
		err = errors.Join(err, t.exit(background, "dead"), each(background, t.hooks, interfaces.TaskStopHook.Stop))
	}
	r.change(func(a *api.Allocation) {
		a.ClientStatus, a.ClientDescription = api.AllocClientStatusComplete, "All tasks have completed"
		if err != nil {
			a.ClientStatus, a.ClientDescription = api.AllocClientStatusFailed, err.Error()
		}
	})
	r.services.Drop()
	return errors.Join(err, r.services.Sync(background),
		each(background, r.cfg.Hooks, interfaces.RunnerPostrunHook.Postrun))
}

// each calls the hooks of one kind one after another and joins their errors.
func each[H, Hook any](ctx context.Context, hooks []Hook, call func(H, context.Context) error) (err error) {
	for h := range interfaces.Having[H](hooks) {
		err = errors.Join(err, call(h, ctx))
	}
	return err
}

// start makes the directories, calls the hooks of the allocation and starts every task.
func (r *runner) start(ctx context.Context) error {
	access := allocdir.OnlyOwner
	for _, t := range r.tasks {
		var err error
		if t.user, err = allocdir.LookupUser(t.spec.User); err != nil {
			return fmt.Errorf("task %q: %w", t.spec.Name, err)
		}
		if t.spec.User != "" {
			access = allocdir.AnyUser
		}
	}
	if err := allocdir.BuildAlloc(r.cfg.Dir, access, r.names); err != nil {
		return err
	}
	if err := r.resolveServices(); err != nil {
		return err
	}
	if err := r.register(ctx, "", registration.Began); err != nil {
		return err
	}
	request := &interfaces.RunnerPrerunRequest{Alloc: r.Alloc(), Env: r.env(), Resources: &r.given}
	for h := range interfaces.Having[interfaces.RunnerPrerunHook](r.cfg.Hooks) {
		if err := h.Prerun(ctx, request); err != nil {
			return fmt.Errorf("prerun hook %q: %w", h.Name(), err)
		}
	}
	for _, t := range r.tasks {
		t.enter("pending", api.TaskReceived, "Task received by client")
		if _, err := allocdir.BuildTask(r.cfg.Dir, t.spec.Name, t.user); err != nil {
			return fmt.Errorf("task %q: %w", t.spec.Name, err)
		}
		if err := t.start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// resolveServices finds the addresses of the services. Nothing listens at them: a port has its static number, or
// the one that it leads to, or 0.
func (r *runner) resolveServices() error {
	ports := interfaces.Ports(interfaces.Networks(r.group))
	for i, p := range ports {
		ports[i].Value = max(p.Value, p.To, 0)
	}
	resolver := services.Resolver{
		Replace: func(task, s string) string {
			env := r.env()
			if t, err := r.task(task); err == nil { // not the group
				env = env.WithTask(taskenv.Task{Task: t.spec})
			}
			return env.ReplaceEnv(s)
		},
		Ports: ports,
		Job:   ptr.Deref(r.cfg.Alloc.Job.Name), Group: r.cfg.Alloc.TaskGroup, HostIP: r.cfg.HostIP,
	}
	all, err := resolver.ResolveAll(r.cfg.Alloc, r.cfg.Datacenter)
	r.services.Update(all)
	return err
}

// register lets the providers know what an event means for the services of a task, or of the group.
func (r *runner) register(ctx context.Context, task string, e registration.Event) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r.services.Apply(task, e)
	return r.services.Sync(ctx)
}

func (r *runner) env() *taskenv.Env {
	alloc := r.Alloc()
	return taskenv.New(taskenv.Config{Alloc: alloc, Dir: allocdir.Paths(r.cfg.Dir, ""), Node: api.Node{
		ID: alloc.NodeID, Name: alloc.NodeName, Datacenter: r.cfg.Datacenter,
	}})
}

func (r *runner) shutdown() {
	r.services.Leave()
	for h := range interfaces.Having[interfaces.ShutdownHook](r.cfg.Hooks) {
		h.Shutdown()
	}
	for _, t := range r.tasks {
		for h := range interfaces.Having[interfaces.ShutdownHook](t.hooks) {
			h.Shutdown()
		}
	}
}

// start runs the task's hooks, and shows the task as running.
func (t *task) start(ctx context.Context) error {
	t.enter("pending", api.TaskSetup, "Building Task Directory")
	alloc, env := t.Alloc(), t.env().WithTask(taskenv.Task{Task: t.spec, User: t.user, Dir: t.dir})
	for h := range interfaces.Having[interfaces.TaskPrestartHook](t.hooks) {
		kept, _ := t.kept.Load(h.Name())
		was, _ := kept.(map[string]string)
		response, err := h.Prestart(ctx, &interfaces.TaskPrestartRequest{
			Alloc: alloc, Task: t.spec, Dir: t.dir, User: t.user, Env: env, Lifecycle: t,
			Resources: &t.given,
			Kept:      maps.Clone(was), Keep: func(kept map[string]string) { t.kept.Store(h.Name(), maps.Clone(kept)) },
			Sync:      func() error { return nil },
			WriteFile: func(f interfaces.File) error { return allocdir.WriteHookFile(t.dir, t.user, f) },
		})
		if err != nil {
			return fmt.Errorf("task %q: prestart hook %q: %w", t.spec.Name, h.Name(), err)
		}
		if response != nil {
			env = env.With(response.Env)
		}
	}
	t.enter("running", api.TaskStarted, "Task started by client")
	err := t.register(ctx, t.spec.Name, registration.Started)
	for h := range interfaces.Having[interfaces.TaskPoststartHook](t.hooks) {
		err = errors.Join(err, h.Poststart(ctx, &interfaces.TaskPoststartRequest{Alloc: alloc, Task: t.spec, Env: env}))
	}
	if err != nil {
		t.cfg.Logger.Warn("a hook after a start failed", "task", t.spec.Name, "error", err)
	}
	return nil
}

// exit shows the task's process as ended, if the task runs.
func (t *task) exit(ctx context.Context, state string) error {
	if t.state() != "running" {
		return nil
	}
	err := errors.Join(t.register(ctx, t.spec.Name, registration.Ended),
		each(ctx, t.hooks, interfaces.TaskPreKillHook.PreKilling))
	t.enter(state, api.TaskTerminated, "Exit Code: 0")
	for h := range interfaces.Having[interfaces.TaskExitedHook](t.hooks) {
		err = errors.Join(err, h.Exited(ctx, interfaces.ExitResult{At: time.Now()}))
	}
	return err
}

// Restart ends the task and starts it again.
func (t *task) Restart(ctx context.Context, reason string) error {
	t.acting.Lock()
	defer t.acting.Unlock()
	switch {
	case t.ending.Err() != nil:
		return interfaces.ErrTerminal
	case t.state() != "running":
		return interfaces.ErrTaskNotRunning
	}
	t.enter("running", api.TaskRestartSignal, reason)
	if err := t.exit(ctx, "pending"); err != nil {
		return err
	}
	return t.start(context.WithoutCancel(ctx))
}

// Signal shows that the task got a signal.
func (t *task) Signal(_ context.Context, name string) error {
	if _, err := signals.Parse(name); err != nil {
		return err
	}
	if t.state() != "running" {
		return interfaces.ErrTaskNotRunning
	}
	t.enter("running", api.TaskSignaling, "Task being sent a signal")
	return nil
}

// Exec runs nothing.
func (t *task) Exec(context.Context, []string) (int, error) { return -1, interfaces.ErrNotSupported }

// Fail does nothing: no simulated task fails.
func (t *task) Fail(string) {}

// Event does nothing.
func (t *task) Event(string, string) {}

func (t *task) state() string { return t.Alloc().TaskStates[t.spec.Name].State }

// enter gives the task a state and an event.
func (t *task) enter(state, kind, message string) {
	now := time.Now()
	event := &api.TaskEvent{Type: kind, DisplayMessage: message, Details: map[string]string{}, Time: now.UnixNano()}
	t.change(func(a *api.Allocation) {
		next := *a.TaskStates[t.spec.Name]
		next.State, next.Events = state, append(slices.Clip(next.Events[max(0, len(next.Events)-9):]), event)
		switch {
		case kind == api.TaskStarted:
			next.StartedAt = now
			a.ClientStatus, a.ClientDescription = api.AllocClientStatusRunning, "Tasks are running"
		case state == "dead":
			next.FinishedAt = now
		}
		a.TaskStates = maps.Clone(a.TaskStates)
		a.TaskStates[t.spec.Name] = &next
		if t.cfg.OnEvent != nil {
			t.cfg.OnEvent(t.spec.Name, event)
		}
	})
}
