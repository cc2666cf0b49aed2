package keeper

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/wake"
)

// restorePause is the time between two attempts to find out whether a keeper lives.
const restorePause = 500 * time.Millisecond

// sweepTimeout bounds the killing of the processes that a keeper has left: SIGKILL takes milliseconds, unless a process
// is stuck in the kernel.
const sweepTimeout = 10 * time.Second

// maxKeepers is how many keepers may be lost during one start of a task before the start counts as failed.
const maxKeepers = 2

// Supervisor is a drivers.Supervisor whose processes run in a keeper, or in several keepers one after the other. When a
// keeper is killed, its processes are killed, too, and the next start makes another keeper. When the connection breaks
// while the keeper lives, the connection is restored, and no caller notices.
type Supervisor struct {
	cfg    Config
	attach func(ctx context.Context, dir string) (*Client, error) // Attach, but for tests
	wg     sync.WaitGroup
	ctx    context.Context // ends with Close or Detach
	cancel context.CancelFunc
	found  map[string]drivers.ProcessStatus // the processes from before this Supervisor, by task

	mu       sync.Mutex // guards the fields below; held while another keeper is made
	state    connState
	conn     *connection       // the latest
	lost     *lostKeeper       // the latest; nil when no keeper was lost
	keepOpen func() []*os.File // what each keeper keeps open, nil for nothing
	// processes that lost keepers left running, by task, until a KillTree of the task returns their number
	orphans map[string]int
	sockets socketCopies // those of the keeper, for the next one
	// what the latest process that was started lacks
	uncovered, unlimited bool
}

// Supervise attaches to the allocation's keeper, or starts one if there is none. fresh is for an allocation that has no
// processes: leftovers of an earlier allocation in the directory are ended first. If no keeper can be started now, each
// start of a task tries again. Errors: Open's.
func Supervise(ctx context.Context, cfg Config, fresh bool) (*Supervisor, error) {
	for {
		client, attached, err := Open(ctx, cfg)
		cfg.Unused, cfg.Unready = false, nil // this keeper is the next one's previous keeper
		if errors.Is(err, errNotStarted) && ctx.Err() == nil {
			cfg.log().Warn("the tasks' keeper could not be started; each start of a task tries again", "error", err)
			return superviseNobody(cfg, fresh), nil
		}
		if err != nil {
			return nil, err
		}
		known, err := client.List(ctx)
		switch {
		case err == nil && fresh && len(known) > 0:
			if err := client.Close(); err != nil { // the next keeper has no previous one
				return nil, err
			}
		case err == nil:
			s := makeSupervisor(cfg)
			s.mu.Lock()
			s.useLocked(client)
			s.mu.Unlock()
			for _, status := range known {
				s.found[status.Task] = status
			}
			s.beginTenure()
			if len(known) > 0 {
				s.copySockets(ctx)
			} else if err := s.sockets.give(ctx, client); err != nil {
				s.cfg.Logger.Warn("the keeper has not got the listening sockets of the version before", "error", err)
			}
			return s, nil
		case attached: // its tasks go on as they are, for another try
			return nil, errors.Join(err, client.Detach())
		default:
			return nil, errors.Join(err, client.Close())
		}
	}
}

// superviseNobody returns a Supervisor whose keeper is still to be started, with the records of earlier ones.
func superviseNobody(cfg Config, fresh bool) *Supervisor {
	s := makeSupervisor(cfg)
	lost := &lostKeeper{last: map[string]LastStatus{}}
	if !fresh {
		for task, status := range readPreviousExits(cfg.Dir, time.Now()) {
			s.found[task] = status
			lost.last[task] = LastStatus{ProcessStatus: status}
		}
	}
	s.state, s.lost = connLost, lost
	s.conn = &connection{client: noClient(), settled: make(chan struct{}), lost: lost}
	close(s.conn.settled)
	s.beginTenure()
	return s
}

