// Package interfaces holds what an extension or a simulator of the allocation runner implements: the runner itself with
// its factory, and the hooks of an allocation and of a task. It promises shapes and order, and runs nothing.
package interfaces

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/signals"
)

// The closed set of errors that an AllocRunner's methods return, wrapped with the operation and the object.
var (
	// ErrTaskNotFound: the allocation has no task of that name.
	ErrTaskNotFound = errors.New("task not found")
	// ErrTaskNotRunning: the task has no process now (pending, in a restart delay, or dead).
	ErrTaskNotRunning = errors.New("task not running")
	// ErrStarting: the allocation is being set up or resumed, and that takes longer than a request waits.
	ErrStarting = errors.New("the allocation is being set up or resumed")
	// ErrNotSupported: the task's driver can't do that.
	ErrNotSupported = errors.New("not supported by the task's driver")
	// ErrUnknownSignal: no signal has that name on this machine.
	ErrUnknownSignal = signals.ErrUnknown
	// ErrTerminal: the allocation has ended or is ending, and the request would start something again.
	ErrTerminal = errors.New("the allocation has ended or is ending")
	// ErrInvalidJob: no machine could run the job, for the reason that is wrapped.
	ErrInvalidJob = errors.New("the job can't be run")
	// ErrNotTerminal: the allocation runs, or may run again.
	ErrNotTerminal = errors.New("the allocation has not ended")
	// ErrDetached: the runner has detached, and the tasks run on.
	ErrDetached = errors.New("the allocation was left running")
)

// DestructiveError is an update that would need new processes, with the changes that do, a line each.
type DestructiveError struct {
	ID      string // of the allocation
	Changes []string
}

func (e *DestructiveError) Error() string {
	return "can't be updated in place: " + strings.Join(e.Changes, "; ")
}

// StopRequest is how an allocation is to end. Its zero value is gracefully, for good.
type StopRequest struct {
	// NoShutdownDelay skips the shutdown_delay of the group and of the tasks, also one that has begun. The allocation's
	// DesiredTransition shows it.
	NoShutdownDelay bool

	// ReplacedBy is the version of the allocation that is to follow; nil for none. The function Replaced reports from
	// the allocation whether there is one.
	ReplacedBy *api.Allocation
}

// descriptionReplaced is Nomad's DesiredDescription of an allocation that ends for a destructive update.
const descriptionReplaced = "alloc is being updated due to job update"

// Apply writes the request into an allocation, and reports whether that has changed it. A NoShutdownDelay of an earlier
// request stays.
func (s StopRequest) Apply(a *api.Allocation) (changed bool) {
	was := *a
	a.DesiredStatus, a.DesiredDescription = api.AllocDesiredStatusStop, ""
	if s.ReplacedBy != nil {
		a.DesiredDescription = descriptionReplaced
	}
	hurries := s.NoShutdownDelay && !a.DesiredTransition.ShouldIgnoreShutdownDelay()
	if hurries {
		a.DesiredTransition.NoShutdownDelay = &s.NoShutdownDelay
	}
	return hurries || was.DesiredStatus != a.DesiredStatus || was.DesiredDescription != a.DesiredDescription
}

// Replaced reports whether an allocation ends, or has ended, for another version of it to follow.
func Replaced(a *api.Allocation) bool { return a.DesiredDescription == descriptionReplaced }

// Ended reports whether no task of an allocation runs or ever will, as its version has it: that may have to be saved
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
	// Cancelling ctx stops the allocation as Stop does. Run is called once; when it returns no goroutine and no
	// listener of the runner is left, and no process either, unless it returns ErrDetached, or could not resume
	// Config.Saved.
	Run(ctx context.Context) error

	// Stop begins a graceful stop: pre-kill hooks, shutdown delays, kill signals, kill timeouts, poststop tasks. It
	// returns once the request is saved, so that a runner that resumes the allocation after a crash completes it, and
	// does not wait for the end. It is no error when the allocation is ending or has ended: the latest request holds
	// then.
	Stop(ctx context.Context, how StopRequest) error

	// Kill stops the allocation without any delay, or makes a stop that is under way skip the rest: tasks get SIGKILL
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

	// Stats sends what the tasks and their processes use of CPU and memory now, and once each interval from then on,
	// until ctx ends, which closes the channel. An error, such as a keeper that does not answer, is logged and tried
	// again, at growing intervals. What is sent is shared and must not be changed; its Timestamp differs whenever the
	// rest does. Any number of readers share the samples. Errors: an interval that is not positive.
	Stats(ctx context.Context, interval time.Duration) (<-chan *api.AllocResourceUsage, error)

	// Terminal reports whether the allocation has ended: no task of it runs or ever will.
	Terminal() bool

	// RestartTask restarts one running task and returns when the old process is gone.
	// Errors: ErrTaskNotFound, ErrTaskNotRunning, ErrTerminal, also when the allocation began to end meanwhile.
	RestartTask(ctx context.Context, task string) error

	// RestartRunning restarts every task that runs; that none does is no error, as in Nomad: what is to run starts by
	// itself. Errors: ErrTerminal as above.
	RestartRunning(ctx context.Context) error

	// RestartAll takes every task, dead ones included, through the life cycle again, and returns when the old processes
	// are gone. When ctx ends before, the restart goes on without the caller. Errors: ErrTerminal, also when the
	// allocation began to end meanwhile, or ctx's.
	RestartAll(ctx context.Context) error

	// Signal sends a signal, by name, to the first process of a task, or of every task when task is empty.
	// Errors: ErrTaskNotFound, ErrTaskNotRunning, ErrUnknownSignal, ErrNotSupported.
	Signal(ctx context.Context, task, signal string) error

	// Exec starts a program beside a running task's process: in its directory, with its environment, as its user, in
	// its cgroup. It returns when the program runs, which is killed with everything that it has started when ctx ends,
	// with the task, and with this runner. Errors: ErrTaskNotFound, ErrTaskNotRunning, ErrTooManyExecs,
	// ErrNotSupported, *ExecError.
	Exec(ctx context.Context, req ExecRequest) (ExecSession, error)

	// Files returns the allocation's files as the reader may see them, or as this program's user may: nil. Logs are for
	// everybody.
	Files(reader *Reader) Files

	// Update applies another version of the allocation's job, without a restart. Errors: *DestructiveError when it
	// needs new processes, ErrTerminal, or ErrInvalidJob, and nothing has changed then. When ctx ends before hooks and
	// tasks have been updated, the update goes on without the caller.
	Update(ctx context.Context, job *api.Job) error

	// Destroy removes an allocation that has ended: it calls the destroy hooks and removes the allocation directory.
	// Errors: ErrNotTerminal.
	Destroy(ctx context.Context) error
}

