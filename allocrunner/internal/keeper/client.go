package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/proc"
)

// cancelTime is how long a cancelled call still waits for the keeper's answer. A call that starts a process waits
// without a limit: otherwise a process that nobody knows of could be left running.
const cancelTime = 5 * time.Second

// maxExecs bounds how many requests for programs beside tasks are sent to the keeper at once; further ones wait here.
// The keeper runs fewer at a time.
const maxExecs = 256

// exitTime is how long a keeper may take to exit after its last answer.
const exitTime = 5 * time.Second

// Client has the methods of a drivers.Supervisor for the processes of a keeper. When the connection breaks, every
// method returns an error that is drivers.ErrLost or ErrReplaced; Open makes a new connection. A Client must be closed
// or detached in any case.
type Client struct {
	id    proc.Identity
	conn  *net.UnixConn
	out   frameWriter
	done  chan struct{} // closed when the connection has ended
	execs chan struct{} // holds one element for each Exec that was sent to the keeper
	ended atomic.Bool   // the keeper has answered to Close: nothing of its tasks is left

	mu      sync.Mutex // guards all below
	lastID  uint64
	pending map[uint64]pendingCall
	why     error                            // why the connection has ended, nil while it has not
	over    proc.Moment                      // when the connection ended
	closing bool                             // by Close or Detach
	child   *os.Process                      // the keeper's process, if this program has started it and not waited for it
	cgroup  string                           // Record's
	tasks   map[string]drivers.ProcessStatus // the latest process of each task that the keeper has reported
}

// pendingCall is a call that waits for its answer.
type pendingCall struct {
	answer  chan answer // has room for one
	started func()      // called when the program runs; nil for no call
	sockets *[]*os.File // gets the files of the answer; nil for none
}

func newClient(conn *net.UnixConn, in *requestReader, id proc.Identity) *Client {
	c := &Client{
		id: id, conn: conn, out: frameWriter{w: conn}, done: make(chan struct{}), execs: make(chan struct{}, maxExecs),
		pending: map[uint64]pendingCall{}, tasks: map[string]drivers.ProcessStatus{},
	}
	go c.receive(in)
	return c
}

// noClient returns a Client whose keeper is lost.
func noClient() *Client {
	c := &Client{conn: &net.UnixConn{}, done: make(chan struct{}), execs: make(chan struct{}, 1), why: drivers.ErrLost}
	close(c.done)
	return c
}

// Keeper returns the identity of the keeper's process.
func (c *Client) Keeper() proc.Identity { return c.id }

// Done returns a channel that is closed when the connection has ended: the keeper was lost, another client controls it,
// or this client was closed or detached.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why the connection to the keeper has ended, nil while it has not: drivers.ErrLost, ErrReplaced or
// drivers.ErrClosed.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why
}

// receive hands each answer to the call that waits for it.
func (c *Client) receive(in *requestReader) {
	defer in.close()
	why := drivers.ErrLost
	for {
		var a answer
		if readFrame(in.in, &a) != nil {
			break
		}
		if len(a.Sockets) > 0 {
			c.takeSockets(&a, in)
		}
		if a.ID == 0 {
			why = a.Err.unpack()
			break
		}
		switch call := c.deliver(a); {
		case a.Started && call.started != nil:
			call.started()
		case !a.Started && call.answer != nil:
			call.answer <- a
		}
	}
	c.mu.Lock()
	if c.closing {
		why = drivers.ErrClosed
	}
	c.why, c.over = why, proc.Now()
	c.mu.Unlock()
	c.conn.Close()
	close(c.done)
}

// deliver stores the content of an answer, and returns the call that waits for the answer.
func (c *Client) deliver(a answer) pendingCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.Cgroup != "" {
		c.cgroup = a.Cgroup
	}
	if a.Status != nil {
		c.tasks[a.Status.Task] = *a.Status
	}
	for _, s := range a.List {
		if _, known := c.tasks[s.Task]; !known { // otherwise a start was answered since, and the list may be older
			c.tasks[s.Task] = s
		}
	}
	call := c.pending[a.ID]
	if !a.Started {
		delete(c.pending, a.ID)
	}
	return call
}

