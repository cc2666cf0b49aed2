package interfaces

import (
	"context"
	"io/fs"
	"maps"
	"path/filepath"
	"time"

	"github.com/hashicorp/nomad/api"
)

// TaskHook is a hook of a task.
//
//	Prestart ── process starts ── Poststart ── PreKilling ── process ends ── Exited ── (again, or) Stop
//
// Update may come at any time in between, Shutdown (see ShutdownHook) at the end of this process. Hooks of one task are
// called in the order in which they were given. A task waits for its hooks, also when it is to be killed, so each
// returns soon after its context has ended: that is at a kill for Prestart, and after seconds for the others. Prestart,
// Exited and Update may be called while another of the same hook has not returned. Each may be called on a hook whose
// Prestart failed, or was never called.
type TaskHook interface {
	// Name identifies the hook in logs, in metrics and in the event of its failure.
	Name() string
}

// TaskPrestartHook runs before each start of the task's process, restarts included, and again when a runner resumes a
// task that runs, until its response says Done. An error is a failed start, under the restart policy. ctx ends when the
// call returns.
type TaskPrestartHook interface {
	TaskHook
	Prestart(ctx context.Context, req *TaskPrestartRequest) (*TaskPrestartResponse, error)
}

// HookError is the error of a prestart hook that has an event of its own.
type HookError struct {
	Kind   string // the type of the event
	Detail string // the name of the event's detail that has the error
	Err    error
}

func (e *HookError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *HookError) Unwrap() error { return e.Err }

// TaskPrestartRequest is the argument of a prestart hook.
type TaskPrestartRequest struct {
	Alloc *api.Allocation
	Task  *api.Task
	Dir   TaskDir
	User  User
	Env   Env // of the task, without what later hooks add

	// Resources are those that the allocation's prerun hooks have given. They must not be changed.
	Resources *HookResources

	// Restored says that the task's process runs already, and a runner resumes it. What the hook adds to the
	// environment has no effect then.
	Restored bool

	// Kept is the data that the hook last passed to Keep for this task, even in an earlier process; nil for none. Keep
	// replaces the data, which outlives this process. The hook may also call it later, until the task is dead. It must
	// not keep secrets.
	Kept map[string]string
	Keep func(map[string]string)
	// Sync returns when the data that was passed to Keep is on the disk. A hook calls it before an action that another
	// process could only complete with that data. Errors: why the data can't be saved for now; it is saved later.
	Sync func() error

	// WriteFile writes a file below the task's directory, or the shared one, atomically and in place of an older file.
	// Whatever links the task has made there, WriteFile never writes outside. The hook may also call it later, until the
	// task is dead.
	WriteFile func(File) error

	// Lifecycle acts on the task's process, now or later.
	Lifecycle TaskLifecycle
}

// File is a file that a hook writes for its task.
type File struct {
	Path   string // below the task's directory
	Shared bool   // below TaskDir.SharedDir instead
	Data   []byte
	Mode   fs.FileMode // 0 for 0600
	Owner  *Owner      // nil for the task's user
}

// Owner is the owner of a file. Only root can give files to other users.
type Owner struct{ UID, GID uint32 }

// TaskLifecycle is what a hook may do to its own task.
type TaskLifecycle interface {
	// Restart replaces the process, without counting against the restart policy, and returns when the old process is
	// gone. reason is for the event. Errors: ErrTaskNotRunning, ErrTerminal if the task ends instead.
	Restart(ctx context.Context, reason string) error
	// Signal sends a signal, by name, to the task's first process. Errors: ErrUnknownSignal, ErrTaskNotRunning.
	Signal(ctx context.Context, name string) error
	// Exec runs a command beside the task's process, as the same user in the same environment, and returns its exit code.
	// Errors: ErrTaskNotRunning, ErrStarting, ErrNotSupported, those of the start.
	Exec(ctx context.Context, command []string) (exitCode int, err error)
	// Fail kills the task, which has failed then and is not started again. reason is for the event. Fail does not wait.
	Fail(reason string)
	// Event adds an event to the task's latest. Event does not wait.
	Event(kind, message string)
}

