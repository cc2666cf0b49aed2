// Package interfaces holds the interfaces that an extension of the allocation runner, or another runner, implements:
// the runner itself with its factory, and the hooks of an allocation and of a task. It defines types and the order of
// calls, and runs nothing.
package interfaces

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/ptr"
	"taskapi/internal/signals"
)

// The closed set of errors that an AllocRunner's methods return, wrapped with the operation and the object.
var (
	// ErrTaskNotFound: the allocation has no task of that name.
	ErrTaskNotFound = errors.New("task not found")
	// ErrTaskNotRunning: the task has no process now (pending or dead; a restart also ends a restart delay).
	ErrTaskNotRunning = errors.New("task not running")
	// ErrStarting: the set-up or the resume of the allocation takes longer than a request waits.
	ErrStarting = errors.New("the allocation is being set up or resumed")
	// ErrOnlyChildren: the job runs its tasks in children alone.
	ErrOnlyChildren = errors.New("the job's tasks run in its children alone: name a child, or start another one")
	// ErrNotSupported: the task's driver can't do that.
	ErrNotSupported = errors.New("not supported by the task's driver")
	// ErrPoststop: a poststop task that waits for an operator would keep its allocation from ending.
	ErrPoststop = errors.New("a poststop task can't be stopped by itself: it runs when the others have ended")
	// ErrUnsaved: the change holds for now, and a crash before it is saved would undo it.
	ErrUnsaved = errors.New("the change holds until taskapi ends, because it could not be saved")
	// ErrUnknownSignal: no signal has that name on this machine.
	ErrUnknownSignal = signals.ErrUnknown
	// ErrTerminal: the allocation has ended or is ending, and the request would start something again.
	ErrTerminal = errors.New("the allocation has ended or is ending")
	// ErrInvalidJob: no machine could run the job, for the reason that is wrapped.
	ErrInvalidJob = errors.New("the job can't be run")
	// ErrNotTerminal: the allocation runs, or may run again.
	ErrNotTerminal = errors.New("the allocation has not ended")
	// ErrSticky: the allocation has ended with sticky data, and no other one has taken them.
	ErrSticky = errors.New("it has sticky data that no other allocation has taken")
	// ErrNotParameterized and ErrNotPeriodic: the job starts no children in this way.
	ErrNotParameterized = errors.New("the job is not parameterized")
	ErrNotPeriodic      = errors.New("the job is not periodic, or its schedule is not enabled")
	// ErrDetached: the runner has detached, and the tasks run on.
	ErrDetached = errors.New("the allocation was left running")
)

// DestructiveError says that an update would need new processes. It lists the changes that need them, a line each.
type DestructiveError struct {
	ID      string // of the allocation
	Changes []string
}

func (e *DestructiveError) Error() string {
	return "can't be updated in place: " + strings.Join(e.Changes, "; ")
}

// StopRequest says how to end an allocation. Its zero value ends it gracefully and for good.
type StopRequest struct {
	// NoShutdownDelay skips the shutdown_delay of the group and of the tasks, also one that has begun. The allocation's
	// DesiredTransition shows it.
	NoShutdownDelay bool

	// Expired says that the group's max_run_duration is over.
	Expired bool

	// ReplacedBy is the version of the allocation that follows; nil for none. The function Replaced reports whether an
	// allocation has one.
	ReplacedBy *api.Allocation
}

// descriptionReplaced is Nomad's DesiredDescription of an allocation that ends for a destructive update.
const descriptionReplaced = "alloc is being updated due to job update"

// DescriptionExpired is Nomad's description of an allocation whose max_run_duration is over.
const DescriptionExpired = "allocation exceeded max_run_duration"

// Apply writes the request into an allocation, and reports whether that has changed it. A NoShutdownDelay of an earlier
// request stays.
func (s StopRequest) Apply(a *api.Allocation) (changed bool) {
	was := *a
	a.DesiredStatus, a.DesiredDescription = api.AllocDesiredStatusStop, ""
	if s.ReplacedBy != nil {
		a.DesiredDescription = descriptionReplaced
	} else if s.Expired {
		a.DesiredDescription = DescriptionExpired
	}
	hurries := s.NoShutdownDelay && !a.DesiredTransition.ShouldIgnoreShutdownDelay()
	if hurries {
		a.DesiredTransition.NoShutdownDelay = &s.NoShutdownDelay
	}
	return hurries || was.DesiredStatus != a.DesiredStatus || was.DesiredDescription != a.DesiredDescription
}