// takeSockets takes the files of an answer. Without them, as when this program has as many files open as it may, the
// answer has no sockets.
func (c *Client) takeSockets(a *answer, in *requestReader) {
	files, err := in.take(len(a.Sockets))
	c.mu.Lock()
	defer c.mu.Unlock()
	if call := c.pending[a.ID]; err == nil && call.sockets != nil {
		*call.sockets = files
		return
	}
	drivers.CloseFiles(files)
	a.Sockets = nil
}

// close marks the coming end of the connection as wanted by this program. It reports whether it was marked before.
func (c *Client) close() (before bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, c.closing = c.closing, true
	return before
}

// call sends a request and waits for the answer. When ctx ends it cancels the request, and still waits for the answer.
func (c *Client) call(ctx context.Context, req request, files ...*os.File) (answer, error) {
	return c.callWaiting(ctx, req, pendingCall{}, files)
}

// Sockets returns the sockets that the keeper keeps for tasks, with their files, which the caller closes.
func (c *Client) Sockets(ctx context.Context) ([]drivers.HeldSocket, []*os.File, error) {
	var files []*os.File
	a, err := c.callWaiting(ctx, request{Op: opSockets}, pendingCall{sockets: &files}, nil)
	if err != nil || len(files) != len(a.Sockets) {
		c.mu.Lock() // a late answer may bring them
		defer c.mu.Unlock()
		drivers.CloseFiles(files)
		return nil, nil, err
	}
	return a.Sockets, files, nil
}

// Adopt passes sockets that a lost keeper had to the keeper. The files stay the caller's.
func (c *Client) Adopt(ctx context.Context, sockets []drivers.HeldSocket, files []*os.File) error {
	for i := 0; i < len(files); i += maxFiles {
		end := min(i+maxFiles, len(files))
		req := request{Op: opAdopt, Sockets: sockets[i:end], Files: end - i}
		if _, err := c.call(ctx, req, files[i:end]...); err != nil {
			return err
		}
	}
	return nil
}

// callWaiting sends a request and waits for the answer. call has everything else that the answer is passed to.
func (c *Client) callWaiting(ctx context.Context, req request, call pendingCall, files []*os.File) (answer, error) {
	waiter := make(chan answer, 1)
	call.answer = waiter
	c.mu.Lock()
	if c.why != nil {
		defer c.mu.Unlock()
		return answer{}, c.why
	}
	c.lastID++
	req.ID = c.lastID
	c.pending[req.ID] = call
	c.mu.Unlock()
	defer c.forget(req.ID)
	if err := ctx.Err(); err != nil {
		return answer{}, err
	}
	if err := c.out.writeWith(req, files); err != nil {
		return c.unsent(waiter, err)
	}
	if req.Op == opExec {
		drivers.CloseFiles(files) // only the program keeps them, so that the other ends notice when it closes one
	}
	cancelled := ctx.Done()
	var late <-chan time.Time
	for {
		select {
		case a := <-waiter:
			return c.accept(ctx, a)
		case <-c.done:
			return c.lastAnswer(waiter)
		case <-cancelled:
			cancelled = nil
			_ = c.out.write(request{ID: req.ID, Op: opCancel}) // a broken connection shows in the next round
			if req.Op != opStart {
				late = time.After(cancelTime)
			}
		case <-late:
			return answer{}, fmt.Errorf("the keeper does not answer: %w", ctx.Err())
		}
	}
}

// accept returns the answer to a call. If the keeper says that the call was cancelled although ctx has not ended, the
// keeper has given up all requests of this client: the connection is broken for it, or another client controls it.
func (c *Client) accept(ctx context.Context, a answer) (answer, error) {
	err := a.Err.unpack()
	if !errors.Is(err, context.Canceled) {
		return a, err
	}
	if ctx.Err() != nil {
		return a, ctx.Err()
	}
	select {
	case <-c.done:
		return answer{}, c.Err()
	case <-ctx.Done():
		return a, ctx.Err()
	}
}

