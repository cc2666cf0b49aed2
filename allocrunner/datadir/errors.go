package datadir

import (
	"errors"
	"fmt"

	"taskapi/allocrunner/state"
)

// UnusableError refuses a data directory.
type UnusableError struct{ Err error }

func (e *UnusableError) Error() string { return e.Err.Error() }
func (e *UnusableError) Unwrap() error { return e.Err }

// DamagedError says that an allocation's state is damaged. It wraps state.ErrDamaged.
type DamagedError struct {
	ID  string
	Err error
}

func (e *DamagedError) Error() string { return e.Err.Error() }
func (e *DamagedError) Unwrap() error { return e.Err }

func damaged(id string, err error) error {
	if !errors.Is(err, state.ErrDamaged) {
		return err
	}
	return &DamagedError{id, err}
}

// UnreadError refuses to begin an allocation: the state of another one can't be read, which may have the same name.
type UnreadError struct {
	ID   string // of the other one
	Name string
	Runs bool // its tasks run; otherwise it has data that may be sticky
	Err  error
}

func (e *UnreadError) Error() string { return fmt.Sprintf("%s: %v", e.What(), e.Err) }
func (e *UnreadError) Unwrap() error { return e.Err }

// What returns the error without its cause.
func (e *UnreadError) What() string {
	if e.Runs {
		return fmt.Sprintf("tasks of allocation %s run, and it may be %s", e.ID, e.Name)
	}
	return fmt.Sprintf("allocation %s may have the sticky data of %s", e.ID, e.Name)
}

// StateMissingError says that an allocation has no state, though its tasks run.
type StateMissingError struct{ ID string }

func (e *StateMissingError) Error() string {
	return fmt.Sprintf("allocation %s: %s is missing or empty, but tasks are still running", e.ID, state.FileName)
}

// StateRemovedError says that an allocation that has run before has no state.
type StateRemovedError struct{ ID string }

func (e *StateRemovedError) Error() string {
	return fmt.Sprintf("allocation %s has been run before, and its %s was removed or emptied", e.ID, state.FileName)
}

// StillRunningError says that an allocation has ended, but tasks of it run.
type StillRunningError struct{ ID string }

func (e *StillRunningError) Error() string {
	return fmt.Sprintf("allocation %s has ended, but tasks of it are still running", e.ID)
}

// RemovedError says that an allocation was removed with its directory.
type RemovedError struct{ ID string }

func (e *RemovedError) Error() string { return fmt.Sprintf("allocation %s has been removed", e.ID) }

// InvalidError refuses a job that a runner can't run.
type InvalidError struct{ Err error }

func (e *InvalidError) Error() string { return e.Err.Error() }
func (e *InvalidError) Unwrap() error { return e.Err }
