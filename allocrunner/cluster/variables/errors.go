package variables

import (
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"
)

var (
	// ErrNotFound: there is no variable to renew or release a lock of.
	ErrNotFound = errors.New("variable doesn't exist")
	// ErrNotLocked: the variable has no lock, or has one no more.
	ErrNotLocked = errors.New("variable doesn't hold a lock")
	// ErrLocked: the lock is another's, or is the caller's no more.
	ErrLocked = errors.New("attempting to modify locked variable")
	// ErrFull is in the error of what would exceed a bound on all variables together.
	ErrFull = errors.New("the variables take as much as they may")
)

// InvalidError is a request that can't ever be granted. Nothing has changed.
type InvalidError struct{ Words string }

func (e *InvalidError) Error() string { return e.Words }

// ConflictError is a write that was refused because of what is there. Nothing has changed.
type ConflictError struct {
	// Variable is what is there, without items when they can't be opened; with namespace and path alone when the caller expected something
	// and there is nothing, or when another holds its lock.
	Variable *api.Variable
	Locked   bool // another holds its lock, or the caller's has been lost
}

func (e *ConflictError) Error() string {
	if e.Locked {
		return fmt.Sprintf("variable %q: %v", e.Variable.Path, ErrLocked)
	}
	return fmt.Sprintf("variable %q has another index: %d", e.Variable.Path, e.Variable.ModifyIndex)
}

// DamagedError is a variable whose items can't be opened. It can be written over, or deleted.
type DamagedError struct {
	Namespace, Path string
	Err             error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("variable %q of namespace %q can't be opened: %v; write it again, or purge it", e.Path, e.Namespace, e.Err)
}

func (e *DamagedError) Unwrap() error { return e.Err }
