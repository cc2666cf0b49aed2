// Package allocrunner runs one allocation: its directories and ports, its tasks in their order, its checks, and what the API shows
// of all that. It promises that Run leaves nothing behind, and that whoever reads sees a whole state. It knows nothing of HTTP,
// tokens or sockets: those come to it as hooks.
package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/driver"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/taskrunner"
)

// ErrFailed is what Run returns for an allocation that ended with a failed task.
var ErrFailed = errors.New("allocation failed")

// Runner is the AllocRunner of real processes.
type Runner struct {
	cfg    interfaces.Config
	group  *api.TaskGroup
	logger *slog.Logger

	snapshots snapshots
	tasks     []*taskrunner.Runner
	order     []lifecycle.Task
	changed   chan struct{} // a task's state has changed; capacity 1, since only the latest matters
	kill      chan struct{} // closed by Kill
	killOnce  sync.Once
	resources resources // acquired by Run before the first task starts
	running   running
	eventMu   sync.Mutex // held while OnEvent is called
}

var _ interfaces.AllocRunner = (*Runner)(nil)

// New makes a runner of an allocation whose job has the group that it names. It does no I/O. Errors: what the group says that no
// machine could run, such as an unknown kill_signal.
func New(cfg interfaces.Config) (*Runner, error) {
	group := cfg.Alloc.GetTaskGroup()
	if group == nil {
		return nil, fmt.Errorf("allocation %s: job %q has no group %q", cfg.Alloc.ID, cfg.Alloc.JobID, cfg.Alloc.TaskGroup)
	}
	r := &Runner{
		cfg:     cfg,
		group:   group,
		logger:  cfg.Logger,
		changed: make(chan struct{}, 1),
		kill:    make(chan struct{}),
	}
	if cfg.Saved != nil {
		r.snapshots.restore(cfg.Saved.Alloc)
	} else {
		r.snapshots.init(cfg.Alloc, group)
	}
	for _, t := range group.Tasks {
		r.order = append(r.order, lifecycle.Of(t))
		tr, err := r.newTask(t)
		if err != nil {
			return nil, err
		}
		r.tasks = append(r.tasks, tr)
	}
	return r, nil
}

// Alloc implements interfaces.AllocRunner.
func (r *Runner) Alloc() *api.Allocation { return r.snapshots.latest() }

// Wait implements interfaces.AllocRunner.
func (r *Runner) Wait(ctx context.Context, index uint64) *api.Allocation {
	return r.snapshots.wait(ctx, index)
}

// Over implements interfaces.AllocRunner.
func (r *Runner) Over() bool { return r.snapshots.over() }

// Kill implements interfaces.AllocRunner.
func (r *Runner) Kill() { r.killOnce.Do(func() { close(r.kill) }) }

// Checks implements interfaces.AllocRunner.
func (r *Runner) Checks() (api.AllocCheckStatuses, uint64) {
	if !r.live() {
		return nil, 0
	}
	return r.resources.checks.Results()
}

// Run implements interfaces.AllocRunner. It returns ErrFailed, wrapped, for an allocation that ended with a failed task, and the
// first error of the set-up for one that never began.
func (r *Runner) Run(ctx context.Context) (err error) {
	// Stopping is a step of the allocation's life, not the end of its goroutines: those live until Run has brought the tasks down.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer func() { err = errors.Join(err, r.postrun(life)) }()

	defer func() { err = errors.Join(err, r.resources.release()) }()
	err = r.acquire(life)
	if err == nil {
		err = r.prerun(ctx)
	}
	if err == nil {
		err = r.resources.await()
	}
	switch {
	case err == nil:
		return errors.Join(r.runTasks(ctx, life), r.persistNow())
	case r.cfg.Saved != nil: // what could not be taken over goes on as it is, for another try
		return errors.Join(err, r.resources.leave())
	}
	r.snapshots.failBefore(err)
	return errors.Join(err, r.persistNow())
}

// prerun calls the runner's hooks before anything starts.
func (r *Runner) prerun(ctx context.Context) error {
	for _, hook := range r.cfg.Hooks {
		h, ok := hook.(interfaces.RunnerPrerunHook)
		if !ok {
			continue
		}
		if err := h.Prerun(ctx, r.Alloc()); err != nil {
			return fmt.Errorf("prerun hook %q: %w", h.Name(), err)
		}
	}
	return nil
}

