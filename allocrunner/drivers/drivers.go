// Package drivers defines a task driver. A driver starts the tasks that name it, finds them again after a restart of
// this program, and ends them. A driver decides nothing about a task's life: no restarts, no order, no hooks. The
// environment of a task comes from package taskenv.
//
// A new driver is a package beside rawexec and a row in package builtin.
package drivers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/proctree"
	"taskapi/allocrunner/taskenv"
)

// Driver runs the tasks that name it. Its methods are safe for concurrent use. One driver serves all allocations of
// this program.
type Driver interface {
	// Name is what a task's driver attribute says.
	Name() string

	// Capabilities returns the features that tasks of this driver may use.
	Capabilities() Capabilities

	// Fingerprint says what the driver finds on this machine. It is called often and must not wait, so a driver caches
	// slow facts.
	Fingerprint() Fingerprint

	// Validate checks a config block as it stands in the job file. A text with a ${reference} gets its value only when
	// the task starts, so Validate accepts the text if any value could be right. The error names the key and a correct
	// form.
	Validate(config map[string]any) error

	// Start starts a task and returns when it runs. It is called for each start, and first clears the remains of an
	// earlier run of the task. Errors: *ConfigError for a config with which every attempt fails, *StartError if another
	// attempt may succeed.
	Start(ctx context.Context, task Task) (Run, error)

	// Recover returns the latest run of a task that an earlier process of this program has started, whether it has
	// ended since or not. handle is the saved handle of a run, empty if none was saved. Recover may find a later run,
	// which was never saved. Of the task only AllocID, Task, Dir and Processes are set. Errors: ErrNoRun; any other
	// means that the run is unknown, and that the allocation can't be resumed now.
	Recover(ctx context.Context, task Task, handle interfaces.Handle) (Run, error)
}

// Run is one run of a task, from its start until none of its processes is left. Its methods are safe for concurrent
// use. A run may also have the abilities Signaler, Executor, Notifier, ListenerKeeper and Measurer.
type Run interface {
	// Handle is what Recover needs to find the run. It never changes, and holds no secrets.
	Handle() interfaces.Handle

	// Inspect returns how the run stands.
	Inspect(ctx context.Context) (Status, error)

	// Wait waits for the end of the run and returns its result. Processes that the run left behind may still exist, and
	// its last output may not be in the log files yet: Destroy waits for both. If nobody knows how the run ended, the
	// ExitResult says so. Errors: ctx's; any other means that the driver can't tell now, and the caller repeats the
	// call.
	Wait(ctx context.Context) (interfaces.ExitResult, error)

	// Stop sends the run a signal and, if the run has not ended in time, kills it with everything that belongs to it. It
	// returns when the run has ended. SIGKILL kills everything at once. Errors: ctx's; any other means that the run may
	// not have ended.
	Stop(ctx context.Context, signal syscall.Signal, timeout time.Duration) error

	// Destroy kills the remaining processes of the run, whether it has ended or not. It returns when none is left and
	// all output is in the log files, with the number of processes besides the first that it had to kill. It does no
	// harm to a later run of the task. Errors: Stop's.
	Destroy(ctx context.Context) (leftover int, err error)
}

// Signaler is implemented by a run that takes signals.
type Signaler interface {
	// Signal sends a signal to the run's first process. Errors: ErrNotRunning, ctx's.
	Signal(ctx context.Context, signal syscall.Signal) error
}

// Executor is implemented by a run beside which programs can run.
type Executor interface {
	// Exec runs a program with the run's environment, directory, user and bounds, and returns when the program and all
	// processes that it has left are gone. They are killed when ctx ends, and with the run. task is the task as Start
	// would get it now. Errors: interfaces.ErrTaskNotRunning, interfaces.ErrTooManyExecs, interfaces.ErrDetached when
	// this program gives up the run, *interfaces.ExecError, ctx's.
	Exec(ctx context.Context, task Task, program Program) (ExecResult, error)
}

// Notifier is implemented by a run whose processes can say that they are ready and alive.
type Notifier interface {
	// Notice returns what the run has said, as Supervisor's Notice does.
	Notice(ctx context.Context, seen uint64) (Notice, error)
}

// ListenerKeeper is implemented by a run that may leave listening sockets to the task's next run.
type ListenerKeeper interface {
	// Unlisten closes these sockets, as Supervisor's Unlisten does.
	Unlisten(ctx context.Context) error
}

