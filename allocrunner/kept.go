package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/driver"
	"taskapi/allocrunner/internal/keeper"
)

// kept is the supervisor of an allocation whose processes a keeper has. Should the keeper be killed, its processes are gone with it:
// what it left running is killed at once, and the next start makes another keeper. A connection that breaks while the keeper lives
// is made anew, and nobody notices.
type kept struct {
	cfg      keeper.Config
	attach   func(ctx context.Context, dir string) (*keeper.Client, error) // keeper.Attach, but for tests
	watchers sync.WaitGroup
	life     context.Context // ends with Close or Detach
	die      context.CancelFunc

	mu    sync.Mutex // guards the fields below; held while a new keeper is made
	link  *link
	loss  *loss             // the latest; nil when no keeper was lost
	files func() []*os.File // what its keeper keeps open, nil for nothing
	left  map[string]int    // processes that lost keepers left running, by task, until the task's KillTree tells of them
	ended bool              // by Close or Detach: no other keeper is made
	bare  bool              // the latest process that was started is in no cgroup of its own
}

// link is the connection to a keeper, from its beginning to what came of its end.
type link struct {
	client  *keeper.Client
	settled chan struct{} // closed when the end has been dealt with
	loss    *loss         // of its keeper; nil when the connection was made anew. Set before settled is closed
}

// loss is the end of a keeper that was killed, and of all that could be found of its processes.
type loss struct {
	left keeper.Swept
	last map[string]keeper.Latest // the latest process of each task, with the exit where it had written that down
}

// exit is how a task's process ended, when the lost keeper could still write that down.
func (l *loss) exit(task string) (interfaces.ExitResult, bool) {
	if s := l.last[task]; s.Exit != nil {
		return *s.Exit, true
	}
	return interfaces.ExitResult{}, false
}

// of is the loss as one of its tasks had it.
func (l *loss) of(task string) error {
	lost := l.last[task].LostError()
	if n := l.left[task]; n > 0 {
		return fmt.Errorf("%w; %d more of its processes had to be ended", lost, n)
	}
	return lost
}

var _ driver.Supervisor = (*kept)(nil)

func newKept(cfg keeper.Config, client *keeper.Client) *kept {
	k := &kept{cfg: cfg, attach: keeper.Attach, left: map[string]int{}}
	k.life, k.die = context.WithCancel(context.Background())
	k.watchers.Go(func() { keeper.ReapOrphans(k.life) })
	k.mu.Lock()
	defer k.mu.Unlock()
	k.followLocked(client)
	return k
}

// followLocked makes client the one in use, and has its end noticed.
func (k *kept) followLocked(client *keeper.Client) {
	l := &link{client: client, settled: make(chan struct{})}
	k.link = l
	if k.ended { // it is closed before anyone waits for it
		close(l.settled)
		return
	}
	k.watchers.Go(func() {
		defer close(l.settled)
		<-client.Done()
		k.settle(l)
	})
}

// settle deals with the end of a connection: nothing is to be done when it was wished for, or when somebody else controls the keeper. It
// tries for as long as it takes to know that the keeper is back, or that it and its processes are gone: nobody may act on less.
func (k *kept) settle(l *link) {
	left := keeper.Swept{}
	for first := true; ; first = false {
		if _, ended := k.current(); ended || !errors.Is(l.client.Err(), driver.ErrLost) {
			return
		}
		err := k.trySettle(l, left)
		if err == nil {
			return
		}
		if first {
			k.cfg.Logger.Warn("the connection to the keeper broke, and neither does it answer nor is it gone; it is tried again",
				"pid", l.client.Keeper().PID, "error", err)
		}
		select {
		case <-time.After(settlePause):
		case <-k.life.Done():
		}
	}
}

// settlePause is the time between two attempts.
const settlePause = 500 * time.Millisecond

