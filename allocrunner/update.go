package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/checks"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/snapshots"
	"taskapi/allocrunner/internal/taskrunner"
	"taskapi/allocrunner/jobspec/jobdiff"
	"taskapi/internal/ptr"
)

// If Update is called before Run, the allocation begins with the new version.
func (r *Runner) Update(ctx context.Context, job *api.Job) error {
	begun, err := r.updatable()
	switch {
	case err != nil:
	case begun:
		err = r.fsm.runDetached(ctx, func(ctx context.Context) error { return r.update(ctx, job, nil) })
	default:
		err = r.update(ctx, job, nil)
	}
	if err != nil {
		return fmt.Errorf("update: %w", err)
	}
	return nil
}

// taskUpdate is a version of the job that is applied while the processes of some tasks are gone.
type taskUpdate struct {
	job   *api.Job
	tasks []string
}

var _ interfaces.TaskUpdater = (*Runner)(nil)

// UpdateTasks applies the version between the old processes and the new ones, so that a crash at any time leaves every
// process with the version that is saved.
func (r *Runner) UpdateTasks(ctx context.Context, job *api.Job, tasks []string) (err error) {
	defer wrap(&err, "update")
	if err := r.fsm.awaitSetUp(ctx); err != nil {
		return err
	}
	alloc := r.Alloc()
	if _, err := decide(alloc, snapshots.WithJob(alloc, job), tasks); err != nil { // before anything is stopped
		return err
	}
	if err := r.Validate(job); err != nil {
		return err
	}
	reply := make(chan error, 1)
	if !r.fsm.handle(restartRequested{reply, &taskUpdate{job, tasks}}).live() {
		return interfaces.ErrTerminal
	}
	return await(ctx, reply)
}

// updateStopped stops the processes of an update's tasks, and applies the update.
func (r *Runner) updateStopped(ctx context.Context, u *taskUpdate) error {
	var stop []*taskrunner.Runner
	for _, t := range r.tasks { // one that is being started, too: it may have the earlier version already
		if slices.Contains(u.tasks, t.Name()) && t.State().Phase != lifecycle.Dead {
			stop = append(stop, t)
		}
	}
	errs := each(stop, func(t *taskrunner.Runner) error { return t.Reset(ctx, "The task's part of the job has changed") })
	if !r.fsm.state().live() { // a stop came in between: nothing starts again
		return interfaces.ErrTerminal
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return r.update(ctx, u.job, u.tasks)
}

// decide is Plan without force, but changes that need new processes of the stopped tasks count as in place.
func decide(alloc, next *api.Allocation, stopped []string) (Decision, error) {
	if len(stopped) > 0 {
		decision, changes, err := Plan(Current{Alloc: alloc}, next, true)
		restarts, suffices := jobdiff.ByRestarts(alloc, changes)
		others := slices.ContainsFunc(restarts, func(task string) bool { return !slices.Contains(stopped, task) })
		if err == nil && decision == Replace && suffices && !others {
			return InPlace, nil
		}
	}
	decision, _, err := Plan(Current{Alloc: alloc}, next, false)
	return decision, err
}

// update changes the job and, once the tasks have been received, updates hooks and tasks. Before that, hooks and tasks
// are made from the new job. Changes that need new processes of the stopped tasks are applied, too.
func (r *Runner) update(ctx context.Context, job *api.Job, stopped []string) error {
	r.updating.Lock()
	defer r.updating.Unlock()
	begun, err := r.updatable()
	if err != nil {
		return err
	}
	alloc := r.Alloc()
	next := snapshots.WithJob(alloc, job)
	switch decision, err := decide(alloc, next, stopped); {
	case err != nil || decision == Unchanged:
		return err
	case decision != InPlace: // it ends for another version
		return interfaces.ErrTerminal
	}
	if err := r.validate(next, begun); err != nil {
		return err
	}
	r.health.unwatch() // it would decide about the earlier version
	r.snapshots.Change(func(a *api.Allocation) { *a = *snapshots.WithJob(a, job) })
	r.updated()
	if err := r.save(); err != nil {
		r.logger.Warn("the update could not be saved yet: if taskapi is killed before it is, the job has to be given " +
			"again")
	}
	if !begun {
		return nil
	}
	return r.follow(ctx)
}

// Validate reports whether an Update with a version of the job that can be applied in place would succeed. Errors:
// interfaces.ErrInvalidJob.
func (r *Runner) Validate(job *api.Job) error {
	return r.validate(snapshots.WithJob(r.Alloc(), job), r.fsm.state().begun())
}

// validate leaves out the checks during the set-up, when their resources are still being acquired. A runner that has
// not been run knows the resources of the runner before it.
func (r *Runner) validate(alloc *api.Allocation, begun bool) error {
	if r.cfg.Saved != nil && r.fsm.state().phase == received {
		r.resources.node = r.detectNode()
		begun = true
	}
	var errs []error
	for _, task := range alloc.GetTaskGroup().Tasks {
		errs = append(errs, taskrunner.Validate(task, ptr.Deref(alloc.Job.Type)))
	}
	if begun {
		_, unresolved := r.services(alloc)
		_, err := checks.New(r.checkConfig(alloc))
		errs = append(errs, unresolved, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %w", interfaces.ErrInvalidJob, err)
	}
	return nil
}

// begin marks the tasks as received, and applies updates that arrived during the set-up.
func (r *Runner) begin(ctx context.Context) {
	r.updating.Lock()
	defer r.updating.Unlock()
	r.fsm.handle(tasksReceived(r.groupNow()))
	if r.Alloc().Job == r.madeOf {
		return
	}
	if err := r.follow(ctx); err != nil {
		r.logger.Warn("a task could not be updated; the update stands", "error", err)
	}
}

// follow updates hooks and tasks to the present version of the job.
func (r *Runner) follow(ctx context.Context) error {
	alloc := r.Alloc()
	tryHooks(ctx, r, "update", "a hook could not be updated; the update stands",
		func(h interfaces.RunnerUpdateHook, ctx context.Context) error {
			return h.Update(ctx, &interfaces.RunnerUpdateRequest{Alloc: alloc, Env: r.env(alloc)})
		})
	var errs []error
	for _, task := range alloc.GetTaskGroup().Tasks {
		t := r.task(task.Name)
		req := &interfaces.TaskUpdateRequest{Alloc: alloc, Task: task, Env: r.taskEnv(alloc, task)}
		// the allocation has ended meanwhile
		if err := t.Update(ctx, req); err != nil && !errors.Is(err, interfaces.ErrTaskNotRunning) {
			errs = append(errs, fmt.Errorf("update task %q: %w", task.Name, err))
		}
	}
	r.fsm.changed.Send() // the group's own settings may have changed
	return errors.Join(errs...)
}

// updatable reports whether the allocation's tasks have been received. Errors: interfaces.ErrTerminal when it is to
// end, or has ended.
func (r *Runner) updatable() (begun bool, err error) {
	s := r.fsm.state()
	if s.begun() && !s.live() {
		return false, interfaces.ErrTerminal
	}
	return s.begun(), nil
}
