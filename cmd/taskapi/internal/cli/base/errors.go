package base

import (
	"errors"
	"fmt"

	"taskapi/cmd/taskapi/internal/agent"
)

// The exit codes.
const (
	ExitOK     = 0
	ExitFailed = 1 // the allocation failed, or the command could not do its work
	ExitUsage  = 2 // the job file or a flag is wrong: nothing was started
)

// UsageError is a mistake in what the caller gave: the job file, a flag, an argument.
type UsageError struct{ err error }

func (e UsageError) Error() string { return e.err.Error() }

func (e UsageError) Unwrap() error { return e.err }

// Usage marks err as the caller's mistake; nil stays nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return UsageError{err}
}

// IsUsage reports whether the caller must give something else.
func IsUsage(err error) bool {
	_, usage := errors.AsType[UsageError](err)
	_, invalid := errors.AsType[agent.InvalidError](err)
	return usage || invalid
}

// SilentError ends a command with an exit code when the reason has been printed already.
type SilentError struct{ Code int }

func (e SilentError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

var ErrSilent error = SilentError{ExitFailed}

// The exit codes of dev and test that are not their command's, as of env(1) and the shells.
const (
	ExitOwn       = 125 // taskapi could not do its part
	ExitNotRun    = 126 // the command is there and can't be executed
	ExitNotFound  = 127 // it is not there
	ExitSignalled = 128 // and the number of the signal that ended it
)

// CodedError is an error with an exit code of its own.
type CodedError struct {
	Err  error
	Code int
}

func (e CodedError) Error() string { return e.Err.Error() }

func (e CodedError) Unwrap() error { return e.Err }
