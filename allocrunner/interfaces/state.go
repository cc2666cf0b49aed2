package interfaces

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"
)

// State is where a runner writes down how far it is, before it acts on it where that matters.
type State interface {
	// Put writes down what the change holds and leaves the rest as it was. When it returns nil, that outlives this process and the
	// machine. Calls may come at the same time, and are best written together.
	Put(Change) error
}

// Change is what has changed of an allocation. A nil field is as it was.
type Change struct {
	ID     string                 // of the allocation; always given
	Alloc  *api.Allocation        // as it stands. Its TaskStates are not written: Tasks have them
	Tasks  map[string]SavedTask   // those that have changed
	Checks api.AllocCheckStatuses // the latest results; empty, not nil, for none any more
	Over   bool                   // nothing is left to do; once true, it stays

	// KillAfter is when the group's shutdown_delay is over, and the tasks are told to end; zero: as it was.
	KillAfter time.Time

	Life string // Config.Life; empty: as it was
}

// Saved is an allocation on its way, or at its end, as it was written down.
type Saved struct {
	Alloc  *api.Allocation // with its job, and with the task states of Tasks
	Tasks  map[string]SavedTask
	Checks api.AllocCheckStatuses
	Over   bool

	KillAfter time.Time // zero before the group's shutdown_delay has begun

	Life string // Config.Life; empty for an allocation that began before there was one
}

// SavedTask is what another runner has to know of a task to go on with it.
type SavedTask struct {
	State         *api.TaskState // as the API shows it, with its events
	Phase         string         // where the task is in its life, in the words of the runner that wrote it
	Intent        string         // what is to follow when its process has been stopped, in the same words; empty for nothing
	Failed        bool
	SetUp         bool      // its directory has been announced
	IntervalStart time.Time // of the restart policy
	Attempts      int       // in that interval
	Due           time.Time // of the end of a delay or a timeout; zero for none
	Handle        *Handle   // of the latest process that is known to have started; nil for none

	// Hooks is what the task's hooks have asked to be kept, by the hook's name.
	Hooks map[string]map[string]string
}

// Handle tells one process of a task from the next.
type Handle struct {
	PID       int
	StartedAt time.Time
}

// Sink takes allocations as they stand, for somebody who wants to know: a stream of events, metrics, a server.
type Sink interface {
	// Name identifies the sink in logs.
	Name() string
	// PutAllocs takes the latest version of each allocation that has changed, each once. When it fails, it is called again with
	// what is the latest by then. It may take as long as it likes: only its own next call waits for it.
	PutAllocs(ctx context.Context, allocs []*api.Allocation) error
}

// Updates takes every new version of an allocation from its runner and hands it to whom it concerns.
type Updates interface {
	// AllocUpdated never blocks. The value is shared and must not be changed.
	AllocUpdated(alloc *api.Allocation)
}