// Config is what a runner is made of. Alloc, Dir and Logger are required.
type Config struct {
	// Alloc is the allocation to run: ID, Name, Job (canonicalized, with the group), TaskGroup, NodeID and NodeName
	// set. The runner adds resources, ports, states and indexes.
	Alloc *api.Allocation

	// Dir is the allocation directory, absolute. It is made when it is missing.
	Dir string

	// Logger is for the operator of the runner. Task output never goes there.
	Logger *slog.Logger

	// State outlives the process; nil saves nothing. Saved is what an earlier runner of the same allocation has saved;
	// nil for a new allocation. The runner resumes it, with the tasks that still run.
	State State
	Saved *Saved

	// Previous is the ended allocation that this new one replaces under its ID; nil for none. The new one continues its
	// indexes, its job's versions and its deployments.
	Previous *Saved

	// Life distinguishes this life of the allocation from others under the same ID. It is saved with the allocation;
	// empty for none. The runner makes no use of it.
	Life string

	// Updates gets every new version of the allocation; nil for none.
	Updates Updates

	// HostIP is the address of the group's ports, empty for the loopback address; Datacenter and Version are what
	// ${node.datacenter} and the User-Agent of checks say.
	HostIP, Datacenter, Version string

	// NodeMeta returns the machine's present metadata, ${meta.KEY}. It is called before each interpolation of a job
	// that may refer to them, and must not wait for long. The map is not changed. Nil for none.
	NodeMeta func() map[string]string

	// IsolateUsers makes each task without a user run as a user of its own, with a number of this range, where this
	// program is root's. A runner that resumes an allocation has the same as the one before it. With the zero value
	// they run as this program's user.
	IsolateUsers IDRange

	// Hooks are called besides the runner's own, in the order given.
	Hooks []RunnerHook

	// TaskHooks makes the hooks of one task; nil for none. It is called once for each task.
	TaskHooks func(alloc *api.Allocation, task *api.Task) []TaskHook

	// ServiceProviders make the allocation's services known, each those whose provider attribute is its name. A job
	// with another provider is refused, but for "nomad": without that provider nobody learns of its services, and their
	// checks run.
	ServiceProviders []ServiceProvider

	// Leases returns, once the prerun hooks have run, what ends with the allocation, whatever happens to this process:
	// its keeper holds it, too. Nil for nothing.
	Leases func() []Lease

	// Unused says that no process of the allocation exists: its ID was drawn at random for this runner, or none has just
	// been found. So none is looked for.
	Unused bool

	// Tied has no process of the allocation outlive this one, however it ends.
	Tied bool

	// Foreground is a task that has the files of the program around this runner; nil for none.
	Foreground *Foreground

	// OnEvent is called for every task event as it happens, in order, from one goroutine at a time; nil for none.
	OnEvent func(task string, event *api.TaskEvent)
}

// Foreground is a task as somebody would start it in a terminal: its command is what is said here, in the place of the
// job's, word for word.
type Foreground struct {
	Task string
	Path string   // absolute path of the program
	Args []string // without the program's own name
	Dir  string   // its working directory, absolute

	// Env is its environment, KEY=value each. A variable of the task's own counts before one of these, but for what a
	// login sets: PATH, and, unless the task runs as another user, HOME, SHELL, USER and LOGNAME.
	Env []string

	// Files are its standard input, output and error. With TTY the first is a terminal that becomes its controlling
	// one.
	Files []*os.File
	TTY   bool
}

// IDRange is the numbers of users from From to To.
type IDRange struct{ From, To uint32 }

// Factory makes a runner. It does no I/O: what can fail on the machine fails in Run.
type Factory func(Config) (AllocRunner, error)
