package base

import (
	"errors"
	"os/exec"
	"runtime"
	"syscall"
)

// StartChild starts a command that is killed when this program ends. The channel gets the result of the command's Wait.
func StartChild(cmd *exec.Cmd) (ended <-chan error, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, waited := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // Pdeathsig is sent when the thread ends that has started the process, prctl(2)
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			waited <- cmd.Wait()
		}
	}()
	return waited, <-started
}

// ChildExit converts the result of a command's Wait into this program's error: an ExitError with its exit code, or 128
// and the number of the signal that ended it.
func ChildExit(err error) error {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return err
	}
	if status := exit.Sys().(syscall.WaitStatus); status.Signaled() { // as on every Unix
		return ExitError{Code: ExitSignalled + int(status.Signal())}
	}
	return ExitError{Code: exit.ExitCode()}
}
