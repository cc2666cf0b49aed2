package interfaces

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/hashicorp/nomad/api"
)

// What every Store may say.
var (
	// ErrStateInUse: another process owns the state.
	ErrStateInUse = errors.New("state is in use by another process")
	// ErrNoState: nothing is saved.
	ErrNoState = errors.New("no state")
	// ErrStateFile: the file system refuses to read or write the state. The cause is wrapped, such as fs.ErrPermission
	// or syscall.ENOSPC.
	ErrStateFile = errors.New("state can't be read or written")
)

// Store keeps the saved states of allocations.
type Store interface {
	// Acquire takes ownership of an allocation's state: no other process gets it before Close. Errors: ErrStateInUse;
	// why a saved state can't be read.
	Acquire(id string) (OwnedState, error)
}

// OwnedState is an allocation's saved state while this process owns it.
type OwnedState interface {
	State
	// Load returns what is saved. Errors: ErrNoState.
	Load() (*Saved, error)
	// Recreate replaces the whole saved state by the given one, in one step. This process owns the state throughout. If
	// Recreate fails, the state is unchanged.
	Recreate(Saved) error
	// Close lets others own the state. It is safe to call twice.
	Close() error
}

// State is where a runner saves its progress. Where it matters, it saves a change before it acts on it.
type State interface {
	// Put saves the given fields and tasks; a field that is zero or nil, and a task that is not among the Tasks, stay
	// as they were. When Put returns nil, the change survives a crash of this process and of the machine. After an
	// error the change may be saved or not: the caller puts it again.
	Put(Saved) error
}

// Saved is the saved state of an allocation that runs or has ended.
type Saved struct {
	Alloc    *api.Allocation // with its job, and with the task states of Tasks, which are not written a second time
	Tasks    map[string]SavedTask
	Checks   api.AllocCheckStatuses // the latest results; empty, not nil, for none any more
	Terminal bool                   `json:"Over"` // nothing is left to do. The name is that in the output of dumps

	Deployments []*api.Deployment `json:",omitempty"` // the latest first

	// KillAfter is when the group's shutdown_delay is over, and the tasks are stopped; zero before it has begun.
	KillAfter time.Time

	Life string // Config.Life
}

// ShowTasks puts the states of the tasks into the allocation, if there is one: a store keeps them with the tasks alone.
func (s *Saved) ShowTasks() {
	if s.Alloc == nil {
		return
	}
	s.Alloc.TaskStates = nil
	for name, task := range s.Tasks {
		if task.State == nil {
			continue
		}
		if s.Alloc.TaskStates == nil {
			s.Alloc.TaskStates = map[string]*api.TaskState{}
		}
		s.Alloc.TaskStates[name] = task.State
	}
}

// SavedTask is the state of a task that another runner needs to resume it.
type SavedTask struct {
	State *api.TaskState // as the API shows it, with its events
	Phase string         // the task's phase, in the words of the runner that wrote it
	// what follows when its process has been stopped, in the same words; empty for nothing
	Intent        string
	Failed        bool
	SetUp         bool          // its directory has been announced
	IntervalStart time.Time     // of the restart policy
	Attempts      int           // in that interval
	Due           time.Time     // of the end of a delay or a timeout; zero for none
	Handle        Handle        // of the latest run that is known to have started; nil for none
	Outside       bool          // of the times of its schedule, when the clock was last read
	Override      ScheduleState // of its schedule, by an operator

	// Hooks is the data of the task's hooks, by the hook's name.
	Hooks map[string]map[string]string
}

// Handle is the data with which a task's driver finds a run of the task again. Nobody else reads it.
type Handle []byte

// MarshalJSON writes a handle as it is if it is a JSON object, and otherwise in base64.
func (h Handle) MarshalJSON() ([]byte, error) {
	if compact, err := json.Marshal(json.RawMessage(h)); err == nil && bytes.HasPrefix(h, []byte("{")) &&
		bytes.Equal(compact, h) {
		return h, nil
	}
	return json.Marshal([]byte(h))
}

// UnmarshalJSON reads what MarshalJSON has written.
func (h *Handle) UnmarshalJSON(data []byte) error {
	if bytes.HasPrefix(data, []byte("{")) {
		*h = bytes.Clone(data)
		return nil
	}
	return json.Unmarshal(data, (*[]byte)(h))
}

// Sink takes new versions of allocations: a stream of events, metrics, a server.
type Sink interface {
	// Name identifies the sink in logs.
	Name() string
	// PutAllocs takes the latest version of each allocation that has changed, each once. When it fails, it is called
	// again with the latest versions. It may take as long as it likes: only its own next call waits for it.
	PutAllocs(ctx context.Context, allocs []*api.Allocation) error
}

// Updates takes every new version of an allocation from its runner and hands it to the subscribers.
type Updates interface {
	// AllocUpdated never blocks. The value is shared and must not be changed.
	AllocUpdated(alloc *api.Allocation)
}
