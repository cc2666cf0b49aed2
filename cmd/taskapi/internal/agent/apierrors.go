package agent

import (
	"errors"
	"io/fs"
	"syscall"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/handlers/apierror"
)

// apiError returns an error of the runner as the API has it. It is the one place where the two meet; an error that is not here is a fault.
func apiError(err error) error {
	var kind apierror.Kind
	var args []any
	command, isCommand := errors.AsType[*interfaces.ExecError](err)
	destructive, isDestructive := errors.AsType[*interfaces.DestructiveError](err)
	switch {
	case errors.Is(err, interfaces.ErrStarting):
		starting := apierror.New(apierror.Unavailable, interfaces.ErrStarting.Error()+": try again").Because(err)
		starting.RetryAfter = time.Second
		return starting
	case errors.Is(err, interfaces.ErrTaskNotFound):
		kind = apierror.NoTask
	case errors.Is(err, interfaces.ErrTaskNotRunning):
		kind = apierror.TaskNotRunning
	case errors.Is(err, interfaces.ErrUnknownSignal):
		kind = apierror.UnknownSignal
	case errors.Is(err, interfaces.ErrNotTerminal):
		kind = apierror.NotCollectable
	case errors.Is(err, interfaces.ErrTerminal):
		kind = apierror.AllocTerminal
	case errors.Is(err, interfaces.ErrInvalidJob):
		kind, args = apierror.Invalid, []any{err}
	case errors.Is(err, interfaces.ErrTooManyExecs):
		kind = apierror.TooManyExecs
	case isCommand && errors.Is(err, errors.ErrUnsupported):
		kind, args = apierror.Conflict, []any{command}
	case isCommand:
		kind, args = apierror.Invalid, []any{command}
	case isDestructive:
		kind, args = apierror.Conflict, []any{destructive}
	case errors.Is(err, state.ErrFile):
		kind, args = apierror.NotStored, []any{err}
	default:
		return err
	}
	return apierror.New(kind, args...).Because(err)
}

// fileError returns an error about a file as the API has it. What is not here is a fault.
func fileError(err error) error {
	file, ok := errors.AsType[*interfaces.FileError](err)
	if !ok {
		return err
	}
	for _, known := range []struct {
		err  error
		kind apierror.Kind
	}{
		{interfaces.ErrPathEscapes, apierror.PathEscapes},
		{interfaces.ErrSecretFile, apierror.SecretFile},
		{interfaces.ErrPrivateFile, apierror.PrivateFile},
		{interfaces.ErrNoLogs, apierror.NoFile},
		{fs.ErrNotExist, apierror.NoFile},
		{interfaces.ErrTooManyEntries, apierror.TooManyFiles},
		{fs.ErrPermission, apierror.FilePermission},
	} {
		if errors.Is(file.Err, known.err) {
			return apierror.New(known.kind, file.Path).Because(err)
		}
	}
	for _, known := range []error{
		interfaces.ErrNotDirectory, interfaces.ErrIsDirectory, interfaces.ErrNotRegular, interfaces.ErrTooDeep,
		syscall.EINVAL, syscall.ENAMETOOLONG, syscall.EAGAIN, // a name that can't be, and a file that its owner holds a lease on
	} {
		if errors.Is(file.Err, known) {
			return apierror.New(apierror.Invalid, err.Error()).Because(err)
		}
	}
	return err
}

// updateError returns an error of an update as the API has it.
func updateError(err error) error {
	return apierror.Reword(apiError(err), apierror.AllocTerminal, apierror.AllocEnding)
}
