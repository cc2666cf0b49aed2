// Package driver starts, signals and waits for the processes of tasks. Everything that crosses its seam is plain data, so that
// the processes' parent can be this process or a keeper beside it.
package driver

import (
	"context"
	"errors"
	"syscall"
	"time"

	"taskapi/allocrunner/interfaces"
)

// ErrNotRunning: the process has ended, or there was none.
var ErrNotRunning = errors.New("process not running")

// StartError is a process that could not be started: Reason is for people, and says what to do.
type StartError struct {
	Reason string
	Err    error
}

func (e *StartError) Error() string { return e.Reason }
func (e *StartError) Unwrap() error { return e.Err }

// Spec is one process to start.
type Spec struct {
	Task string   // the task's name, unique in the allocation
	Path string   // absolute path of the program
	Args []string // without the program's own name
	Env  []string // KEY=value, the whole environment
	Dir  string   // working directory
	User interfaces.User
	Logs LogSpec
}

// LogSpec says where a process's output goes.
type LogSpec struct {
	Dir          string // the allocation's log directory
	Disabled     bool   // no files: output is thrown away
	MaxFiles     int    // kept for each stream
	MaxFileBytes int64
}

// Status is a process as its parent sees it. Exit is nil while it runs.
type Status struct {
	Task      string
	PID       int
	StartedAt time.Time
	Exit      *interfaces.ExitResult
}

// Supervisor is the parent of the allocation's processes. It has at most one process for each task at a time.
// All methods are safe for concurrent use.
type Supervisor interface {
	// Start starts the process. Errors: *StartError when the process can't be started.
	Start(ctx context.Context, spec Spec) (Status, error)

	// Wait returns how the task's process ended, at once when it has. Errors: ErrNotRunning when the task never had one, or
	// ctx's error.
	Wait(ctx context.Context, task string) (interfaces.ExitResult, error)

	// Signal sends sig to the task's first process alone. Errors: ErrNotRunning.
	Signal(ctx context.Context, task string, sig syscall.Signal) error

	// KillTree sends SIGKILL to everything that the task's process left behind or still is: its session, process group and
	// descendants. It returns when the tree is empty, with the number of processes that outlived the first one.
	// It is no error when there is nothing to kill.
	KillTree(ctx context.Context, task string) (leftover int, err error)

	// Close ends the supervisor; processes that still run are killed. It waits for its goroutines.
	Close() error
}
