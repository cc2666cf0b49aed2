package processes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/launch"
	"taskapi/internal/tty"
)

// checkSpec finds mistakes that the kernel would refuse without a reason.
func checkSpec(spec drivers.Spec) error {
	reason := ""
	switch {
	case spec.Task == "" || strings.ContainsAny(spec.Task, "/\x00"):
		reason = fmt.Sprintf("task name %q can't name files: it must not be empty or hold a slash", spec.Task)
	case needsUser(spec.User) && os.Geteuid() != 0:
		reason = fmt.Sprintf("the task is to run as user %q (uid %d), but this program runs as uid %d and can't "+
			"become another user: run it as root, or remove the task's user",
			spec.User.Name, spec.User.UID, os.Geteuid())
	case len(spec.Files) != 0 && len(spec.Files) != 3:
		reason = fmt.Sprintf("%d files were given for the task's three standard ones", len(spec.Files))
	case spec.TTY && (len(spec.Files) == 0 || !tty.IsTerminal(spec.Files[0])):
		reason = "the task's standard input is no terminal"
	case strings.Contains(spec.Path+spec.Dir+strings.Join(spec.Args, ""), "\x00"):
		reason = "command, arguments or working directory hold a NUL byte: remove it"
	}
	for _, entry := range spec.Env {
		if name, _, ok := strings.Cut(entry, "="); !ok || name == "" || strings.Contains(entry, "\x00") {
			reason = fmt.Sprintf("environment variable %q must have a name, an equals sign and no NUL byte", name)
		}
	}
	if reason == "" {
		return nil
	}
	return &drivers.StartError{Reason: reason, Err: unix.EINVAL}
}

// NoRoom returns a *drivers.StartError when the machine had no room to start a process, else err itself.
func NoRoom(err error) error {
	switch errno, _ := errors.AsType[unix.Errno](err); errno {
	case unix.EAGAIN, unix.ENOMEM:
		reason := fmt.Sprintf("no room for another process (%v): raise the limit of processes or memory", errno)
		return &drivers.StartError{Reason: reason, Err: err}
	case unix.EMFILE, unix.ENFILE:
		return &drivers.StartError{Reason: "too many open files: raise the limit of open files", Err: err}
	}
	return err
}

// explain says in words why the process did not become the program.
func explain(spec drivers.Spec, err error) error {
	if room, ok := errors.AsType[*drivers.StartError](NoRoom(err)); ok {
		return room
	}
	if e, ok := errors.AsType[*launch.Error](err); ok {
		return &drivers.StartError{Reason: e.Reason, Err: e.Errno}
	}
	switch {
	case errors.Is(err, drivers.ErrClosed), errors.Is(err, drivers.ErrNotRunning), errors.Is(err, context.Canceled),
		errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return &drivers.StartError{Reason: fmt.Sprintf("%q can't be started: %v", spec.Path, err), Err: err}
}