// Replaced reports whether an allocation ends, or has ended, so that another version of it can follow.
func Replaced(a *api.Allocation) bool { return a.DesiredDescription == descriptionReplaced }

// Sticky reports whether the next allocation of the same name gets an allocation's data. A child's name has no next
// one.
func Sticky(a *api.Allocation) bool {
	if a.Job == nil {
		return false
	}
	group := a.GetTaskGroup()
	return group != nil && group.EphemeralDisk != nil && ptr.Deref(group.EphemeralDisk.Sticky) &&
		ptr.Deref(a.Job.ParentID) == ""
}

// Ended reports whether, in this version of the allocation, no task runs or ever will. The version may not be saved
// yet.
func Ended(a *api.Allocation) bool {
	for _, s := range a.TaskStates {
		if s.State != "dead" {
			return false
		}
	}
	return a.ClientTerminalStatus()
}

// AllocRunner runs one allocation: one task group of one job, on this machine.
type AllocRunner interface {
	// Run runs the allocation to its end and returns nil when it completed or was stopped, or an error when it failed.
	// Cancelling ctx stops the allocation as Stop does. Run is called once. When it returns, no goroutine and no
	// listener of the runner is left. No process is left either, unless Run returns ErrDetached or could not resume
	// Config.Saved.
	Run(ctx context.Context) error

	// Stop begins a graceful stop: pre-kill hooks, shutdown delays, kill signals, kill timeouts, poststop tasks. Stop
	// does not wait for the end. It returns once the request is saved, so that a runner that resumes the allocation
	// after a crash completes the stop. An allocation that is ending or has ended is no error: the latest request holds
	// then.
	Stop(ctx context.Context, how StopRequest) error

	// Kill stops the allocation without any delay, or skips the delays of a stop that is under way: tasks get SIGKILL
	// at once.
	Kill()

	// Detach makes Run return ErrDetached. The tasks run on, and another runner can resume the allocation.
	Detach()

	// Alloc returns the latest version of the allocation, never nil. The value is shared and must not be changed;
	// ModifyIndex grows by at least one with every change.
	Alloc() *api.Allocation

	// Wait returns the allocation once its ModifyIndex is above index, or the latest version when ctx ends.
	Wait(ctx context.Context, index uint64) *api.Allocation

	// Checks returns the latest result of every check, by check ID, and a version that differs whenever the results do.
	// The map is shared and must not be changed; it is nil when the allocation has no checks or is being killed.
	Checks() (results api.AllocCheckStatuses, version uint64)

	// Stats sends the CPU and memory use of the tasks and their processes now, and then once each interval until ctx
	// ends, which closes the channel. After an error, such as a keeper that does not answer, it logs the error and
	// tries again at growing intervals. The values are shared and must not be changed; their Timestamp differs whenever
	// the rest does. Any number of readers share the samples. Errors: an interval that is not positive.
	Stats(ctx context.Context, interval time.Duration) (<-chan *api.AllocResourceUsage, error)

	// Terminal reports whether the allocation has ended: no task of it runs or ever will.
	Terminal() bool

	// RestartTask restarts one running task and returns when the old process is gone.
	// Errors: ErrTaskNotFound, ErrTaskNotRunning, ErrTerminal, also when the allocation began to end meanwhile.
	RestartTask(ctx context.Context, task string) error

	// RestartRunning restarts every running task. As in Nomad, it is no error if none runs, since waiting tasks start
	// by themselves. Errors: ErrTerminal as above.
	RestartRunning(ctx context.Context) error

	// RestartAll takes every task, dead ones included, through the life cycle again, and returns when the old processes
	// are gone. When ctx ends before, the restart goes on without the caller. Errors: ErrTerminal, also when the
	// allocation began to end meanwhile, or ctx's.
	RestartAll(ctx context.Context) error

	// Signal sends a signal, by name, to the first process of a task, or of every task when task is empty.
	// Errors: ErrTaskNotFound, ErrTaskNotRunning, ErrUnknownSignal, ErrNotSupported.
	Signal(ctx context.Context, task, signal string) error

	// Exec starts a program beside a running task's process: in its directory, with its environment, as its user, in
	// its cgroup. It returns when the program runs. The program is killed, with everything that it has started, when
	// ctx, the task or this runner ends. Errors: ErrTaskNotFound, ErrTaskNotRunning, ErrTooManyExecs, ErrNotSupported,
	// *ExecError.
	Exec(ctx context.Context, req ExecRequest) (ExecSession, error)

	// Files returns the allocation's files as the reader may see them; nil stands for this program's user. Every reader
	// may read the logs.
	Files(reader *Reader) Files

	// Update applies another version of the allocation's job, without a restart. Errors, after which nothing has
	// changed: *DestructiveError if the update needs new processes, ErrTerminal, ErrInvalidJob. When ctx ends before
	// hooks and tasks have been updated, the update goes on without the caller.
	Update(ctx context.Context, job *api.Job) error

	// Destroy removes an allocation that has ended: it calls the destroy hooks and removes the allocation directory.
	// Errors: ErrNotTerminal.
	Destroy(ctx context.Context) error
}

