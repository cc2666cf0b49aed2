package simulate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/stats"
)

func (r *runner) Stop(_ context.Context, how interfaces.StopRequest) error {
	r.requestStop(how)
	return nil
}

// Kill stops the allocation as Stop does: nothing delays the end of a simulated task.
func (r *runner) Kill() {
	if r.Alloc().DesiredStatus != api.AllocDesiredStatusStop {
		r.requestStop(interfaces.StopRequest{})
	}
}

func (r *runner) requestStop(how interfaces.StopRequest) {
	if !r.Terminal() {
		r.change(func(a *api.Allocation) { how.Apply(a) })
	}
	r.end()
}

// Touch makes another version of the allocation, without a change, unless it has ended.
func (r *runner) Touch() bool {
	if r.Terminal() {
		return false
	}
	r.change(func(*api.Allocation) {})
	return true
}

func (r *runner) Detach() { r.detach() }

func (r *runner) Alloc() *api.Allocation { return r.snapshots.Latest() }

func (r *runner) Wait(ctx context.Context, index uint64) *api.Allocation {
	return r.snapshots.Wait(ctx, index)
}

func (r *runner) Checks() (api.AllocCheckStatuses, uint64) { return nil, 0 }

// Stats says of the tasks that run that they have no process and use nothing.
func (r *runner) Stats(ctx context.Context, interval time.Duration) (<-chan *api.AllocResourceUsage, error) {
	return stats.New(stats.Config{Logger: r.cfg.Logger, Tasks: func(context.Context) (stats.Tasks, error) {
		tasks := stats.Tasks{Ended: map[string]time.Time{}}
		for name, state := range r.Alloc().TaskStates {
			switch {
			case state.State == "running":
				tasks.Idle = append(tasks.Idle, name)
			case !state.StartedAt.IsZero():
				tasks.Ended[name] = state.FinishedAt
			}
		}
		return tasks, nil
	}}).Stream(ctx, interval)
}

// Files are those of the directories: simulated tasks print nothing.
func (r *runner) Files(reader *interfaces.Reader) interfaces.Files { return r.files.As(reader) }

func (r *runner) Terminal() bool { return r.terminal.Load() }

// task returns a task by its name.
func (r *runner) task(name string) (*task, error) {
	for _, t := range r.tasks {
		if t.spec.Name == name {
			return t, nil
		}
	}
	return nil, fmt.Errorf("task %q: %w", name, interfaces.ErrTaskNotFound)
}

func (r *runner) RestartTask(ctx context.Context, name string) error {
	t, err := r.task(name)
	if err != nil {
		return err
	}
	return t.restart(ctx, "User requested task to restart")
}

func (r *runner) RestartRunning(ctx context.Context) error {
	for h := range interfaces.Having[interfaces.RunnerTaskRestartHook](r.cfg.Hooks) {
		if err := h.PreTaskRestart(ctx); err != nil {
			r.cfg.Logger.Warn("a hook failed before a restart", "hook", h.Name(), "error", err)
		}
	}
	var errs []error
	for _, t := range r.tasks {
		errs = append(errs, t.restart(ctx, "User requested running tasks to restart"))
	}
	return errors.Join(errs...)
}

// RestartAll restarts all tasks as RestartRunning does: every task runs for as long as the allocation does.
func (r *runner) RestartAll(ctx context.Context) error { return r.RestartRunning(ctx) }

func (r *runner) Signal(_ context.Context, name, signal string) error {
	targets := r.tasks
	if name != "" {
		t, err := r.task(name)
		if err != nil {
			return err
		}
		targets = []*task{t}
	}
	for _, t := range targets {
		if err := t.signal(signal); err != nil {
			return err
		}
	}
	return nil
}

// Exec refuses every command: a simulated task has no process to run one beside.
func (r *runner) Exec(_ context.Context, req interfaces.ExecRequest) (interfaces.ExecSession, error) {
	if _, err := r.task(req.Task); err != nil {
		return nil, err
	}
	return nil, &interfaces.ExecError{Reason: "the task is simulated: it has no process to run a command beside", Err: errors.ErrUnsupported}
}

// Update refuses every other version of the job.
func (r *runner) Update(context.Context, *api.Job) error {
	return &interfaces.DestructiveError{ID: r.Alloc().ID, Changes: []string{"a simulated allocation has one version of its job"}}
}

func (r *runner) Destroy(ctx context.Context) error {
	if !r.Terminal() {
		return interfaces.ErrNotTerminal
	}
	var errs []error
	for h := range interfaces.Having[interfaces.RunnerDestroyHook](r.cfg.Hooks) {
		errs = append(errs, h.Destroy(ctx))
	}
	return errors.Join(append(errs, allocdir.Remove(r.cfg.Dir))...)
}