func makeSupervisor(cfg Config) *Supervisor {
	cfg.Logger = cfg.log()
	s := &Supervisor{cfg: cfg, attach: Attach, found: map[string]drivers.ProcessStatus{}, orphans: map[string]int{}}
	if cfg.Handed != nil {
		s.sockets.replace(cfg.Handed.list, cfg.Handed.files)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(func() { ReapOrphans(s.ctx) })
	return s
}

// useLocked makes client's connection the current one.
func (s *Supervisor) useLocked(client *Client) {
	conn := &connection{client: client, settled: make(chan struct{})}
	s.conn = conn
	if s.state == connClosed { // Close or Detach ends it before anyone waits for it
		close(conn.settled)
		return
	}
	s.wg.Go(func() {
		defer close(conn.settled)
		<-client.Done()
		s.restore(conn)
	})
}

func (s *Supervisor) applyLocked(e connEvent) { s.state = s.state.next(e) }

func (s *Supervisor) apply(e connEvent) connState {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applyLocked(e)
	return s.state
}

// current returns the latest connection and the state.
func (s *Supervisor) current() (*connection, connState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn, s.state
}

// restore handles the end of a connection. It tries until it is certain that the keeper is connected again, or that the
// keeper and its processes are gone. No caller may act before that.
func (s *Supervisor) restore(conn *connection) {
	e := broke
	if errors.Is(conn.client.Err(), ErrReplaced) {
		e = superseded
	}
	state := s.apply(e)
	orphans := OrphanCounts{}
	for first := true; state == connBroken; first = false {
		err := s.tryRestore(conn, orphans)
		if err == nil {
			return
		}
		if first {
			s.cfg.Logger.Warn("the connection to the keeper broke; the keeper neither answers nor has exited; "+
				"taskapi tries again",
				"pid", conn.client.Keeper().PID, "error", err)
		}
		_ = wake.Sleep(s.ctx, restorePause) // the loop sees that it has ended
		_, state = s.current()
	}
}

// tryRestore attaches to the keeper or, if the keeper is gone, kills the processes that it has left. It adds their
// number to orphans.
func (s *Supervisor) tryRestore(conn *connection, orphans OrphanCounts) error {
	ctx, cancel := context.WithTimeout(s.ctx, sweepTimeout)
	defer cancel()
	if again, err := s.attach(ctx, s.cfg.Dir); err == nil {
		s.cfg.Logger.Warn("the connection to the keeper broke and was restored")
		s.mu.Lock()
		defer s.mu.Unlock()
		s.applyLocked(reattached)
		s.useLocked(again)
		return nil
	}
	swept, last, err := conn.client.Sweep(ctx, s.cfg)
	for task, n := range swept {
		orphans[task] += n
	}
	if err != nil {
		return err
	}
	left := 0
	for _, n := range orphans {
		left += n
	}
	s.cfg.Logger.Warn("the keeper was killed", "pid", conn.client.Keeper().PID, "left", left)
	conn.lost = &lostKeeper{orphans, last}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applyLocked(keeperGone)
	s.lost = conn.lost
	for task, n := range orphans {
		s.orphans[task] += n
	}
	return nil
}

// call calls a method of the keeper's client, and repeats the call if the connection broke and was restored. It sets
// lost if the keeper was lost.
func call[T any](
	ctx context.Context, s *Supervisor, method func(*Client) (T, error),
) (result T, lost *lostKeeper, err error) {
	for {
		conn, _ := s.current()
		result, err = method(conn.client)
		if !errors.Is(err, drivers.ErrLost) {
			return result, nil, err
		}
		select {
		case <-conn.settled:
		case <-ctx.Done():
			return result, nil, ctx.Err()
		}
		if conn.lost != nil {
			return result, conn.lost, err
		}
		if now, _ := s.current(); now == conn { // the use of the keeper has ended before it was restored
			return result, nil, drivers.ErrClosed
		}
	}
}

// Start starts a process. If the answer is lost, with the connection or with the keeper, Start finds out whether the
// process was started; it may have ended since. A process that was started is not started again, and Wait says what
// became of it. Start finds this out even if ctx has ended, since otherwise a process that nobody knows of could be
// left running.
func (s *Supervisor) Start(ctx context.Context, spec drivers.Spec) (drivers.ProcessStatus, error) {
	began, sent := time.Now(), false
	for keepers := 0; ; keepers++ {
		status, lost, err := call(context.WithoutCancel(ctx), s, func(c *Client) (drivers.ProcessStatus, error) {
			if sent {
				if status, known, err := startedSince(context.WithoutCancel(ctx), c, spec.Task, began); known ||
					err != nil {
					return status, err
				}
			}
			if err := s.awaitTenure(ctx, c); err != nil {
				return drivers.ProcessStatus{}, err
			}
			sent = true
			return c.Start(ctx, spec)
		})
		if lost == nil || keepers == maxKeepers {
			if err == nil {
				s.checkCgroups(status)
			}
			if err == nil && len(spec.Listen) > 0 {
				s.copySockets(context.WithoutCancel(ctx))
			}
			return status, err
		}
		if err := s.startKeeper(ctx); err != nil {
			return drivers.ProcessStatus{}, err
		}
	}
}

// checkCgroups logs when a process has started without a cgroup of its own, or without its limits: the first time, and
// again after a process that had them.
func (s *Supervisor) checkCgroups(status drivers.ProcessStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lacks(&s.uncovered, status.Task, status.NoCgroup, "a task runs in no cgroup of its own: those of its processes "+
		"that leave its session with another environment may outlive it")
	s.lacks(&s.unlimited, status.Task, status.Unlimited, "the memory and CPU of a task are not limited as its "+
		"resources block says; -o enforce_resources=false accepts that")
}

// lacks warns only root. Other users mostly can't make cgroups, and could do nothing about a warning at each run.
func (s *Supervisor) lacks(known *bool, task, reason, what string) {
	before := *known
	if *known = reason != ""; *known && !before {
		level := slog.LevelInfo
		if os.Geteuid() == 0 {
			level = slog.LevelWarn
		}
		s.cfg.Logger.Log(context.Background(), level, what, "task", task, "reason", reason)
	}
}

// startedSince returns the task's process when it was started at that time or later, by this keeper or by one that was
// killed.
func startedSince(
	ctx context.Context, c *Client, task string, when time.Time,
) (status drivers.ProcessStatus, known bool, err error) {
	list, err := c.List(ctx)
	for _, status := range list {
		if status.Task == task && !status.StartedAt.Before(when) {
			return status, true, err
		}
	}
	return drivers.ProcessStatus{}, false, err
}

// startKeeper starts another keeper in place of a lost one, unless another call has done so.
func (s *Supervisor) startKeeper(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.state {
	case connClosed:
		return drivers.ErrClosed
	case connLost:
	default:
		return nil
	}
	if err := s.conn.client.Close(); err != nil {
		return err
	}
	client, _, err := Open(ctx, s.cfg)
	if err != nil {
		return err
	}
	s.applyLocked(keeperStarted)
	s.sendFilesLocked(ctx, client)
	if err := s.sockets.give(ctx, client); err != nil {
		s.cfg.Logger.Warn("the new keeper has not got the listening sockets of the tasks", "error", err)
	}
	s.useLocked(client)
	return nil
}

// KeepOpen passes files to the keeper and to each later one. They keep the files open, and so hold their locks.
func (s *Supervisor) KeepOpen(files func() []*os.File) {
	ctx, cancel := context.WithTimeout(s.ctx, sweepTimeout)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keepOpen = files
	s.sendFilesLocked(ctx, s.conn.client)
}

func (s *Supervisor) sendFilesLocked(ctx context.Context, client *Client) {
	if s.keepOpen == nil || s.state == connLost { // the next keeper gets them
		return
	}
	if err := client.KeepOpen(ctx, s.keepOpen()); err != nil {
		s.cfg.Logger.Warn("the locks of the allocation's ports, and its registrations, would not outlive this "+
			"process", "error", err)
	}
}

// Wait waits for the end of a task's process. If the keeper was killed before it could record that end, the error says
// so, and names the processes that had to be killed.
func (s *Supervisor) Wait(ctx context.Context, task string) (interfaces.ExitResult, error) {
	exit, lost, err := call(ctx, s, func(c *Client) (interfaces.ExitResult, error) { return c.Wait(ctx, task) })
	if errors.Is(err, drivers.ErrNotRunning) { // it was a lost keeper's, in whose place there is another by now
		s.mu.Lock()
		lost = s.lost
		s.mu.Unlock()
	}
	if lost == nil {
		return exit, err
	}
	if exit, ok := lost.exit(task); ok {
		return exit, nil
	}
	return exit, lost.errorFor(task)
}

// Exec runs a program beside a task's process. One with files ends with the connection to the keeper, with an error
// that is drivers.ErrLost.
func (s *Supervisor) Exec(ctx context.Context, spec drivers.ExecSpec) (drivers.ExecResult, error) {
	if len(spec.Files) > 0 {
		conn, _ := s.current()
		return conn.client.Exec(ctx, spec)
	}
	result, _, err := call(ctx, s, func(c *Client) (drivers.ExecResult, error) { return c.Exec(ctx, spec) })
	return result, err
}

// Signal sends a signal to a task's process.
func (s *Supervisor) Signal(ctx context.Context, process drivers.ProcessID, sig syscall.Signal) error {
	_, _, err := call(ctx, s, func(c *Client) (struct{}, error) { return struct{}{}, c.Signal(ctx, process, sig) })
	return err
}

// Notice returns what a task's process has said. It ends with a keeper that was killed.
func (s *Supervisor) Notice(ctx context.Context, process drivers.ProcessID, seen uint64) (drivers.Notice, error) {
	notice, _, err := call(ctx, s, func(c *Client) (drivers.Notice, error) { return c.Notice(ctx, process, seen) })
	return notice, err
}

// Unlisten closes the sockets that are kept for a task's next process.
func (s *Supervisor) Unlisten(ctx context.Context, task string) error {
	s.sockets.turn.Lock()
	defer s.sockets.turn.Unlock()
	s.sockets.drop(task)
	_, lost, err := call(ctx, s, func(c *Client) (struct{}, error) { return struct{}{}, c.Unlisten(ctx, task) })
	if lost != nil {
		return nil
	}
	return err
}

// KillTree kills the processes that a task's process has left. Processes of the task that a lost keeper has left are
// dead by now, and are counted once.
func (s *Supervisor) KillTree(ctx context.Context, process drivers.ProcessID) (int, error) {
	leftover, lost, err := call(ctx, s, func(c *Client) (int, error) { return c.KillTree(ctx, process) })
	if lost != nil {
		err = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	leftover += s.orphans[process.Task]
	delete(s.orphans, process.Task)
	return leftover, err
}

// List returns the latest process of each task.
func (s *Supervisor) List(ctx context.Context) ([]drivers.ProcessStatus, error) {
	list, _, err := call(ctx, s, func(c *Client) ([]drivers.ProcessStatus, error) { return c.List(ctx) })
	return list, err
}

// Found returns a task's latest process from before this Supervisor was made.
func (s *Supervisor) Found(task string) (drivers.ProcessStatus, bool) {
	status, ok := s.found[task]
	return status, ok
}

// Detach leaves the keeper and its processes running.
func (s *Supervisor) Detach() error { return s.end((*Client).Detach) }

// Close ends the keeper with its processes, and the processes that a killed keeper has left.
func (s *Supervisor) Close() error {
	if err := s.end(s.closeKeeper); err != nil {
		return err
	}
	conn, _ := s.current()
	if !conn.client.ended.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), sweepTimeout)
		defer cancel()
		if _, err := Sweep(ctx, s.cfg); err != nil {
			return err
		}
	}
	if errors.Is(conn.client.Err(), ErrReplaced) {
		return nil // what is there is another client's
	}
	return Forget(s.cfg.Dir)
}

// closeKeeper ends the keeper with its tasks, even if the connection has broken and nobody has connected since. It
// kills a keeper that does not answer.
func (s *Supervisor) closeKeeper(c *Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), sweepTimeout)
	defer cancel()
	if errors.Is(c.Err(), drivers.ErrLost) {
		if again, err := s.attach(ctx, s.cfg.Dir); err == nil {
			defer c.Close() // it has the keeper's process to wait for, perhaps
			c = again
		}
	}
	err := c.Close()
	if err == nil {
		return nil
	}
	s.cfg.Logger.Warn("killing the keeper, which does not end", "pid", c.Keeper().PID, "error", err)
	if forced := c.Kill(); forced != nil { // it may not have noticed yet that its client is gone
		return errors.Join(err, forced)
	}
	return nil
}

// end ends the use of the keeper, even while the connection is being restored.
func (s *Supervisor) end(how func(*Client) error) error {
	s.apply(closing)
	conn, _ := s.current()
	s.cancel()
	err := how(conn.client)
	s.wg.Wait()
	s.sockets.finish(s.cfg.Dir)
	if now, _ := s.current(); now != conn {
		err = errors.Join(err, how(now.client))
	}
	return err
}
