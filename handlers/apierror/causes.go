package apierror

import (
	"errors"
	"io/fs"
	"net/http"
	"syscall"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/allocrunner/interfaces"
)

// cause is one row of causes. match reports whether the row is about an error, and returns the text for the verb in the
// kind's words, if they have one.
type cause struct {
	match func(error) (argument any, ok bool)
	kind  Kind
}

// causes maps the errors of a runner and of the shared store to Kinds. The first row that matches decides. An error
// that no row matches is a fault of the server, and a client learns nothing of it.
var causes = []cause{
	// A runner's.
	{says(interfaces.ErrStarting, "the allocation is being set up or resumed: try again"), Unavailable},
	{says(interfaces.ErrDetached, "taskapi stops, and with it the command"), Unavailable},
	{is(interfaces.ErrTaskNotFound), NoTask},
	{is(interfaces.ErrTaskNotRunning), TaskNotRunning},
	{is(interfaces.ErrUnknownSignal), UnknownSignal},
	{is(interfaces.ErrNotSupported), Conflict},
	{names(interfaces.ErrOnlyChildren), Conflict},
	{names(interfaces.ErrPoststop), Conflict},
	{names(interfaces.ErrUnsaved), Unavailable},
	{is(interfaces.ErrNotTerminal), NotCollectable},
	{is(interfaces.ErrSticky), NotCollectable},
	{is(interfaces.ErrTerminal), AllocTerminal},
	{is(interfaces.ErrInvalidJob), Invalid},
	{is(interfaces.ErrTooManyExecs), TooManyExecs},
	{unsupportedExec, Conflict},
	{as[*interfaces.ExecError], Invalid},
	{as[*interfaces.DestructiveError], Conflict},
	{is(interfaces.ErrStateFile), NotStored},
	{names(interfaces.ErrNotParameterized), Invalid},
	{names(interfaces.ErrNotPeriodic), Invalid},
	{laterChild, Unavailable},
	{as[*interfaces.ChildError], Invalid},

	// Of an allocation's files.
	{file(interfaces.ErrPathEscapes), PathEscapes},
	{file(interfaces.ErrSecretFile), SecretFile},
	{file(interfaces.ErrPrivateFile), PrivateFile},
	{file(interfaces.ErrNoLogs), NoFile},
	{file(fs.ErrNotExist), NoFile},
	{file(interfaces.ErrTooManyEntries), TooManyFiles},
	{file(fs.ErrPermission), FilePermission},
	{badFile(interfaces.ErrNotDirectory), Invalid},
	{badFile(interfaces.ErrIsDirectory), Invalid},
	{badFile(interfaces.ErrNotRegular), Invalid},
	{badFile(interfaces.ErrTooDeep), Invalid},
	{badFile(syscall.EINVAL), Invalid}, // a name that no file can have
	{badFile(syscall.ENAMETOOLONG), Invalid},
	{badFile(syscall.EAGAIN), Invalid}, // its owner holds a lease on the file

	// Of variables and services, and of the store that keeps them.
	{as[*variables.InvalidError], Invalid},
	{as[*variables.DamagedError], Unavailable},
	{is(variables.ErrNotFound), NoLockVariable},
	{is(variables.ErrNotLocked), NoLock},
	{is(variables.ErrLocked), VariableLocked},
	{is(variables.ErrFull), StoreFull},
	{is(registry.ErrNotFound), NoService},
	{names(cluster.ErrFull), StoreFull},
	{names(cluster.ErrUncertain), Unavailable},
	{names(cluster.ErrKey), Unavailable},
	{names(cluster.ErrUnavailable), Unavailable},
}

// startingRetry is when a client of an allocation that is being set up may try again.
const startingRetry = time.Second

// says matches a target; a client reads the words.
func says(target error, words string) func(error) (any, bool) {
	return func(err error) (any, bool) { return words, errors.Is(err, target) }
}

// names matches a target. A client reads the target's own words, without those of errors that wrap it.
func names(target error) func(error) (any, bool) { return says(target, target.Error()) }

// is matches a target; a client reads the whole error, if the kind's words have a verb.
func is(target error) func(error) (any, bool) {
	return func(err error) (any, bool) { return err, errors.Is(err, target) }
}

// as matches a type. A client reads the error of that type, without the words of errors that wrap it.
func as[T error](err error) (any, bool) {
	found, ok := errors.AsType[T](err)
	return found, ok
}

// laterChild matches a child that may run another time.
func laterChild(err error) (any, bool) {
	found, ok := errors.AsType[*interfaces.ChildError](err)
	return found, ok && found.Later
}

// unsupportedExec matches a command that the task's driver can't run.
func unsupportedExec(err error) (any, bool) {
	found, ok := as[*interfaces.ExecError](err)
	return found, ok && errors.Is(err, errors.ErrUnsupported)
}

// file matches an error about a file; a client reads the file's path.
func file(target error) func(error) (any, bool) {
	return func(err error) (any, bool) {
		found, ok := errors.AsType[*interfaces.FileError](err)
		if !ok || !errors.Is(found.Err, target) {
			return nil, false
		}
		return found.Path, true
	}
}

// badFile matches an error about a file; a client reads the whole error.
func badFile(target error) func(error) (any, bool) {
	return func(err error) (any, bool) {
		_, ok := file(target)(err)
		return err, ok
	}
}

// Of returns the API's error for err: the error of the API that err wraps, or the one that causes gives. Anything else
// is Internal, with the bare words; a body above the limit of http.MaxBytesReader is BodyTooLarge wherever that was
// found.
func Of(err error) *Error {
	if known, ok := errors.AsType[*Error](err); ok {
		return known
	}
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return New(BodyTooLarge, tooLarge.Limit)
	}
	for _, c := range causes {
		if argument, ok := c.match(err); ok {
			known := New(c.kind, argument).Because(err)
			if errors.Is(err, interfaces.ErrStarting) {
				known.RetryAfter = startingRetry
			}
			if away, ok := errors.AsType[*cluster.AwayError](err); ok {
				known.RetryAfter = away.After
			}
			return known
		}
	}
	return New(Internal).Because(err)
}

// Reword turns an error of the kind from into one of the kind to, since the words depend on the endpoint. Any other
// error, and nil, stays as it is.
func Reword(err error, from, to Kind, args ...any) error {
	if err != nil && Of(err).Kind == from {
		return New(to, args...).Because(err)
	}
	return err
}