func (r *Runner) postrun(ctx context.Context) error {
	var errs []error
	for _, hook := range r.cfg.Hooks {
		if h, ok := hook.(interfaces.RunnerPostrunHook); ok {
			if err := h.Postrun(ctx); err != nil {
				errs = append(errs, fmt.Errorf("postrun hook %q: %w", h.Name(), err))
			}
		}
	}
	return errors.Join(errs...)
}

// runTasks runs the tasks to the end of the allocation.
func (r *Runner) runTasks(ctx, life context.Context) error {
	var background sync.WaitGroup
	defer background.Wait()
	life, end := context.WithCancel(life)
	defer end()
	background.Go(func() { r.persist(life) })
	background.Go(func() { r.resources.checks.Run(life) })
	for _, t := range r.tasks {
		r.receive(t)
	}
	r.publish()
	if err := r.persistNow(); err != nil { // before the first start: whoever comes after a kill must know of this allocation
		r.logger.Warn("state could not be written before the tasks start", "error", err)
	}
	for _, t := range r.tasks {
		background.Go(func() { t.Run(life, r.resources.processes) })
		defer t.Close()
	}
	r.begin()
	r.drive(ctx)
	if r.Alloc().ClientStatus == api.AllocClientStatusFailed {
		return fmt.Errorf("%w: %w", ErrFailed, r.failures())
	}
	return nil
}

// receive makes a task begin, or go on where an earlier runner left it.
func (r *Runner) receive(t *taskrunner.Runner) {
	if r.cfg.Saved == nil {
		t.Receive()
		return
	}
	var known *driver.Status
	for _, s := range r.resources.known {
		if s.Task == t.Name() {
			known = &s
		}
	}
	t.Restore(r.cfg.Saved.Tasks[t.Name()], r.cfg.Saved.Alloc.TaskStates[t.Name()], known)
}

// newTask makes the runner of one task. The machine it runs on is acquired later, before any task starts.
func (r *Runner) newTask(t *api.Task) (*taskrunner.Runner, error) {
	var hooks []interfaces.TaskHook
	if r.cfg.TaskHooks != nil {
		hooks = r.cfg.TaskHooks(r.Alloc(), t)
	}
	return taskrunner.New(taskrunner.Config{
		Task:     t,
		JobType:  deref(r.cfg.Alloc.Job.Type),
		Starter:  &starter{runner: r, task: t},
		Hooks:    hooks,
		Logger:   r.logger,
		OnEvent:  r.onEvent,
		OnChange: r.onChange,
	})
}

func (r *Runner) onEvent(task string, e *api.TaskEvent) {
	if r.cfg.OnEvent == nil {
		return
	}
	r.eventMu.Lock() // events of different tasks come from different goroutines
	defer r.eventMu.Unlock()
	r.cfg.OnEvent(task, e)
}

// onChange shows a task's new state at once, so that whoever caused it reads it, and lets drive see to what follows.
func (r *Runner) onChange() {
	r.publish()
	r.wake()
}

func (r *Runner) wake() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *Runner) task(name string) *taskrunner.Runner {
	for _, t := range r.tasks {
		if t.Name() == name {
			return t
		}
	}
	return nil
}

func (r *Runner) states() map[string]lifecycle.State {
	states := make(map[string]lifecycle.State, len(r.tasks))
	for _, t := range r.tasks {
		states[t.Name()] = t.State()
	}
	return states
}

// publish makes the tasks' present states the allocation's.
func (r *Runner) publish() {
	r.snapshots.change(func(a *api.Allocation) {
		a.TaskStates = make(map[string]*api.TaskState, len(r.tasks))
		for _, t := range r.tasks {
			a.TaskStates[t.Name()] = t.Wire()
		}
		a.ClientStatus, a.ClientDescription = lifecycle.ClientStatus(r.states())
	})
}

// failures names the failed tasks with the last word of each.
func (r *Runner) failures() error {
	var errs []error
	for name, s := range r.Alloc().TaskStates {
		if s.Failed && len(s.Events) > 0 {
			errs = append(errs, fmt.Errorf("task %q: %s", name, s.Events[len(s.Events)-1].DisplayMessage))
		}
	}
	return errors.Join(errs...)
}

func deref[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}