// Config configures a runner. Alloc, Dir and Logger are required.
type Config struct {
	// Alloc is the allocation to run: ID, Name, Job (canonicalized, with the group), TaskGroup, NodeID and NodeName
	// set. The runner adds resources, ports, states and indexes.
	Alloc *api.Allocation

	// Dir is the allocation directory, absolute. It is made when it is missing.
	Dir string

	// Logger is for the operator of the runner. Task output never goes there.
	Logger *slog.Logger

	// State outlives the process; nil saves nothing. Saved is the state that an earlier runner of the same allocation
	// has saved; nil for a new allocation. The runner resumes it, with the tasks that still run.
	State State
	Saved *Saved

	// Previous is the ended allocation that this new one replaces under its ID; nil for none. The new one continues its
	// indexes, its job's versions and its deployments. Overrides of its tasks' schedules hold for the new tasks.
	Previous *Saved

	// Life distinguishes this life of the allocation from others under the same ID. It is saved with the allocation;
	// empty for none. The runner makes no use of it.
	Life string

	// Updates gets every new version of the allocation; nil for none.
	Updates Updates

	// Unlimited leaves the tasks' memory and CPU without limits, whatever their resources blocks say.
	Unlimited bool

	// HostIP is the address of the group's ports, empty for the loopback address; Datacenter and Version are what
	// ${node.datacenter} and the User-Agent of checks say.
	HostIP, Datacenter, Version string

	// NodeMeta returns the machine's present metadata, ${meta.KEY}. It is called before each interpolation of a job
	// that may refer to them, and must not wait for long. The map is not changed. Nil for none.
	NodeMeta func() map[string]string

	// IsolateUsers makes each task without a user run as a user of its own, with a number in this range, if this
	// program runs as root. A runner that resumes an allocation gets the same range as the runner before it. With the
	// zero value, such tasks run as this program's user.
	IsolateUsers IDRange

	// Hooks are called besides the runner's own, in the order given.
	Hooks []RunnerHook

	// TaskHooks makes the hooks of one task; nil for none. It is called once for each task.
	TaskHooks func(alloc *api.Allocation, task *api.Task) []TaskHook

	// ServiceProviders register the allocation's services, each provider the services that name it. A job with another
	// provider is refused, except for "nomad": without that provider its services are not registered, and only their
	// checks run.
	ServiceProviders []ServiceProvider

	// Leases returns the leases that end with the allocation, once the prerun hooks have run. The allocation's keeper
	// holds them, too, so they survive this process. Nil for none.
	Leases func() []Lease

	// Tenure is how long the tasks may run; nil for without end.
	Tenure Tenure

	// Unused says that no process of the allocation exists: its ID was drawn at random for this runner, or none has
	// just been found. The runner then looks for none.
	Unused bool

	// Tied makes every process of the allocation end with this process, however that ends.
	Tied bool

	// Foreground is a task that has the files of the program around this runner; nil for none.
	Foreground *Foreground

	// OnEvent is called for every task event as it happens, in order, from one goroutine at a time; nil for none.
	OnEvent func(task string, event *api.TaskEvent)
}

// Foreground is a task that is started as in a terminal. Its command replaces the job's, word for word.
type Foreground struct {
	Task string
	Path string   // absolute path of the program
	Args []string // without the program's own name
	Dir  string   // its working directory, absolute

	// Env is its environment, KEY=value each. The task's own variables take precedence, except for those that a login
	// sets: PATH and, unless the task runs as another user, HOME, SHELL, USER and LOGNAME.
	Env []string

	// Files are its standard input, output and error. With TTY the first is a terminal that becomes its controlling
	// one.
	Files []*os.File
	TTY   bool
}

// IDRange is the numbers of users from From to To.
type IDRange struct{ From, To uint32 }

// Factory makes a runner. It does no I/O: errors of the machine come from Run.
type Factory func(Config) (AllocRunner, error)