// Measurer is implemented by a run whose CPU time and memory its driver measures. Processes of a Supervisor are
// measured without it.
type Measurer interface {
	// Stats returns what the run uses now.
	Stats(ctx context.Context) (*api.TaskResourceUsage, error)
}

// Precheck is implemented by a driver that can say before a task starts what the machine lacks for it.
type Precheck interface {
	// Missing returns what is missing, in words. It is empty if nothing is, or if only the start can tell.
	Missing(task Task) string
}

// ErrNoRun: the driver knows no run of the task.
var ErrNoRun = errors.New("the driver knows nothing of the task")

// Fingerprint is what a driver finds on a machine.
type Fingerprint struct {
	Attributes map[string]string // of the node, such as "driver.docker.version"; a job's ${attr.NAME} refers to them
	Problem    string            // why no task can start here now, and what would help; empty if tasks can
}

// Capabilities are what tasks of a driver may have.
type Capabilities struct {
	Mounts     bool // Task.Mounts
	Devices    bool // Task.Devices
	Network    bool // Task.NetworkNamespace
	Users      bool // a user other than this program's
	Foreground bool // Task.Foreground
}

// Task is a task that is about to start: its directory is there, and its prestart hooks have run.
type Task struct {
	AllocID string // the allocation's ID, unique on this machine
	Task    *api.Task
	Dir     interfaces.TaskDir
	User    interfaces.User
	Logs    LogSpec

	// Limits bound what the task's processes use together; the zero value bounds nothing.
	Limits proctree.Limits

	// NetBindService: the task's processes have CAP_NET_BIND_SERVICE, and no other capability.
	NetBindService bool

	// Env is the task's environment with the variables that hooks added. A driver whose tasks see other paths makes its
	// own environment from Env, with WithTask.
	Env *taskenv.Env

	// Mounts, Devices and NetworkNamespace (the path of the namespace to join) come from the hooks. They are empty
	// unless the driver is capable of them.
	Mounts           []interfaces.Mount
	Devices          []interfaces.Device
	NetworkNamespace string

	// Ports are those of the group.
	Ports []api.PortMapping

	// Foreground is a command on a terminal that replaces the config's command; nil for none.
	Foreground *interfaces.Foreground

	// Processes supervises the processes of the allocation's tasks. It outlives this program.
	Processes Supervisor
}

// Status is how a run stands.
type Status struct {
	Exit    *interfaces.ExitResult // nil while it runs, and when its end isn't known
	Details map[string]string      // of the event of its start
	Notice  *Notice                // what it has said, if it can say that it is ready; else nil
}

// Program is a program to run beside a task.
type Program struct {
	Command []string // the program, looked up as the task's own is, and its arguments; not empty

	// MaxOutput is how many bytes of its output are kept, at most MaxExecOutput; the rest is read and thrown away.
	MaxOutput int

	// Files are its standard input, output and error, for an interactive program; empty for one whose output is
	// collected. Exec closes them in any case. With TTY the first is a terminal, which becomes the program's
	// controlling one.
	Files []*os.File
	TTY   bool

	// Started is called once, when a program with Files runs, before Exec returns; nil for none. It must not block.
	Started func()
}

// LogSpec says where a task's output goes.
type LogSpec struct {
	Dir          string // the allocation's log directory
	Disabled     bool   // no files: output is thrown away
	MaxFiles     int    // kept for each stream
	MaxFileBytes int64
}

// StartError is a task that could not be started: Reason is for people, and says what to do. It wraps
// errors.ErrUnsupported if this machine, or the driver, can never start it.
type StartError struct {
	Reason string
	Err    error
}

func (e *StartError) Error() string { return e.Reason }
func (e *StartError) Unwrap() error { return e.Err }

// ConfigError is a task's config block that can't work however often it is tried.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return fmt.Sprintf("failed to parse config: %v", e.Err) }
func (e *ConfigError) Unwrap() error { return e.Err }

// ArgumentError is an argument of a task's config block that is unknown, missing or has a wrong value. Err's text names
// the argument and what would be right.
type ArgumentError struct {
	Argument string
	Err      error
}

func (e *ArgumentError) Error() string { return e.Err.Error() }
func (e *ArgumentError) Unwrap() error { return e.Err }

