package interfaces

import (
	"context"

	"github.com/hashicorp/nomad/api"
)

// IsParent reports whether a job runs no task itself and starts children, each a job with one allocation: a
// parameterized job at each dispatch, a periodic job at the times of its schedule.
func IsParent(job *api.Job) bool { return job.IsParameterized() || job.IsPeriodic() }

// IdentityJobID returns the job that an allocation's identities name. As in Nomad, that of a child is its parent, so a
// child reads its parent's variables.
func IdentityJobID(alloc *api.Allocation) string {
	if alloc.Job != nil && alloc.Job.ParentID != nil && *alloc.Job.ParentID != "" {
		return *alloc.Job.ParentID
	}
	return alloc.JobID
}

// Dispatch is what a dispatch gives to a child of a parameterized job.
type Dispatch struct {
	Payload  []byte
	Meta     map[string]string
	IDPrefix string // a part of the child's ID; empty for none
	Priority int    // 0 for the parent's
	Token    string // a second dispatch with this token starts no second child; empty for none
}

// Child is a child of a job.
type Child struct {
	JobID   string
	AllocID string
	Known   bool // an earlier dispatch with the same token has started it
}

// ChildError says why a child was not started: the job does not take the dispatch, or the child can't run.
type ChildError struct {
	Err   error
	Later bool // the child is not wrong: it may run when the disk has room, or a port is free
}

func (e *ChildError) Error() string { return e.Err.Error() }
func (e *ChildError) Unwrap() error { return e.Err }

// Parent is a runner of a job that starts children; see IsParent.
type Parent interface {
	// Dispatch starts a child of a parameterized job, and returns once the child is saved and runs in a process of its
	// own. Errors: ErrStarting, ErrTerminal, ErrNotParameterized, *ChildError.
	Dispatch(ctx context.Context, d Dispatch) (Child, error)
	// Force starts a child of a periodic job now, whatever its schedule and whether another child runs. Errors:
	// ErrStarting, ErrTerminal, ErrNotPeriodic, *ChildError.
	Force(ctx context.Context) (Child, error)
}
