package allocrunner

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec"
)

// Update implements interfaces.AllocRunner. Before Run the allocation just begins with the new version.
func (r *Runner) Update(ctx context.Context, job *api.Job) error {
	r.updating.Lock()
	defer r.updating.Unlock()
	if !r.updatable() {
		return fmt.Errorf("update: %w", interfaces.ErrTerminal)
	}
	alloc := r.Alloc()
	changes := jobspec.Changes(alloc.Job, job, alloc.TaskGroup)
	if len(changes) == 0 {
		return nil
	}
	if err := destructive(changes); err != nil {
		return err
	}
	begun := r.live()
	if begun {
		if err := r.checks.validate(withJob(alloc, job)); err != nil {
			return fmt.Errorf("update: %w", err)
		}
	}
	r.snapshots.change(func(a *api.Allocation) { *a = *withJob(a, job) })
	r.updated()
	if err := r.journal.allocSafe(r.Alloc(), false); err != nil {
		r.logger.Warn("the update could not be written down yet: if taskapi is killed before it can be, give the new job file again")
	}
	if !begun {
		return nil
	}
	r.updateHooks(ctx)
	return r.updateTasks(ctx)
}

// updateTasks hands each task its new version.
func (r *Runner) updateTasks(ctx context.Context) error {
	alloc := r.Alloc()
	var errs []error
	for _, task := range alloc.GetTaskGroup().Tasks {
		t := r.task(task.Name)
		req := &interfaces.TaskUpdateRequest{Alloc: alloc, Task: task, Env: r.taskEnv(alloc, task)}
		if err := t.Update(ctx, req); err != nil {
			errs = append(errs, fmt.Errorf("update task %q: %w", task.Name, err))
		}
	}
	r.wake() // the group's own settings may have changed
	return errors.Join(errs...)
}

// withJob is the allocation with another version of its job.
func withJob(alloc *api.Allocation, job *api.Job) *api.Allocation {
	next, version := *alloc, *job
	index := alloc.ModifyIndex + 1
	number := deref(alloc.Job.Version) + 1
	version.Version, version.JobModifyIndex, version.ModifyIndex = &number, &index, &index
	version.CreateIndex = alloc.Job.CreateIndex
	next.Job = &version
	next.AllocModifyIndex = index
	return &next
}

// destructive is the error for changes that can't be made in place, nil when there are none.
func destructive(changes []jobspec.Change) error {
	var lines []string
	for _, c := range jobspec.Destructive(changes) {
		lines = append(lines, c.String())
	}
	if lines == nil {
		return nil
	}
	return &interfaces.DestructiveError{Changes: lines}
}

// updatable reports whether the allocation is neither ending nor over.
func (r *Runner) updatable() bool {
	r.running.mu.Lock()
	defer r.running.mu.Unlock()
	return !r.running.ending && !r.running.over && !r.Over()
}