// unsent says why a request could not be sent. If the connection is broken, the keeper's last answer may still be
// unread.
func (c *Client) unsent(waiter <-chan answer, err error) (answer, error) {
	if _, broken := errors.AsType[*net.OpError](err); !broken {
		return answer{}, err
	}
	select {
	case <-c.done:
		return c.lastAnswer(waiter)
	case <-time.After(cancelTime):
		return answer{}, fmt.Errorf("%w: %w", drivers.ErrLost, err)
	}
}

// lastAnswer takes an answer that came just before the connection ended.
func (c *Client) lastAnswer(waiter <-chan answer) (answer, error) {
	select {
	case a := <-waiter:
		return c.accept(context.Background(), a) // the connection has ended
	default:
		return answer{}, c.Err()
	}
}

func (c *Client) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
}

// callTask is call that adds the operation and the task to errors of the connection. The keeper's own errors name them
// already.
func (c *Client) callTask(ctx context.Context, req request) (answer, error) {
	a, err := c.call(ctx, req)
	return a, ofTask(req, a, err)
}

func ofTask(req request, a answer, err error) error {
	if err != nil && a.Err == nil {
		err = fmt.Errorf("%s task %q: %w", req.Op, req.Task, err)
	}
	return err
}

// Start starts a process.
func (c *Client) Start(ctx context.Context, spec drivers.Spec) (drivers.ProcessStatus, error) {
	req := request{Op: opStart, Task: spec.Task, Spec: packSpec(spec), Files: len(spec.Files)}
	a, err := c.call(ctx, req, spec.Files...)
	if err = ofTask(req, a, err); err != nil {
		return drivers.ProcessStatus{}, err
	}
	if a.Status == nil {
		return drivers.ProcessStatus{}, fmt.Errorf("start task %q: the keeper's answer has no status", spec.Task)
	}
	return *a.Status, nil
}

// Wait waits for the end of a task's process.
func (c *Client) Wait(ctx context.Context, task string) (interfaces.ExitResult, error) {
	a, err := c.callTask(ctx, request{Op: opWait, Task: task})
	if err != nil {
		return interfaces.ExitResult{}, err
	}
	if a.Exit == nil {
		return interfaces.ExitResult{}, fmt.Errorf("wait for task %q: the keeper's answer has no result", task)
	}
	return *a.Exit, nil
}

// Exec runs a program beside a task's process.
func (c *Client) Exec(ctx context.Context, spec drivers.ExecSpec) (drivers.ExecResult, error) {
	defer drivers.CloseFiles(spec.Files)
	select {
	case c.execs <- struct{}{}:
		defer func() { <-c.execs }()
	case <-ctx.Done():
		return drivers.ExecResult{}, fmt.Errorf("run %q beside task %q: %w", spec.Path, spec.Task, ctx.Err())
	}
	// A keeper of an earlier taskapi gets the spec of an exec without the files, and refuses a terminal in it.
	plain := spec.Spec
	plain.TTY = false
	req := request{
		Op: opExec, Task: spec.Task, Spec: packSpec(plain), MaxOutput: spec.MaxOutput, TTY: spec.TTY,
		Files: len(spec.Files),
	}
	a, err := c.callWaiting(ctx, req, pendingCall{started: spec.Started}, spec.Files)
	err = ofTask(req, a, err)
	if a.Exec == nil {
		if err == nil {
			err = fmt.Errorf("run %q beside task %q: the keeper's answer has no result", spec.Path, spec.Task)
		}
		return drivers.ExecResult{}, err
	}
	return *a.Exec, err
}

// Signal sends a signal to a task's process.
func (c *Client) Signal(ctx context.Context, process drivers.ProcessID, sig syscall.Signal) error {
	_, err := c.callTask(ctx, request{Op: opSignal, Task: process.Task, Process: process.ProcessRun, Signal: sig})
	return err
}

// Notice returns what a task's process has said, once that differs from seen.
func (c *Client) Notice(ctx context.Context, process drivers.ProcessID, seen uint64) (drivers.Notice, error) {
	a, err := c.callTask(ctx, request{Op: opNotice, Task: process.Task, Process: process.ProcessRun, Seen: seen})
	if err == nil && a.Notice == nil {
		err = fmt.Errorf("notifications of task %q: the keeper's answer has none", process.Task)
	}
	if err != nil {
		return drivers.Notice{}, err
	}
	return *a.Notice, nil
}

