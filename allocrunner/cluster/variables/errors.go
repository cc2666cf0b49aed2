package variables

import (
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"
)

var (
	// ErrNotFound: there is no variable whose lock could be renewed or released.
	ErrNotFound = errors.New("variable doesn't exist")
	// ErrNotLocked: the variable is not locked, or its lock has ended.
	ErrNotLocked = errors.New("variable doesn't hold a lock")
	// ErrLocked: another caller holds the lock, or the caller has lost it.
	ErrLocked = errors.New("attempting to modify locked variable")
	// ErrFull: the change would exceed a bound on all variables together.
	ErrFull = errors.New("the variables have reached their limit")
)

// InvalidError: the request is wrong, whatever the store holds. Nothing has changed.
type InvalidError struct{ Words string }

func (e *InvalidError) Error() string { return e.Words }

// ConflictError: a write was refused because of the variable that is there. Nothing has changed.
type ConflictError struct {
	// Variable is the one that is there, without items when they can't be opened. It has only namespace and path when
	// there is none, or when another caller holds its lock.
	Variable *api.Variable
	Locked   bool // another caller holds its lock, or the caller has lost it
}

func (e *ConflictError) Error() string {
	if e.Locked {
		return fmt.Sprintf("variable %q: %v", e.Variable.Path, ErrLocked)
	}
	return fmt.Sprintf("variable %q has another index: %d", e.Variable.Path, e.Variable.ModifyIndex)
}

// DamagedError: the items of a variable can't be opened. The variable can be written over, or deleted.
type DamagedError struct {
	Namespace, Path string
	Err             error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("variable %q of namespace %q can't be opened: %v; write it again, or purge it", e.Path,
		e.Namespace, e.Err)
}

func (e *DamagedError) Unwrap() error { return e.Err }
