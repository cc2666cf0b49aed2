// Package interfaces holds what an extension or a simulator of the allocation runner implements: the runner itself with its
// factory, and the hooks of an allocation's and a task's life. It promises shapes and order, and runs nothing.
package interfaces

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/hashicorp/nomad/api"
)

// The closed set of errors that an AllocRunner's methods return, wrapped with the operation and the object. The text of each is
// the wire's, capitals and all.
var (
	// ErrTaskNotFound: the allocation has no task of that name.
	//lint:ignore ST1005 clients match on these words
	ErrTaskNotFound = errors.New("Task not found")
	// ErrTaskNotRunning: the task has no process now (pending, in a restart delay, or dead).
	//lint:ignore ST1005 clients match on these words
	ErrTaskNotRunning = errors.New("Task not running")
	// ErrUnknownSignal: no signal has that name on this machine.
	ErrUnknownSignal = errors.New("unknown signal")
	// ErrTerminal: the allocation is over or on its way out, and what was asked would start something again.
	ErrTerminal = errors.New("restart of an alloc that should not run")
)

// AllocRunner runs one allocation: one task group of one job, on this machine.
type AllocRunner interface {
	// Run runs the allocation to its end and returns nil when it completed or was stopped, or an error when it failed.
	// Cancelling ctx stops the allocation in order: kill signals, kill timeouts, shutdown delays, poststop tasks.
	// Run is called once; when it returns no goroutine, process or listener of the runner is left.
	Run(ctx context.Context) error

	// Kill makes a stop that is under way, or starts one, skip every delay: tasks get SIGKILL at once.
	Kill()

	// Alloc is the allocation as it stands, never nil. The value is shared and must not be changed; ModifyIndex grows by at
	// least one with every change.
	Alloc() *api.Allocation

	// Wait returns the allocation once its ModifyIndex is above index, or as it stands when ctx ends.
	Wait(ctx context.Context, index uint64) *api.Allocation

	// Checks is the latest result of every check, by check ID, and a version that differs whenever the results do. The map
	// is shared and must not be changed; it is nil when the allocation has no checks or is being killed.
	Checks() (results api.AllocCheckStatuses, version uint64)

	// Over reports that the allocation has ended: no task of it runs or ever will.
	Over() bool

	// RestartTask restarts one running task and returns when the old process is gone.
	// Errors: ErrTaskNotFound, ErrTaskNotRunning, ErrTerminal.
	RestartTask(ctx context.Context, task string) error

	// RestartRunning restarts every task that runs. Errors: ErrTaskNotRunning when none does, ErrTerminal.
	RestartRunning(ctx context.Context) error

	// RestartAll takes every task, dead ones included, through the life cycle anew. Errors: ErrTerminal.
	RestartAll(ctx context.Context) error

	// Signal sends a signal, by name, to the first process of a task, or of every task when task is empty.
	// Errors: ErrTaskNotFound, ErrTaskNotRunning, ErrUnknownSignal.
	Signal(ctx context.Context, task, signal string) error
}

// Config is what a runner is made of. Alloc, Dir and Logger are required.
type Config struct {
	// Alloc is the allocation to run: ID, Name, Job (canonicalized, with the group), TaskGroup, NodeID and NodeName set.
	// The runner adds resources, ports, states and indexes.
	Alloc *api.Allocation

	// Dir is the allocation directory, absolute. It is made when it is missing.
	Dir string

	// Logger gets what the operator of the runner should see. Task output never goes there.
	Logger *slog.Logger

	// State outlives the process; nil keeps nothing. Saved is what a State was last given by a runner of the same allocation that
	// did not live to see its end; nil for a new allocation. The runner goes on from there: tasks that still run are taken over.
	State State
	Saved *Saved

	// HostIP is the address of the group's ports, empty for the loopback address; Datacenter and Version are what
	// ${node.datacenter} and the User-Agent of checks say.
	HostIP, Datacenter, Version string

	// Hooks are called besides the runner's own, in the order given.
	Hooks []RunnerHook

	// TaskHooks makes the hooks of one task; nil for none. It is called once for each task.
	TaskHooks func(alloc *api.Allocation, task *api.Task) []TaskHook

	// OnEvent is called for every task event as it happens, in order, from one goroutine at a time; nil for none.
	OnEvent func(task string, event *api.TaskEvent)
}

// State is where a runner writes down how far it is.
type State interface {
	// Put replaces what is written down. When it returns nil, that outlives this process.
	Put(Saved) error
}

// Saved is an allocation on its way, or at its end.
type Saved struct {
	Alloc *api.Allocation
	Tasks map[string]SavedTask
	Over  bool // nothing is left to do
}

// SavedTask is what another runner has to know of a task besides its state in the allocation.
type SavedTask struct {
	Phase         string // where the task is in its life, in the words of the runner that wrote it
	Restarting    bool   // its process is being ended for a new one
	Failed        bool
	SetUp         bool      // its directory has been announced
	IntervalStart time.Time // of the restart policy
	Attempts      int       // in that interval
	Due           time.Time // of the end of a restart delay; zero for none
}

// Factory makes a runner. It does no I/O: what can fail on the machine fails in Run.
type Factory func(Config) (AllocRunner, error)
