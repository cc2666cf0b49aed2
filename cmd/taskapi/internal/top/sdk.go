package top

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/client"
)

const (
	tailBytes  = 64 << 10  // of an output that was there before it was opened
	chunkBytes = 256 << 10 // of one part of an output
	maxBehind  = 20        // full parts in a row after which the reader skips to the end: it can't keep up
)

// SDK reads and changes an allocation through Nomad's SDK, each time with the operator's token as it is then. The
// output is read from the allocation's files, so it goes on without a taskapi. Close it after use.
type SDK struct {
	client *client.Client
	files  interfaces.Files
	alloc  *api.Allocation // with its ID alone
}

var _ Source = (*SDK)(nil)

// NewSDK makes an SDK for the allocation with an ID, on its client, which it takes over, and its files.
func NewSDK(c *client.Client, id string, files interfaces.Files) *SDK {
	return &SDK{client: c, files: files, alloc: &api.Allocation{ID: id}}
}

func (s *SDK) Close() { s.client.Close() }

func (s *SDK) Allocation(ctx context.Context, index uint64) (Snapshot, error) {
	alloc, next, err := s.client.Changed(ctx, index)
	if err == nil {
		return Snapshot{Alloc: alloc, Index: next, Ended: interfaces.Ended(alloc)}, nil
	}
	switch found := s.client.Locate(ctx, client.Timeouts{}); found.Holder {
	case client.Serving:
		return Snapshot{Alloc: found.Alloc, Ended: interfaces.Ended(found.Alloc)}, nil
	case client.Ended:
		return Snapshot{Alloc: found.Alloc, Ended: true, Checks: found.Saved.Checks}, nil
	case client.Nobody:
		return Snapshot{Alloc: found.Alloc}, errors.New("the taskapi that ran it has exited")
	default: // the screen itself says that no taskapi answers
		return Snapshot{}, errors.New(strings.TrimPrefix(found.Err.Error(), client.ErrNoAnswer.Error()+": "))
	}
}

func (s *SDK) Checks(ctx context.Context) (checks api.AllocCheckStatuses, err error) {
	return checks, s.ask(ctx, func(sdk *api.Client, q *api.QueryOptions) (err error) {
		checks, err = sdk.Allocations().Checks(s.alloc.ID, q)
		return err
	})
}

func (s *SDK) Refusals(ctx context.Context) (map[string][]*api.TaskEvent, error) {
	return s.client.Refusals(ctx)
}

func (s *SDK) Stats(ctx context.Context) (usage *api.AllocResourceUsage, err error) {
	return usage, s.ask(ctx, func(sdk *api.Client, q *api.QueryOptions) (err error) {
		usage, err = sdk.Allocations().Stats(s.alloc, q)
		return err
	})
}

func (s *SDK) Restart(ctx context.Context, task string) error {
	return s.ask(ctx, func(sdk *api.Client, q *api.QueryOptions) error {
		return sdk.Allocations().Restart(s.alloc, task, q)
	})
}

func (s *SDK) Pause(ctx context.Context, task, state string) error {
	return s.ask(ctx, func(sdk *api.Client, q *api.QueryOptions) error {
		return sdk.Allocations().SetPauseState(s.alloc, q, task, state)
	})
}

func (s *SDK) Signal(ctx context.Context, task, signal string) error {
	return s.ask(ctx, func(sdk *api.Client, q *api.QueryOptions) error {
		return sdk.Allocations().Signal(s.alloc, q, task, signal)
	})
}

func (s *SDK) Stop(ctx context.Context) error { return s.client.Stop(ctx, client.StopOptions{}) }

// ask calls the SDK with the token as it is now.
func (s *SDK) ask(ctx context.Context, call func(*api.Client, *api.QueryOptions) error) error {
	sdk, err := s.client.SDK()
	if err != nil {
		return err
	}
	err = client.AsError(ctx, call(sdk, (&api.QueryOptions{}).WithContext(ctx)))
	status, ok := errors.AsType[*client.StatusError](err)
	if !ok {
		return err
	}
	unknown := status.Status == http.StatusNotFound && status.Message == "resource not found"
	if unknown || status.Status == http.StatusNotImplemented {
		return ErrUnavailable
	}
	return err
}

func (s *SDK) Output(ctx context.Context, task, stream string) (Output, error) {
	o := &fileOutput{files: s.files, context: ctx, task: task, stream: stream}
	o.written = o.lastWritten()
	if err := o.open(); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		_ = o.frames.Close() // it was only read
	})
	return o, nil
}

// fileOutput is an output as it stands in the task's log files. Frames name the files that were removed before they
// were read.
type fileOutput struct {
	files        interfaces.Files
	context      context.Context // of the output
	task, stream string
	written      time.Time

	mu     sync.Mutex // held by Next, so that frames are closed after it
	frames interfaces.Frames
	behind int  // full parts after one another
	gap    bool // something is missing before what comes next
}

// open goes to the last bytes of the output, and what follows them.
func (o *fileOutput) open() error {
	span := interfaces.Span{FromEnd: true, Offset: tailBytes, Follow: true, Await: true}
	frames, err := o.files.Logs(o.task, o.stream, span)
	if err == nil {
		o.frames = frames
	}
	return err
}

// maxLogList bounds the list of the log files of an allocation, in bytes.
const maxLogList = 4 << 20

// lastWritten returns when the log files were written last, zero when they are empty or can't be looked at.
func (o *fileOutput) lastWritten() (last time.Time) {
	files, err := o.files.List("alloc/logs", maxLogList)
	if err != nil { // opening them tells more
		return time.Time{}
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name, o.task+"."+o.stream+".") && f.Size > 0 && f.ModTime.After(last) {
			last = f.ModTime
		}
	}
	return last
}

func (o *fileOutput) Written() time.Time { return o.written }

func (o *fileOutput) Next() (chunk Chunk, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.behind == maxBehind {
		_ = o.frames.Close() // it was only read
		if err := o.open(); err != nil {
			return Chunk{}, err
		}
		o.behind, o.gap = 0, true
	}
	noWait, cancel := context.WithCancel(o.context)
	cancel()
	for ctx := o.context; len(chunk.Text) < chunkBytes; {
		frame, err := o.frames.Next(ctx)
		if o.context.Err() != nil {
			return Chunk{}, o.context.Err()
		}
		if err != nil && len(chunk.Text) == 0 {
			return Chunk{}, err
		}
		if err != nil {
			break
		}
		if chunk.Text = append(chunk.Text, frame.Data...); len(chunk.Text) > 0 {
			ctx = noWait
		}
	}
	if o.behind++; len(chunk.Text) < chunkBytes {
		o.behind = 0
	}
	chunk.Gap, o.gap = o.gap, false
	return chunk, nil
}

// ShellOf returns a Shell that is the exec command of this program, for an allocation in a data directory.
func ShellOf(dataDir, id string) Shell {
	return func(ctx context.Context, task, line string) *exec.Cmd {
		program, err := os.Executable()
		if err != nil { // it has been removed: its name may be found
			program = os.Args[0]
		}
		args := []string{"exec", "--data-dir", dataDir, "-i", "-t", id, task, "--", "/bin/sh", "-c", line}
		return exec.CommandContext(ctx, program, args...)
	}
}
