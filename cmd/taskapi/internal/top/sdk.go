package top

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/client"
)

const (
	tailBytes   = 64 << 10  // of an output that was there before it was opened
	resumeBytes = 256 << 10 // that are looked through for where an output goes on
	chunkBytes  = 256 << 10 // of one part of an output
	maxBehind   = 20        // so many full parts after one another, and the reader goes to the end: it can't keep up
	frameQueue  = 4         // frames that wait for a reader
)

// SDK reads and changes an allocation through Nomad's SDK. Each request has the operator's token as it is then. Close it after use.
type SDK struct {
	client *client.Client
	alloc  *api.Allocation // with its ID alone
	all    sync.WaitGroup  // goroutines that read output
}

var (
	_ Reader     = (*SDK)(nil)
	_ Controller = (*SDK)(nil)
)

// NewSDK makes an SDK for the allocation with an ID, on its client, which it takes over.
func NewSDK(c *client.Client, id string) *SDK { return &SDK{client: c, alloc: &api.Allocation{ID: id}} }

// Close waits for the outputs, whose contexts must have ended, and closes the client.
func (s *SDK) Close() {
	s.all.Wait()
	s.client.Close()
}

// Allocation is Reader's.
func (s *SDK) Allocation(ctx context.Context, index uint64) (Snapshot, error) {
	alloc, next, err := s.client.Changed(ctx, index)
	if err == nil {
		return Snapshot{alloc, next, interfaces.Ended(alloc)}, nil
	}
	switch found := s.client.Locate(ctx, client.Timeouts{}); found.Holder {
	case client.Serving:
		return Snapshot{found.Alloc, 0, interfaces.Ended(found.Alloc)}, nil
	case client.Ended:
		return Snapshot{found.Alloc, 0, true}, nil
	case client.Nobody:
		return Snapshot{}, errors.New("the taskapi that ran it has exited")
	default:
		return Snapshot{}, errors.New(strings.TrimPrefix(found.Err.Error(), client.ErrNoAnswer.Error()+": ")) // the screen says that itself
	}
}

// Checks is Reader's.
func (s *SDK) Checks(ctx context.Context) (checks api.AllocCheckStatuses, err error) {
	return checks, s.ask(func(sdk *api.Client) (err error) {
		checks, err = sdk.Allocations().Checks(s.alloc.ID, (&api.QueryOptions{}).WithContext(ctx))
		return err
	})
}

// Stats is Reader's.
func (s *SDK) Stats(ctx context.Context) (usage *api.AllocResourceUsage, err error) {
	return usage, s.ask(func(sdk *api.Client) (err error) {
		usage, err = sdk.Allocations().Stats(s.alloc, (&api.QueryOptions{}).WithContext(ctx))
		return err
	})
}

// Restart is Controller's.
func (s *SDK) Restart(ctx context.Context, task string) error {
	return s.ask(func(sdk *api.Client) error {
		return sdk.Allocations().Restart(s.alloc, task, (&api.QueryOptions{}).WithContext(ctx))
	})
}

// Signal is Controller's.
func (s *SDK) Signal(ctx context.Context, task, signal string) error {
	return s.ask(func(sdk *api.Client) error {
		return sdk.Allocations().Signal(s.alloc, (&api.QueryOptions{}).WithContext(ctx), task, signal)
	})
}

// Stop is Controller's.
func (s *SDK) Stop(ctx context.Context) error { return s.client.Stop(ctx, client.StopOptions{}) }