// TaskPrestartResponse is the result of a prestart hook; nil adds nothing.
type TaskPrestartResponse struct {
	// Env is added to the task's environment, over the task's own env block.
	Env map[string]string `json:",omitempty"`

	// Mounts and Devices are added to the task. The start fails if the task's driver can't provide them.
	Mounts  []Mount  `json:",omitempty"`
	Devices []Device `json:",omitempty"`

	// Done says that the hook has done its work for the task's whole life: it is not called for this task again,
	// neither at a restart nor by another runner, and the rest of the response holds for each start. The response is
	// saved in the allocation's state, so it must not contain secrets.
	Done bool `json:",omitempty"`
}

// Add adds a later hook's response, whose variables win.
func (r *TaskPrestartResponse) Add(more *TaskPrestartResponse) {
	if more == nil {
		return
	}
	if r.Env == nil {
		r.Env = make(map[string]string, len(more.Env))
	}
	maps.Copy(r.Env, more.Env)
	r.Mounts, r.Devices = append(r.Mounts, more.Mounts...), append(r.Devices, more.Devices...)
}

// Mount is a file or directory of the machine that a task finds at another path.
type Mount struct {
	HostPath string
	TaskPath string // absolute, as the task sees it
	ReadOnly bool   `json:",omitempty"`

	// Propagation is "host-to-task", "bidirectional", or "private" (also if empty): see mount_namespaces(7).
	Propagation string `json:",omitempty"`
}

// Device is a device file of the machine that a task finds at another path, and may use.
type Device struct {
	HostPath    string
	TaskPath    string
	Permissions string // of "r", "w" and "m", the last for mknod(2)
}

// TaskDir holds a task's directories; all paths are absolute.
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

// Below returns an absolute path as one relative to the task's directory, or to the shared one. It returns false for a
// path outside of both.
func (d TaskDir) Below(path string) (shared bool, rel string, ok bool) {
	for _, top := range []string{d.Dir, d.SharedDir} {
		if rel, err := filepath.Rel(top, path); err == nil && filepath.IsLocal(rel) {
			return top == d.SharedDir, rel, true
		}
	}
	return false, "", false
}

// Destination does so for a destination in a job file. As in Nomad, an absolute path that leads out is taken as one
// below the task's directory.
func (d TaskDir) Destination(path string) (shared bool, rel string, ok bool) {
	if shared, rel, ok = d.Below(filepath.Clean(path)); ok && filepath.IsAbs(path) {
		return shared, rel, true
	}
	return d.Below(filepath.Join(d.Dir, path))
}

// User is the user that a task runs as, resolved to numbers.
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
	Poststart(ctx context.Context, req *TaskPoststartRequest) error
}

// TaskPoststartRequest is the argument of a poststart hook.
type TaskPoststartRequest struct {
	Alloc *api.Allocation
	Task  *api.Task
	Env   Env // of the task, as its process got it
}

// TaskBesideHook runs before each program that begins beside the task's process. BesideEnv returns the variables of the
// hook's Prestart that have other values now.
type TaskBesideHook interface {
	TaskHook
	BesideEnv() map[string]string
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

// TaskUpdateHook runs when the allocation gets another version of its job, after the allocation's own update hooks. Its
// error is logged: the update stands.
type TaskUpdateHook interface {
	TaskHook
	Update(ctx context.Context, req *TaskUpdateRequest) error
}

// TaskUpdateRequest is the argument of an update hook.
type TaskUpdateRequest struct {
	Alloc *api.Allocation // with the new job
	Task  *api.Task       // of the new job
	Env   Env             // of the task, as the next process would get it
}

// TaskStopHook runs when the task is dead, also when it never started. A restart of all tasks may follow, with a
// Prestart and another Stop.
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
	Killed    string `json:",omitempty"` // why the task's time was over when the keeper killed it; empty for another end
}

// Successful reports whether the process exited with code 0 and was not killed by a signal.
func (r ExitResult) Successful() bool { return r.ExitCode == 0 && r.Signal == 0 && r.Err == "" }
