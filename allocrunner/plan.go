package allocrunner

import (
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec/jobdiff"
)

// Decision says what happens to an allocation when a job is to run under its ID.
type Decision int

const (
	// Unchanged: the allocation continues with its present job.
	Unchanged Decision = iota
	// InPlace: the allocation continues with the new job. Its processes stay.
	InPlace
	// Replace: the allocation is stopped, and the wanted one runs under its ID.
	Replace
	// Recreate: the wanted allocation runs under its ID. Nothing has to be stopped first.
	Recreate
)

// Current is an allocation for which Plan decides.
type Current struct {
	Alloc    *api.Allocation
	Terminal bool // it has ended
	Pending  bool // it has not begun: it will follow an allocation that is ending
}

// OtherJobError says that an allocation has another job, or another group, than the given one.
type OtherJobError struct{ ID, Job, Group, OtherJob, OtherGroup string }

func (e *OtherJobError) Error() string {
	return fmt.Sprintf("allocation %s is of job %q, group %q, not of job %q, group %q", e.ID, e.Job, e.Group,
		e.OtherJob, e.OtherGroup)
}

// EndedError says that an allocation has ended. It is an interfaces.ErrTerminal.
type EndedError struct{ ID, Status string }

func (e *EndedError) Error() string {
	return fmt.Sprintf("allocation %s has been run before and was last %s", e.ID, e.Status)
}

func (e *EndedError) Unwrap() error { return interfaces.ErrTerminal }

// StoppingError says that an allocation is stopping and takes no other version of its job. It is an
// interfaces.ErrTerminal.
type StoppingError struct{ ID string }

func (e *StoppingError) Error() string {
	return fmt.Sprintf("allocation %s is stopping and the job file differs", e.ID)
}

func (e *StoppingError) Unwrap() error { return interfaces.ErrTerminal }

// Plan decides what happens to an allocation when wanted is to run under its ID, and returns the differences between
// the two. It is the one place that decides this:
//
//	the allocation is        and the job          without force              with force
//	terminal                 any                  *EndedError                Recreate
//	terminal, replaced       any                  Recreate                   Recreate
//	any other                of another name      *OtherJobError             *OtherJobError
//	stopping, replaced       any                  Replace                    Replace
//	any other                the same             Unchanged                  Unchanged
//	pending                  in place             Recreate                   Recreate
//	pending                  destructive          *DestructiveError          Recreate
//	stopping                 different            *StoppingError             Replace
//	running                  in place             InPlace                    InPlace
//	running                  destructive          *DestructiveError          Replace
//
// Replaced is interfaces.Replaced: another version was accepted before, and the latest accepted version follows.
func Plan(current Current, wanted *api.Allocation, force bool) (Decision, []jobdiff.Change, error) {
	is, replaced := current.Alloc, !current.Pending && interfaces.Replaced(current.Alloc)
	switch {
	case current.Terminal && (force || replaced):
		return Recreate, nil, nil
	case current.Terminal:
		return 0, nil, &EndedError{is.ID, is.ClientStatus}
	}
	if err := SameJob(is, wanted); err != nil {
		return 0, nil, err
	}
	changes := jobdiff.Changes(is.Job, wanted.Job, wanted.TaskGroup)
	destructive := jobdiff.Destructive(changes)
	stopping := !current.Pending && is.DesiredStatus == api.AllocDesiredStatusStop
	switch {
	case replaced:
		return Replace, changes, nil
	case len(changes) == 0:
		return Unchanged, nil, nil
	case stopping && !force:
		return 0, nil, &StoppingError{is.ID}
	case len(destructive) > 0 && !force:
		refused := &interfaces.DestructiveError{ID: is.ID}
		for _, c := range destructive {
			refused.Changes = append(refused.Changes, c.String())
		}
		return 0, nil, refused
	case current.Pending:
		return Recreate, changes, nil
	case stopping || len(destructive) > 0:
		return Replace, changes, nil
	}
	return InPlace, changes, nil
}

// SameJob returns an *OtherJobError when two allocations are of different jobs or groups.
func SameJob(is, wanted *api.Allocation) error {
	if is.TaskGroup == wanted.TaskGroup && is.JobID == wanted.JobID {
		return nil
	}
	return &OtherJobError{is.ID, is.JobID, is.TaskGroup, wanted.JobID, wanted.TaskGroup}
}