// Unlisten closes the sockets that are kept for a task's next process.
func (c *Client) Unlisten(ctx context.Context, task string) error {
	_, err := c.callTask(ctx, request{Op: opUnlisten, Task: task})
	return err
}

// KillTree kills the processes that a task's process has left.
func (c *Client) KillTree(ctx context.Context, process drivers.ProcessID) (int, error) {
	a, err := c.callTask(ctx, request{Op: opKillTree, Task: process.Task, Process: process.ProcessRun})
	return a.Leftover, err
}

// List returns the latest process of each task: after Attach, both running processes and those that ended meanwhile.
func (c *Client) List(ctx context.Context) ([]drivers.ProcessStatus, error) {
	a, err := c.call(ctx, request{Op: opList})
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	return a.List, nil
}

// Expire sets the time since the machine's start at which the keeper kills all tasks, in place of an earlier one.
func (c *Client) Expire(ctx context.Context, end time.Duration) error {
	if _, err := c.call(ctx, request{Op: opExpire, End: end}); err != nil {
		return fmt.Errorf("set the tasks' end: %w", err)
	}
	return nil
}

// KeepOpen passes files to the keeper, which keeps them open, and so holds their locks, for as long as it lives.
func (c *Client) KeepOpen(ctx context.Context, files []*os.File) error {
	for some := range slices.Chunk(files, maxFiles) {
		if _, err := c.call(ctx, request{Op: opKeepOpen, Files: len(some)}, some...); err != nil {
			return fmt.Errorf("hand over files: %w", err)
		}
	}
	return nil
}

// Close ends the keeper with all its tasks, and returns when the keeper is gone. A keeper that was gone before is no
// error; a keeper that another client controls is left alone. Close may be called twice.
func (c *Client) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*leaveTime) // the keeper bounds itself to less
	defer cancel()
	before := c.close()
	if !errors.Is(c.Err(), ErrReplaced) {
		_ = c.id.Signal(unix.SIGCONT) // it may have been stopped, and would hear of nothing
	}
	_, err := c.call(ctx, request{Op: opClose})
	if err == nil {
		c.ended.Store(true)
	}
	switch {
	case before, errors.Is(err, ErrReplaced), errors.Is(c.Err(), ErrReplaced): // nothing is ours to end
		c.hangUp(ctx, false)
		return nil
	// the latter when it was killed just now
	case err == nil, errors.Is(err, drivers.ErrLost), errors.Is(err, drivers.ErrClosed):
		c.hangUp(ctx, true)
		return nil
	}
	c.hangUp(ctx, false)
	return fmt.Errorf("close keeper: %w", err)
}

// Kill kills a keeper that does not answer, and returns when it is gone. Sweep ends the processes that it leaves.
func (c *Client) Kill() error {
	if err := c.id.Signal(unix.SIGKILL); err != nil {
		return fmt.Errorf("kill keeper: %w", err)
	}
	if !c.id.Await(exitTime) {
		return fmt.Errorf("kill keeper: process %d does not die", c.id.PID)
	}
	return nil
}

// Detach leaves the keeper and its tasks running, for a later Attach. It may be called twice.
func (c *Client) Detach() error {
	c.close()
	c.hangUp(context.Background(), false)
	return nil
}

// hangUp ends the connection. If the keeper ends, too, hangUp waits for its end.
func (c *Client) hangUp(ctx context.Context, ends bool) {
	if ends {
		select { // the keeper's last word comes before its end
		case <-c.done:
		case <-ctx.Done():
		}
	}
	c.conn.Close()
	<-c.done
	if ends {
		c.id.Await(exitTime)
	}
	c.mu.Lock()
	child := c.child
	c.child = nil
	c.mu.Unlock()
	if child == nil {
		return
	}
	if c.id.Runs() {
		_ = child.Release() // PID 1 will reap it, or this program's end
		return
	}
	_, _ = child.Wait()
}
