package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/taskrunner"
	"taskapi/internal/signals"
)

// wrap adds to an error, if there is one, the operation that failed.
func wrap(err *error, what string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(what, args...), *err)
	}
}

func (r *Runner) RestartTask(ctx context.Context, task string) (err error) {
	defer wrap(&err, "restart task %q", task)
	t := r.task(task)
	if t == nil {
		return interfaces.ErrTaskNotFound
	}
	if err := r.fsm.awaitLive(ctx); err != nil {
		return err
	}
	return t.Restart(ctx, "User requested task to restart") // Nomad's words, as below
}

func (r *Runner) RestartRunning(ctx context.Context) (err error) {
	defer wrap(&err, "restart running tasks")
	if err := r.fsm.awaitLive(ctx); err != nil {
		return err
	}
	if len(r.runningTasks()) > 0 {
		r.preTaskRestart(ctx)
	}
	if !r.fsm.state().live() { // a stop came in between, and it may grant the tasks a delay
		return interfaces.ErrTerminal
	}
	_, err = joined(each(r.runningTasks(), func(t *taskrunner.Runner) error {
		return t.Restart(ctx, "User requested running tasks to restart")
	}))
	if errors.Is(err, interfaces.ErrTerminal) {
		err = interfaces.ErrTerminal // once, even if many tasks report it
	}
	return err
}

// RestartAll stops all tasks before it starts the first one, even if the caller does not wait.
func (r *Runner) RestartAll(ctx context.Context) (err error) {
	defer wrap(&err, "restart all tasks")
	if err := r.fsm.awaitSetUp(ctx); err != nil {
		return err
	}
	reply := make(chan error, 1)
	if !r.fsm.handle(restartRequested{reply: reply}).live() {
		return interfaces.ErrTerminal
	}
	return await(ctx, reply)
}

// restartTasks restarts all tasks, or those of an update, while no gate opens.
func (r *Runner) restartTasks(ctx context.Context, update *taskUpdate) error {
	defer r.fsm.handle(restartEnded{})
	if !r.fsm.state().live() {
		return interfaces.ErrTerminal
	}
	if update != nil {
		return r.updateStopped(ctx, update)
	}
	r.preTaskRestart(ctx)
	if !r.fsm.state().live() { // as above
		return interfaces.ErrTerminal
	}
	errs := each(r.tasks, func(t *taskrunner.Runner) error { return t.Reset(ctx, "User requested all tasks to restart") })
	if !r.fsm.state().live() { // a stop came in between: nothing starts again
		return interfaces.ErrTerminal
	}
	return errors.Join(errs...)
}

// Signal to every task reaches those that have a process, and fails when none has.
func (r *Runner) Signal(ctx context.Context, task, signal string) (err error) {
	if _, err := signals.Parse(signal); err != nil {
		return err
	}
	if task == "" {
		defer wrap(&err, "signal all tasks")
	} else {
		defer wrap(&err, "signal task %q", task)
	}
	if err := r.fsm.awaitSetUp(ctx); err != nil {
		return err
	}
	if t := r.task(task); t != nil {
		return t.Signal(ctx, signal)
	}
	if task != "" {
		return interfaces.ErrTaskNotFound
	}
	done, err := joined(each(r.tasks, func(t *taskrunner.Runner) error { return t.Signal(ctx, signal) }))
	if done == 0 && err == nil {
		return interfaces.ErrTaskNotRunning
	}
	return err
}

var _ interfaces.Pauser = (*Runner)(nil)

func (r *Runner) PauseState(task string) (interfaces.ScheduleState, error) {
	t := r.task(task)
	if t == nil {
		return interfaces.ScheduleRun, interfaces.ErrTaskNotFound
	}
	if saved := r.cfg.Saved; saved != nil && !r.fsm.state().begun() { // a client may ask before the tasks are restored
		return taskrunner.SavedPauseState(saved.Tasks[task]), nil
	}
	return t.PauseState(), nil
}

func (r *Runner) SetPauseState(ctx context.Context, task string, override interfaces.ScheduleState) error {
	t := r.task(task)
	if t == nil {
		return interfaces.ErrTaskNotFound
	}
	if err := r.fsm.awaitSetUp(ctx); err != nil {
		return err
	}
	return t.SetPauseState(ctx, override)
}

func (r *Runner) runningTasks() []*taskrunner.Runner {
	var running []*taskrunner.Runner
	for _, t := range r.tasks {
		if t.Running() || t.Restarting() {
			running = append(running, t)
		}
	}
	return running
}

// each calls f for all tasks at once and returns their errors when all have returned.
func each(tasks []*taskrunner.Runner, f func(*taskrunner.Runner) error) []error {
	errs := make([]error, len(tasks))
	var wg sync.WaitGroup
	for i, t := range tasks {
		wg.Go(func() { errs[i] = f(t) })
	}
	wg.Wait()
	return errs
}

// joined returns how many tasks were reached, and the errors of the others. A task without a process is not an error.
func joined(errs []error) (done int, err error) {
	var failed []error
	for _, err := range errs {
		switch {
		case err == nil:
			done++
		case !errors.Is(err, interfaces.ErrTaskNotRunning):
			failed = append(failed, err)
		}
	}
	return done, errors.Join(failed...)
}
