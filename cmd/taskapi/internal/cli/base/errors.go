package base

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"

	"taskapi/cmd/taskapi/internal/agent"
)

// The exit codes. From ExitOwn on they are those of commands that run another one, as docker, env(1) and the shells
// have them.
const (
	ExitOK        = 0
	ExitFailed    = 1   // the allocation failed, or the command could not do its work
	ExitUsage     = 2   // the job file or a flag is wrong: nothing was started
	ExitOwn       = 125 // taskapi could not do its part
	ExitNotRun    = 126 // the command exists and can't be executed
	ExitNotFound  = 127 // it is not there
	ExitSignalled = 128 // and the number of the signal that ended it
)

// ExitError is an error with an exit code of its own.
type ExitError struct {
	Err  error // nil when the reason has been printed already
	Code int
}

func (e ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e ExitError) Unwrap() error { return e.Err }

// Own gives an error of taskapi itself the exit code ExitOwn, since lower ones are the other command's. An error that
// has such a code keeps it; nil stays nil.
func Own(err error) error {
	if err == nil || IsSilent(err) || ExitCode(err) > ExitUsage {
		return err
	}
	return ExitError{Err: err, Code: ExitOwn}
}

// CommandError says why a command, which is a program of this machine, was not started.
func CommandError(command string, err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return ExitError{Err: fmt.Errorf("%s: there is no such command", command), Code: ExitNotFound}
	}
	err = fmt.Errorf("%s can't be executed: %w", command, cmp.Or(errors.Unwrap(err), err))
	return ExitError{Err: err, Code: ExitNotRun}
}

// ErrSilent ends a command whose failure has been printed.
var ErrSilent error = ExitError{Code: ExitFailed}

// Usage marks err as a mistake of the caller, in the job file, a flag or an argument. nil stays nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return ExitError{err, ExitUsage}
}

// Usagef returns a mistake of the caller, as fmt.Errorf makes errors.
func Usagef(format string, args ...any) error {
	return ExitError{fmt.Errorf(format, args...), ExitUsage}
}

// IsUsage reports whether the caller must give something else.
func IsUsage(err error) bool { return !IsSilent(err) && ExitCode(err) == ExitUsage }

// IsSilent reports whether the reason of an error has been printed.
func IsSilent(err error) bool {
	e, ok := errors.AsType[ExitError](err)
	return ok && e.Err == nil || errors.Is(err, agent.ErrReported)
}

// ExitCode returns the exit code of a command that returns err.
func ExitCode(err error) int {
	e, coded := errors.AsType[ExitError](err)
	_, invalid := errors.AsType[agent.InvalidError](err)
	switch {
	case err == nil:
		return ExitOK
	case coded:
		return e.Code
	case invalid:
		return ExitUsage
	}
	return ExitFailed
}
