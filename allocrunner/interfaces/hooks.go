package interfaces

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"
)

// RunnerHook is a hook in the life of the allocation. What it does is said by the further interfaces that it implements.
//
//	Prerun ── tasks run ── PreKill ── tasks end ── Postrun
type RunnerHook interface {
	// Name identifies the hook in logs and errors.
	Name() string
}

// RunnerPrerunHook runs before the first task starts. An error fails the allocation: nothing starts.
type RunnerPrerunHook interface {
	RunnerHook
	Prerun(ctx context.Context, alloc *api.Allocation) error
}

// RunnerPreKillHook runs when the allocation begins to be stopped, before any task gets a signal.
type RunnerPreKillHook interface {
	RunnerHook
	PreKill()
}

// RunnerPostrunHook runs when every task is over, also when Prerun failed. Its error is logged.
type RunnerPostrunHook interface {
	RunnerHook
	Postrun(ctx context.Context) error
}

// TaskHook is a hook in the life of a task.
//
//	Prestart ── process starts ── Poststart ── PreKilling ── process ends ── Exited ── (again, or) Stop
type TaskHook interface {
	// Name identifies the hook in logs and in the event of its failure.
	Name() string
}

// TaskPrestartHook runs before each start of the task's process, restarts included. An error is a failed start, under the
// restart policy.
type TaskPrestartHook interface {
	TaskHook
	Prestart(ctx context.Context, req *TaskPrestartRequest) (*TaskPrestartResponse, error)
}

// TaskPrestartRequest is what a prestart hook may know.
type TaskPrestartRequest struct {
	Alloc *api.Allocation
	Task  *api.Task
	Dir   TaskDir
	User  User

	// WriteFile puts a file at a path below the task's directory: whole or not at all, in place of an older one, mode 0600 and
	// owned by the task's user, and never outside, whatever the task has made of its directory. It may be called, later, too,
	// until the task is over.
	WriteFile func(path string, data []byte) error

	// Lifecycle acts on the task's process, now or later.
	Lifecycle TaskLifecycle
}

// TaskLifecycle is what a hook may do to its own task.
type TaskLifecycle interface {
	// Restart ends the process for a new one, not counted by the restart policy, and returns when the old one is gone. reason
	// is for the event. Errors: ErrTaskNotRunning.
	Restart(ctx context.Context, reason string) error
	// Signal sends a signal, by name, to the task's first process. Errors: ErrUnknownSignal, ErrTaskNotRunning.
	Signal(ctx context.Context, name string) error
}

// TaskPrestartResponse is what a prestart hook gives; nil gives nothing.
type TaskPrestartResponse struct {
	// Env is added to the task's environment, over the task's own env block.
	Env map[string]string
}

// TaskDir is where a task lives; all paths are absolute.
type TaskDir struct {
	Dir        string // the task directory, the process's working directory
	LocalDir   string // NOMAD_TASK_DIR
	SecretsDir string // NOMAD_SECRETS_DIR
	PrivateDir string
	TmpDir     string
	SharedDir  string // NOMAD_ALLOC_DIR
	LogDir     string
	AllocDir   string // the allocation directory that holds all of these
}

// User is whom a task runs as, resolved to numbers.
type User struct {
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary
	Home   string
	Shell  string
}

// TaskPoststartHook runs after each start of the process. Its error is logged; the task runs on.
type TaskPoststartHook interface {
	TaskHook
	Poststart(ctx context.Context) error
}

// TaskPreKillHook runs before the task is killed or restarted on request, before its shutdown delay.
type TaskPreKillHook interface {
	TaskHook
	PreKilling(ctx context.Context) error
}

// TaskExitedHook runs after each end of the process.
type TaskExitedHook interface {
	TaskHook
	Exited(ctx context.Context, result ExitResult) error
}

// TaskStopHook runs once, when the task is over for good, also when it never started.
type TaskStopHook interface {
	TaskHook
	Stop(ctx context.Context) error
}

// ExitResult is how a process ended.
type ExitResult struct {
	ExitCode  int // 128+Signal when a signal ended it
	Signal    int // 0 when none did
	OOMKilled bool
	At        time.Time
	Err       string // why the result is not known, empty when it is
}

// Successful reports an exit with code 0 that no signal caused.
func (r ExitResult) Successful() bool { return r.ExitCode == 0 && r.Signal == 0 && r.Err == "" }