// ask calls the SDK with the token as it is now.
func (s *SDK) ask(call func(*api.Client) error) error {
	sdk, err := s.client.SDK()
	if err != nil {
		return err
	}
	err = call(sdk)
	if status, ok := errors.AsType[api.UnexpectedResponseError](err); ok && status.HasStatusCode() {
		return answered(status.StatusCode(), status.Body())
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok { // its URL is of no use
		return wrapped.Err
	}
	return err
}

// answered returns the error of an answer that is none of success.
func answered(status int, body string) error {
	body = strings.TrimSpace(body)
	if status == http.StatusNotImplemented || status == http.StatusNotFound && body == "resource not found" {
		return ErrUnavailable
	}
	return errors.New(body)
}

// Output is Reader's.
func (s *SDK) Output(ctx context.Context, task, stream string) (Output, error) {
	o := &sdkOutput{sdk: s, context: ctx, task: task, stream: stream}
	return o, o.open(tailBytes)
}

// sdkOutput is an output as frames of its log files. A connection ends with the token that opened it, and with its taskapi: the next one goes
// on after the last byte that was returned.
type sdkOutput struct {
	sdk          *SDK
	context      context.Context // of the output, and so of each connection
	task, stream string

	frames <-chan *api.StreamFrame // nil without a connection; closed with it
	leave  context.CancelFunc
	at     position // after what was returned last
	fresh  bool     // no frame of the connection has come yet
	behind int      // full parts after one another
	gap    bool     // something is missing before what comes next
}

// position is a place in the log files of a task.
type position struct {
	file   int // number of the file; the later one has the greater number
	offset int64
}

func (p position) before(q position) bool {
	return p.file < q.file || p.file == q.file && p.offset < q.offset
}

// open connects, to the last bytes of the output and what follows them.
func (o *sdkOutput) open(last int) error {
	query := url.Values{"task": {o.task}, "type": {o.stream}, "follow": {"true"}, "origin": {api.OriginEnd}, "offset": {strconv.Itoa(last)}}
	ctx, leave := context.WithCancel(o.context)
	resp, err := o.sdk.client.Do(ctx, http.MethodGet, "/v1/client/fs/logs/"+o.sdk.alloc.ID+"?"+query.Encode(), nil)
	if err != nil {
		leave()
		return err
	}
	if resp.StatusCode != http.StatusOK {
		defer leave()
		defer resp.Body.Close()
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxLineBytes)) // what of it could be read
		return answered(resp.StatusCode, string(body))
	}
	frames := make(chan *api.StreamFrame, frameQueue)
	o.frames, o.leave, o.fresh = frames, leave, true
	o.sdk.all.Go(func() { readFrames(ctx, resp.Body, frames) })
	return nil
}

// readFrames reads frames to the end of the connection.
func readFrames(ctx context.Context, body io.ReadCloser, frames chan<- *api.StreamFrame) {
	defer body.Close()
	defer close(frames)
	for dec := json.NewDecoder(body); ; {
		var frame api.StreamFrame
		if dec.Decode(&frame) != nil {
			return
		}
		select {
		case frames <- &frame:
		case <-ctx.Done():
			return
		}
	}
}

// Next is Output's.
func (o *sdkOutput) Next() (chunk Chunk, err error) {
	for len(chunk.Text) == 0 {
		if err := o.connect(); err != nil {
			return Chunk{}, err
		}
		frame, open := <-o.frames
		if !open {
			o.close()
			if o.context.Err() != nil {
				return Chunk{}, o.context.Err()
			}
			sleep(o.context, awayPause)
			continue
		}
		o.take(frame, &chunk)
	}
	for len(chunk.Text) < chunkBytes {
		select {
		case frame, open := <-o.frames:
			if !open {
				o.close()
				return chunk, nil
			}
			o.take(frame, &chunk)
			continue
		default:
		}
		o.behind = 0
		return chunk, nil
	}
	if o.behind++; o.behind >= maxBehind {
		o.close()
		o.behind, o.at, o.gap = 0, position{}, true
	}
	return chunk, nil
}

// connect makes sure that there is a connection.
func (o *sdkOutput) connect() error {
	switch {
	case o.frames != nil:
		return nil
	case o.at == position{}:
		return o.open(tailBytes)
	}
	return o.open(resumeBytes)
}

func (o *sdkOutput) close() {
	o.leave()
	o.frames = nil
}

// take adds a frame's data to a chunk, but for what was returned before.
func (o *sdkOutput) take(frame *api.StreamFrame, chunk *Chunk) {
	data, end := frame.Data, position{fileNumber(frame.File), frame.Offset}
	if len(data) == 0 {
		return
	}
	begin := position{end.file, end.offset - int64(len(data))}
	if known := o.at != (position{}); known {
		o.gap = o.gap || o.fresh && o.at.before(begin) && (begin.file != o.at.file+1 || begin.offset > 0)
		o.fresh = false
		switch {
		case !o.at.before(end):
			return
		case begin.before(o.at) && begin.file == o.at.file:
			data = data[o.at.offset-begin.offset:]
		}
	}
	o.at = end
	chunk.Gap = chunk.Gap || o.gap
	o.gap = false
	chunk.Text = append(chunk.Text, data...)
}

// fileNumber returns the number at the end of a log file's name.
func fileNumber(name string) int {
	n, _ := strconv.Atoi(name[strings.LastIndexByte(name, '.')+1:]) // 0 for a name without one
	return n
}

// ShellOf returns a Shell that is the exec command of this program, for an allocation in a data directory.
func ShellOf(dataDir, id string) Shell {
	return func(ctx context.Context, task, line string) *exec.Cmd {
		program, err := os.Executable()
		if err != nil { // it has been removed: its name may be found
			program = os.Args[0]
		}
		return exec.CommandContext(ctx, program, "exec", "--data-dir", dataDir, "-i", "-t", id, task, "--", "/bin/sh", "-c", line)
	}
}
