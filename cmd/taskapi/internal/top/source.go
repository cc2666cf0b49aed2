package top

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"time"

	"github.com/hashicorp/nomad/api"
)

// ErrUnavailable means that the allocation's taskapi does not support the request.
var ErrUnavailable = errors.New("not available")

// Find returns all allocations that there are now. It is called again and again, by one goroutine at a time.
type Find func(ctx context.Context) ([]Found, error)

// Found is an allocation.
type Found struct {
	ID    string
	Dir   string        // its data directory; empty where there is only one
	Ended *Snapshot     // as it was saved last; nil for one that has not ended
	Open  func() Source // which its user closes
	Shell Shell

	Launches func() []*api.TaskEvent // of a job that starts children; nil for none
}

// Snapshot is an allocation at a moment.
type Snapshot struct {
	Alloc  *api.Allocation
	Index  uint64                 // to wait for the next version; 0 after the end
	Ended  bool                   // nothing of it runs any more
	Checks api.AllocCheckStatuses // the latest results of one that has ended, if they were saved
}

// Source reads and changes an allocation. An error of reading, except ErrUnavailable, means that no taskapi answers
// now, and says why. An error of changing is for the reader of the screen.
type Source interface {
	// Allocation returns the allocation once its index is above the one given, or when that takes long. With an error,
	// it returns the allocation as it was saved last, if that is known.
	Allocation(ctx context.Context, index uint64) (Snapshot, error)
	// Checks returns the latest results by the checks' IDs.
	Checks(ctx context.Context) (api.AllocCheckStatuses, error)
	// Refusals returns what each task was refused, as events.
	Refusals(ctx context.Context) (map[string][]*api.TaskEvent, error)
	// Stats returns what the tasks use.
	Stats(ctx context.Context) (*api.AllocResourceUsage, error)
	// Output opens the end of a task's output and everything that the task writes from now on, even while no taskapi
	// answers. stream is stdout or stderr. The output is closed when ctx ends.
	Output(ctx context.Context, task, stream string) (Output, error)

	// Restart restarts a task, or all that run for an empty name.
	Restart(ctx context.Context, task string) error
	// Pause stops a task, starts it, or runs it whatever its schedule says: pause, scheduled or run.
	Pause(ctx context.Context, task, state string) error
	Signal(ctx context.Context, task, signal string) error
	// Stop begins to stop the allocation.
	Stop(ctx context.Context) error
	Close()
}

// Output is what a task writes.
type Output interface {
	// Next waits for output and returns what was written since the last call. Errors: io.EOF when the output is
	// removed, ctx's, and those of the files, after which the next call goes on where this one was.
	Next() (Chunk, error)
	// Written returns when the output was last written before it was opened; zero for an empty one.
	Written() time.Time
}

// Chunk is a part of a task's output.
type Chunk struct {
	Text []byte
	Gap  bool // something is missing before it
}

// Shell returns the command that runs a command line inside a task, on the terminal.
type Shell func(ctx context.Context, task, commandLine string) *exec.Cmd

// Config is what a screen shows and changes.
type Config struct {
	Find     Find
	Start    string // ID of the allocation that the screen begins in; empty for the list of all
	Terminal Terminal
	Clock    func() time.Time // its zone is that of all times shown
}

// Terminal is what the screen is shown on.
type Terminal struct {
	In, Out *os.File
	Env     []string // KEY=value; TERM is what the terminal understands
	Colour  bool
	ASCII   bool // it shows nothing else
	Lines   bool // it shows the characters for lines and bars
}
