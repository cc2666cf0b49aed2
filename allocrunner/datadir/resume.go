package datadir

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec"
)

// Compare returns what differs between an allocation that has not ended and the one wanted. Errors: *OtherJobError; unless
// forced, *StoppingError and *NeedsNewProcessesError.
func Compare(is, wanted *api.Allocation, force bool) ([]jobspec.Change, error) {
	if err := SameJob(is, wanted); err != nil {
		return nil, err
	}
	changes := jobspec.Changes(is.Job, wanted.Job, wanted.TaskGroup)
	destructive := jobspec.Destructive(changes)
	switch {
	case force || len(changes) == 0 || interfaces.Replaced(is): // it ends for another version already
		return changes, nil
	case is.DesiredStatus == api.AllocDesiredStatusStop:
		return nil, &StoppingError{is.ID}
	case len(destructive) > 0:
		return nil, &NeedsNewProcessesError{is.ID, destructive}
	}
	return changes, nil
}

// SameJob returns an *OtherJobError when two allocations are of different jobs or groups.
func SameJob(is, wanted *api.Allocation) error {
	if is.TaskGroup == wanted.TaskGroup && is.JobID == wanted.JobID {
		return nil
	}
	return &OtherJobError{is.ID, is.JobID, is.TaskGroup, wanted.JobID, wanted.TaskGroup}
}

// Resume decides how the saved allocation continues when wanted is to run: it returns the changes that were made in place, or the
// allocation that has to follow it, nil for none. Errors: *InvalidError and those of Compare; unless forced, *StateRemovedError
// and *EndedError.
func (l *Lock) Resume(ctx context.Context, wanted *api.Allocation, force bool) (changes []jobspec.Change, next *api.Allocation, err error) {
	switch {
	case l.saved == nil && l.removed && !force:
		return nil, nil, &StateRemovedError{l.ID}
	case l.saved == nil:
		return nil, nil, nil
	case l.saved.Over && !force && !interfaces.Replaced(l.saved.Alloc):
		return nil, nil, &EndedError{l.ID, l.saved.Alloc.ClientStatus}
	case l.saved.Over:
		return nil, nil, l.Recreate(wanted)
	}
	changes, err = Compare(l.saved.Alloc, wanted, force)
	switch {
	case err == nil && interfaces.Replaced(l.saved.Alloc): // it was forced before, and the latest version follows
		return nil, wanted, nil
	case err != nil || len(changes) == 0:
		return nil, nil, err
	case force && (len(jobspec.Destructive(changes)) > 0 || l.saved.Alloc.DesiredStatus == api.AllocDesiredStatusStop):
		return nil, wanted, nil
	}
	return changes, nil, l.update(ctx, wanted.Job)
}

// update gives the saved allocation another version of its job, in place. The runner that does so is never run: the one that continues
// the allocation begins with the new version, and so do all of its hooks.
func (l *Lock) update(ctx context.Context, job *api.Job) error {
	runner, err := allocrunner.New(interfaces.Config{Alloc: l.saved.Alloc, Dir: l.Dir, Logger: l.logger, State: l.state, Saved: l.saved})
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
