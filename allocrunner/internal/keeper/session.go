package keeper

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
)

// session is one client's connection.
type session struct {
	server *server
	number uint64 // later sessions have greater numbers
	conn   *net.UnixConn
	out    frameWriter
	wg     sync.WaitGroup
	done   chan struct{} // closed when none of its requests is under way any more

	mu      sync.Mutex // guards cancels
	cancels map[uint64]context.CancelFunc
}

func newSession(s *server, conn *net.UnixConn) *session {
	return &session{
		server: s, conn: conn, out: frameWriter{w: conn, most: helloTime}, done: make(chan struct{}),
		cancels: map[uint64]context.CancelFunc{},
	}
}

// startGrace is how long a start goes on after its client is gone. A start takes milliseconds, unless a file system
// hangs. If it were killed just as the process executes the program, the task would have run without anybody knowing.
const startGrace = replaceTime - 500*time.Millisecond

// serve handles requests until the client is gone, and then cancels the requests under way, a start only after
// startGrace.
func (c *session) serve() error {
	ctx, cancel := context.WithCancel(context.Background())
	starts, cancelStarts := context.WithCancel(context.Background())
	defer func() {
		cancel()
		timer := time.AfterFunc(startGrace, cancelStarts)
		c.wg.Wait()
		timer.Stop()
		cancelStarts()
	}()
	in := &requestReader{conn: c.conn}
	in.in = bufio.NewReader(filesReader{in})
	defer in.close()
	for {
		req, files, refused, err := in.next()
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("read request: %w", err)
		}
		if req.Op == opCancel {
			drivers.CloseFiles(files)
			c.cancel(req.ID)
			continue
		}
		lifetime := ctx
		if req.Op == opStart {
			lifetime = starts
		}
		reqCtx, err := c.begin(lifetime, req.ID)
		if err != nil {
			drivers.CloseFiles(files)
		}
		if errors.Is(err, ErrBusy) {
			c.send(answer{ID: req.ID, Err: packError(err)})
			continue
		}
		if err != nil {
			return err
		}
		if req.Op == opKeepOpen && refused == nil { // before a later request, which may end this keeper
			c.server.keepOpen(files)
			files = nil
		}
		c.wg.Go(func() {
			defer drivers.CloseFiles(files)
			a := answer{Err: packError(refused)}
			if refused == nil && req.Op == opSockets {
				c.sendSockets(req.ID)
				return
			}
			if refused == nil {
				a = c.handle(reqCtx, req, files)
			}
			a.ID = req.ID
			c.cancel(req.ID)
			if ctx.Err() != nil {
				return // the request was given up because the connection has ended: there is nobody to answer
			}
			c.send(a)
			if req.Op == opClose {
				c.server.closes.Do(func() { close(c.server.closed) })
			}
		})
	}
}

// begin registers a request, for cancel. Errors: ErrBusy, or that another request has its number.
func (c *session) begin(ctx context.Context, id uint64) (context.Context, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, taken := c.cancels[id]; taken || id == 0 {
		return nil, fmt.Errorf("request %d has the number 0 or that of another request", id)
	}
	if len(c.cancels) >= maxRequests {
		return nil, fmt.Errorf("%w: %d are under way", ErrBusy, maxRequests)
	}
	ctx, c.cancels[id] = context.WithCancel(ctx)
	return ctx, nil
}

func (c *session) cancel(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cancel := c.cancels[id]; cancel != nil {
		cancel()
		delete(c.cancels, id)
	}
}

// send sends an answer. A client that does not read it within helloTime is cut off, so that answers don't fill memory.
func (c *session) send(a answer) {
	if c.out.write(a) != nil {
		c.conn.Close()
	}
}

// sendSockets answers with the sockets that are kept for tasks, and their files: as many as one message takes.
func (c *session) sendSockets(id uint64) {
	sockets, files := c.server.local.Sockets()
	defer drivers.CloseFiles(files)
	n := min(len(files), maxFiles)
	c.cancel(id)
	if c.out.writeWith(answer{ID: id, Sockets: sockets[:n]}, files[:n]) != nil {
		c.conn.Close()
	}
}

// end sends the client the reason why it is no longer the client.
func (c *session) end(reason error) {
	c.send(answer{Err: packError(reason)})
	c.conn.Close()
}

func (c *session) handle(ctx context.Context, req request, files []*os.File) (a answer) {
	local := c.server.local
	var err error
	var spec drivers.Spec
	if req.Op == opStart || req.Op == opExec {
		if req.Spec == nil {
			return answer{Err: packError(fmt.Errorf("%s without a spec", req.Op))}
		}
		spec = req.Spec.unpack()
		spec.Files, spec.TTY = files, spec.TTY || req.TTY
		if c.server.expiry.expired() {
			return answer{Err: packError(ErrExpired)}
		}
	}
	switch req.Op {
	case opStart:
		var status drivers.ProcessStatus
		status, err = local.Start(ctx, spec)
		if err == nil && c.server.expiry.expired() { // it may have been started after all others were killed
			_ = local.KillAll(context.WithoutCancel(ctx), whyExpired) // what is left ends with this process, very soon
			err = ErrExpired
		}
		if err == nil {
			a.Status, a.Cgroup = &status, local.CgroupDir()
			c.server.wg.Go(func() {
				if _, err := local.Wait(context.Background(), status.Task); err == nil {
					c.server.changed.Send()
				}
			})
			c.server.record() // before the answer: if this keeper is killed then, the next one knows what to kill
			c.server.changed.Send()
		}
	case opWait:
		var exit interfaces.ExitResult
		exit, err = local.Wait(ctx, req.Task)
		if before, ok := c.server.previous[req.Task]; ok && errors.Is(err, drivers.ErrNotRunning) {
			exit, err = *before.Exit, nil // of an earlier keeper's process
		}
		a.Exit = &exit
	case opExec:
		var result drivers.ExecResult
		result, err = local.Exec(ctx, drivers.ExecSpec{
			Spec: spec, MaxOutput: req.MaxOutput, Started: func() { c.send(answer{ID: req.ID, Started: true}) },
		})
		a.Exec = &result
	case opExpire:
		err = c.server.expire(req.End)
	case opKeepOpen: // done, in the order in which the files came
	case opSignal:
		err = local.Signal(ctx, drivers.ProcessID{Task: req.Task, ProcessRun: req.Process}, req.Signal)
	case opKillTree:
		a.Leftover, err = local.KillTree(ctx, drivers.ProcessID{Task: req.Task, ProcessRun: req.Process})
	case opNotice:
		var notice drivers.Notice
		notice, err = local.Notice(ctx, drivers.ProcessID{Task: req.Task, ProcessRun: req.Process}, req.Seen)
		a.Notice = &notice
	case opAdopt:
		local.Adopt(req.Sockets, files)
	case opUnlisten:
		err = local.Unlisten(ctx, req.Task)
	case opList:
		a.Cgroup = local.CgroupDir()
		a.List, err = c.server.list(ctx)
	case opClose:
		err = local.Close()
	default:
		err = fmt.Errorf("unknown operation %q: the client is newer than the keeper", req.Op)
	}
	a.Err = packError(err)
	return a
}