// trySettle tries it once. What had to be killed is added to left.
func (k *kept) trySettle(l *link, left keeper.Swept) error {
	ctx, cancel := context.WithTimeout(k.life, sweepTimeout)
	defer cancel()
	if again, err := k.attach(ctx, k.cfg.Dir); err == nil {
		k.cfg.Logger.Warn("the connection to the keeper broke and was made again")
		k.mu.Lock()
		defer k.mu.Unlock()
		k.followLocked(again)
		return nil
	}
	swept, last, err := l.client.Sweep(ctx, k.cfg)
	for task, n := range swept {
		left[task] += n
	}
	if err != nil {
		return err
	}
	k.cfg.Logger.Warn("the keeper was killed", "pid", l.client.Keeper().PID, "left", len(left))
	l.loss = &loss{left, last}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.loss = l.loss
	for task, n := range left {
		k.left[task] += n
	}
	return nil
}

func (k *kept) current() (l *link, ended bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.link, k.ended
}

// call calls a method of the keeper, and again when the connection broke and was made anew. lost is given when the keeper was lost.
func (k *kept) call(ctx context.Context, method func(*keeper.Client) error) (in *link, lost *loss, err error) {
	for {
		l, _ := k.current()
		err := method(l.client)
		if !errors.Is(err, driver.ErrLost) {
			return l, nil, err
		}
		select {
		case <-l.settled:
		case <-ctx.Done():
			return l, nil, ctx.Err()
		}
		if l.loss != nil {
			return l, l.loss, err
		}
		if now, _ := k.current(); now == l { // nobody has looked what became of it, and nobody will
			return l, nil, driver.ErrClosed
		}
	}
}

// Start implements driver.Supervisor. When the answer is lost, with the connection or with the keeper, the process may have been started,
// and may have ended since: then it is not started again, and Wait says what became of it. That is found out also when ctx has ended: a
// process that nobody knows of would be left running.
func (k *kept) Start(ctx context.Context, spec driver.Spec) (status driver.Status, err error) {
	began, asked := time.Now(), false
	for tries := 0; ; tries++ {
		l, lost, err := k.call(context.WithoutCancel(ctx), func(c *keeper.Client) (err error) {
			if asked {
				var known bool
				if status, known, err = startedSince(context.WithoutCancel(ctx), c, spec.Task, began); known || err != nil {
					return err
				}
			}
			asked = true
			status, err = c.Start(ctx, spec)
			return err
		})
		if lost == nil || tries == maxKeepers {
			if err == nil {
				k.noteCgroup(status)
			}
			return status, err
		}
		if err := k.renew(ctx, l); err != nil {
			return driver.Status{}, err
		}
	}
}

// noteCgroup says when a process has started in no cgroup of its own, the first time and the first after one that has.
func (k *kept) noteCgroup(status driver.Status) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.bare
	if k.bare = status.NoCgroup != ""; k.bare && !before {
		k.cfg.Logger.Warn("a task runs in no cgroup of its own: those of its processes that leave its session with another environment may outlive it",
			"task", status.Task, "reason", status.NoCgroup)
	}
}

// startedSince is the task's process when it was started at that time or later, by this keeper or by one that was killed.
func startedSince(ctx context.Context, c *keeper.Client, task string, when time.Time) (status driver.Status, known bool, err error) {
	list, err := c.List(ctx)
	for _, status := range list {
		if status.Task == task && !status.StartedAt.Before(when) {
			return status, true, err
		}
	}
	return driver.Status{}, false, err
}

// maxKeepers is how many keepers may be lost during one start of a task, before that counts as failed.
const maxKeepers = 2

// renew makes another keeper in place of a lost one, unless somebody else has done so.
func (k *kept) renew(ctx context.Context, lost *link) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return driver.ErrClosed
	}
	if k.link != lost {
		return nil
	}
	if err := lost.client.Close(); err != nil {
		return err
	}
	client, _, err := keeper.Open(ctx, k.cfg)
	if err != nil {
		return err
	}
	k.handLocked(ctx, client)
	k.followLocked(client)
	return nil
}

// hold has the keeper, and each that follows it, keep files open.
func (k *kept) hold(files func() []*os.File) {
	ctx, cancel := context.WithTimeout(k.life, sweepTimeout)
	defer cancel()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.files = files
	k.handLocked(ctx, k.link.client)
}

func (k *kept) handLocked(ctx context.Context, client *keeper.Client) {
	if k.files == nil {
		return
	}
	if err := client.Hold(ctx, k.files()); err != nil {
		k.cfg.Logger.Warn("the claims of the allocation's ports would not outlive this process", "error", err)
	}
}

