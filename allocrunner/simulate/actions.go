package simulate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/registration"
	"taskapi/allocrunner/internal/stats"
)

// Stop ends the allocation at once: no task needs time.
func (r *runner) Stop(_ context.Context, how interfaces.StopRequest) error {
	if !r.Terminal() {
		r.change(func(a *api.Allocation) { how.Apply(a) })
	}
	r.end(nil)
	return nil
}

func (r *runner) Kill() {
	if r.Alloc().DesiredStatus != api.AllocDesiredStatusStop {
		_ = r.Stop(context.Background(), interfaces.StopRequest{}) // it never fails
	}
}

func (r *runner) Detach() { r.end(interfaces.ErrDetached) }

func (r *runner) Alloc() *api.Allocation { return r.Latest() }

func (r *runner) Terminal() bool { return r.Alloc().ClientTerminalStatus() }

// change makes the allocation's next version.
func (r *runner) change(edit func(*api.Allocation)) {
	r.Change(edit)
	if r.cfg.Updates != nil {
		r.cfg.Updates.AllocUpdated(r.Alloc())
	}
}

func (r *runner) Checks() (api.AllocCheckStatuses, uint64) { return nil, 0 }

// Stats shows tasks that have no process and use nothing.
func (r *runner) Stats(ctx context.Context, interval time.Duration) (<-chan *api.AllocResourceUsage, error) {
	sampler := stats.New(stats.Config{Logger: r.cfg.Logger, Tasks: func(context.Context) (stats.Tasks, error) {
		return stats.Tasks{Idle: r.names}, nil
	}})
	return sampler.Stream(ctx, interval)
}

// Files are those of the directories: simulated tasks print nothing.
func (r *runner) Files(reader *interfaces.Reader) interfaces.Files { return r.files.As(reader) }

func (r *runner) task(name string) (*task, error) {
	i := slices.Index(r.names, name)
	if i < 0 {
		return nil, fmt.Errorf("task %q: %w", name, interfaces.ErrTaskNotFound)
	}
	return r.tasks[i], nil
}

func (r *runner) RestartTask(ctx context.Context, name string) error {
	t, err := r.task(name)
	if err != nil {
		return err
	}
	return t.Restart(ctx, "User requested task to restart")
}

func (r *runner) RestartRunning(ctx context.Context) error {
	err := errors.Join(r.register(ctx, "", registration.Renewed),
		each(ctx, r.cfg.Hooks, interfaces.RunnerTaskRestartHook.PreTaskRestart))
	if err != nil {
		r.cfg.Logger.Warn("a hook before a restart failed", "error", err)
	}
	err = nil
	for _, t := range r.tasks {
		err = errors.Join(err, t.Restart(ctx, "User requested running tasks to restart"))
	}
	return err
}

// RestartAll restarts the tasks that run: each task runs for as long as the allocation does.
func (r *runner) RestartAll(ctx context.Context) error { return r.RestartRunning(ctx) }

func (r *runner) Signal(ctx context.Context, name, signal string) error {
	if name != "" {
		t, err := r.task(name)
		if err != nil {
			return err
		}
		return t.Signal(ctx, signal)
	}
	var err error
	for _, t := range r.tasks {
		err = errors.Join(err, t.Signal(ctx, signal))
	}
	return err
}

// Exec refuses every command: a simulated task has no process to run one beside.
func (r *runner) Exec(_ context.Context, req interfaces.ExecRequest) (interfaces.ExecSession, error) {
	if _, err := r.task(req.Task); err != nil {
		return nil, err
	}
	reason := "the task is simulated: it has no process to run a command beside"
	return nil, &interfaces.ExecError{Reason: reason, Err: errors.ErrUnsupported}
}

// Update refuses every other version of the job.
func (r *runner) Update(context.Context, *api.Job) error {
	return &interfaces.DestructiveError{
		ID: r.cfg.Alloc.ID, Changes: []string{"a simulated allocation has one version of its job"},
	}
}

func (r *runner) Destroy(ctx context.Context) error {
	if !r.Terminal() {
		return interfaces.ErrNotTerminal
	}
	return errors.Join(each(ctx, r.cfg.Hooks, interfaces.RunnerDestroyHook.Destroy), allocdir.Remove(r.cfg.Dir))
}
