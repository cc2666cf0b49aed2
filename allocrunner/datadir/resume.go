package datadir

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/snapshots"
	"taskapi/allocrunner/jobspec/jobdiff"
)

// Resume continues the saved allocation so that wanted runs, as allocrunner.Plan decides. It returns the changes that
// were made in place, or the allocation that must follow, nil for none. With force the allocation gets new processes
// in any case. Errors: *InvalidError, those of Plan and, unless forced, *StateRemovedError.
func (l *Lock) Resume(
	ctx context.Context, wanted *api.Allocation, force bool,
) (changes []jobdiff.Change, next *api.Allocation, err error) {
	switch {
	case l.saved == nil && l.removed && !force:
		return nil, nil, &StateRemovedError{l.ID}
	case l.saved == nil:
		return nil, nil, nil
	}
	decision, changes, err := allocrunner.Plan(allocrunner.Current{Alloc: l.saved.Alloc, Terminal: l.saved.Terminal},
		wanted, force)
	if err != nil {
		return nil, nil, err
	}
	if force { // by which the caller wants new processes
		decision = max(decision, allocrunner.Replace)
	}
	switch decision {
	case allocrunner.InPlace:
		return changes, nil, l.update(ctx, wanted.Job)
	case allocrunner.Replace:
		return nil, wanted, nil
	case allocrunner.Recreate:
		return nil, nil, l.Recreate(wanted, force)
	}
	return nil, nil, nil
}

// update gives the saved allocation another version of its job, in place. It makes a runner for this that is never run.
// The runner that continues the allocation, and all of its hooks, begin with the new version.
func (l *Lock) update(ctx context.Context, job *api.Job) error {
	if interfaces.IsParent(l.saved.Alloc.Job) {
		saved := *l.saved
		saved.Alloc = snapshots.WithJob(l.saved.Alloc, job)
		saved.Alloc.ModifyIndex++
		l.saved = &saved
		return l.state.Put(interfaces.Saved{Alloc: saved.Alloc})
	}
	runner, err := allocrunner.New(interfaces.Config{Alloc: l.saved.Alloc, Dir: l.Dir, Logger: l.logger, State: l.state,
		Saved: l.saved})
	if err != nil {
		return fmt.Errorf("allocation %s: %w", l.ID, err)
	}
	if err := runner.Update(ctx, job); err != nil {
		err = fmt.Errorf("allocation %s: %w", l.ID, err)
		if errors.Is(err, interfaces.ErrInvalidJob) {
			return &InvalidError{err}
		}
		return err
	}
	saved := *l.saved
	saved.Alloc = runner.Alloc()
	l.saved = &saved
	return nil
}