// UnknownError is a driver that is not in a registry.
type UnknownError struct {
	Name  string
	Known []string
}

func (e *UnknownError) Error() string {
	known := strings.Join(e.Known, ", ")
	switch {
	case e.Name == "" && len(e.Known) == 1:
		return fmt.Sprintf("it is left out; write driver = %q", known)
	case e.Name == "":
		return "it is left out; there is: " + known
	}
	return fmt.Sprintf("the driver %q is not here; there is: %s", e.Name, known)
}

// Registry holds the available drivers. Its zero value has none. It never changes, and is safe for concurrent use.
type Registry struct{ byName map[string]Driver }

// NewRegistry returns a registry of drivers, which must have different names.
func NewRegistry(list ...Driver) *Registry {
	r := &Registry{byName: make(map[string]Driver, len(list))}
	for _, d := range list {
		if _, taken := r.byName[d.Name()]; taken {
			panic(fmt.Sprintf("drivers: there are two of the name %q", d.Name()))
		}
		r.byName[d.Name()] = d
	}
	return r
}

// Fingerprints returns what each driver finds on this machine, by the driver's name.
func (r *Registry) Fingerprints() map[string]Fingerprint {
	all := make(map[string]Fingerprint, len(r.byName))
	for name, d := range r.byName {
		all[name] = d.Fingerprint()
	}
	return all
}

// Attributes returns the node attributes of the drivers. "driver.NAME" is "1" for each that can start tasks.
func (r *Registry) Attributes() map[string]string {
	all := map[string]string{}
	for name, found := range r.Fingerprints() {
		maps.Copy(all, found.Attributes)
		if found.Problem == "" {
			all["driver."+name] = "1"
		}
	}
	return all
}

// Get returns the driver of a name. Errors: *UnknownError.
func (r *Registry) Get(name string) (Driver, error) {
	if d, ok := r.byName[name]; ok {
		return d, nil
	}
	return nil, &UnknownError{Name: name, Known: slices.Sorted(maps.Keys(r.byName))}
}

// Check reports whether a task's driver can start it on this machine, with its user, mounts, devices and network.
// Errors: Get's; a *StartError, which wraps errors.ErrUnsupported if the driver lacks the ability for any task.
func (r *Registry) Check(task Task) error {
	d, err := r.Get(task.Task.Driver)
	if err != nil {
		return err
	}
	if problem := d.Fingerprint().Problem; problem != "" {
		return &StartError{Reason: fmt.Sprintf("the driver %q can't start tasks here: %s", d.Name(), problem)}
	}
	can := d.Capabilities()
	for _, lack := range []struct {
		what string
		is   bool
	}{
		{"a mount: give the task the machine's own path", len(task.Mounts) > 0 && !can.Mounts},
		{"a device", len(task.Devices) > 0 && !can.Devices},
		{"a network namespace", task.NetworkNamespace != "" && !can.Network},
		{"a user other than this program's", !can.Users && needsUser(task)},
		{"this terminal", task.Foreground != nil && !can.Foreground},
	} {
		if lack.is {
			return &StartError{Reason: fmt.Sprintf("the driver %q can't give a task %s", d.Name(), lack.what),
				Err: errors.ErrUnsupported}
		}
	}
	return nil
}

// Validate checks the task's config by the driver that the task names. Errors: Get's, and the driver's.
func (r *Registry) Validate(task *api.Task) error {
	d, err := r.Get(task.Driver)
	if err != nil {
		return err
	}
	return d.Validate(task.Config)
}

func needsUser(task Task) bool {
	return task.Task.User != "" || task.User.Name != "" && int(task.User.UID) != os.Geteuid()
}

// Start starts a task by the driver that it names. Errors: Check's, and the driver's.
func (r *Registry) Start(ctx context.Context, task Task) (Run, error) {
	if err := r.Check(task); err != nil {
		return nil, err
	}
	return r.byName[task.Task.Driver].Start(ctx, task)
}

// Recover finds the task's latest run by the driver that the task names. Errors: Get's, and the driver's.
func (r *Registry) Recover(ctx context.Context, task Task, handle interfaces.Handle) (Run, error) {
	d, err := r.Get(task.Task.Driver)
	if err != nil {
		return nil, err
	}
	return d.Recover(ctx, task, handle)
}