// Wait implements driver.Supervisor. When the keeper was killed before it could write down how the task ended, the error says so, and
// what had to be done about it.
func (k *kept) Wait(ctx context.Context, task string) (exit interfaces.ExitResult, err error) {
	_, lost, err := k.call(ctx, func(c *keeper.Client) (err error) {
		exit, err = c.Wait(ctx, task)
		return err
	})
	if errors.Is(err, driver.ErrNotRunning) { // it was a lost keeper's, in whose place there is another by now
		k.mu.Lock()
		lost = k.loss
		k.mu.Unlock()
	}
	if lost == nil {
		return exit, err
	}
	if exit, ok := lost.exit(task); ok {
		return exit, nil
	}
	return exit, lost.of(task)
}

// Exec implements driver.Supervisor.
func (k *kept) Exec(ctx context.Context, spec driver.ExecSpec) (result driver.ExecResult, err error) {
	_, _, err = k.call(ctx, func(c *keeper.Client) (err error) {
		result, err = c.Exec(ctx, spec)
		return err
	})
	return result, err
}

// Signal implements driver.Supervisor.
func (k *kept) Signal(ctx context.Context, process driver.ProcessID, sig syscall.Signal) error {
	_, _, err := k.call(ctx, func(c *keeper.Client) error { return c.Signal(ctx, process, sig) })
	return err
}

// KillTree implements driver.Supervisor. What a lost keeper has left of the task is dead by now, and counted once.
func (k *kept) KillTree(ctx context.Context, process driver.ProcessID) (leftover int, err error) {
	_, lost, err := k.call(ctx, func(c *keeper.Client) (err error) {
		leftover, err = c.KillTree(ctx, process)
		return err
	})
	if lost != nil {
		err = nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	leftover += k.left[process.Task]
	delete(k.left, process.Task)
	return leftover, err
}

// List implements driver.Supervisor.
func (k *kept) List(ctx context.Context) (list []driver.Status, err error) {
	_, _, err = k.call(ctx, func(c *keeper.Client) (err error) {
		list, err = c.List(ctx)
		return err
	})
	return list, err
}

// Detach leaves the keeper and its processes running.
func (k *kept) Detach() error { return k.end((*keeper.Client).Detach) }

// Close implements driver.Supervisor. What a killed keeper has left running goes, too.
func (k *kept) Close() error {
	if err := k.end(k.closeKeeper); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), sweepTimeout)
	defer cancel()
	if _, err := keeper.Sweep(ctx, k.cfg); err != nil {
		return err
	}
	if l, _ := k.current(); errors.Is(l.client.Err(), driver.ErrReplaced) {
		return nil // what is there is somebody else's
	}
	return keeper.Forget(k.cfg.Dir)
}

// closeKeeper ends the keeper with its tasks, also one to which the connection has broken and that nobody has connected to since. One that
// does not answer is ended by force.
func (k *kept) closeKeeper(c *keeper.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), sweepTimeout)
	defer cancel()
	if errors.Is(c.Err(), driver.ErrLost) {
		if again, err := k.attach(ctx, k.cfg.Dir); err == nil {
			defer c.Close() // it has the keeper's process to wait for, perhaps
			c = again
		}
	}
	err := c.Close()
	if err == nil {
		return nil
	}
	k.cfg.Logger.Warn("the keeper is ended by force", "pid", c.Keeper().PID, "error", err)
	if forced := c.Kill(); forced != nil { // it may not even have heard that it has no client any more
		return errors.Join(err, forced)
	}
	return nil
}

// end ends the use of the keeper, also of one to which the connection is just being made anew.
func (k *kept) end(how func(*keeper.Client) error) error {
	k.mu.Lock()
	k.ended = true
	l := k.link
	k.mu.Unlock()
	k.die()
	err := how(l.client)
	k.watchers.Wait()
	if now, _ := k.current(); now != l {
		err = errors.Join(err, how(now.client))
	}
	return err
}

// sweepTimeout bounds the killing of what a keeper has left: SIGKILL takes milliseconds, unless a process is stuck in the kernel.
const sweepTimeout = 10 * time.Second
