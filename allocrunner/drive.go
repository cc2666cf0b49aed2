package allocrunner

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/taskrunner"
	"taskapi/internal/ptr"
)

// life owns an allocation's state. Anybody may handle an event; drive alone performs the actions.
type life struct {
	current atomic.Pointer[state]
	changed chan struct{} // drive has something to look at; capacity 1, since only the latest matters
	begun   chan struct{} // closed when the tasks have been received, or never will be

	mu   sync.Mutex     // held over a transition; guards due, and what is added to work
	due  []any          // actions that drive has not performed yet
	work sync.WaitGroup // restarts and updates that outlive their callers
}

func (l *life) init(s state) {
	l.changed, l.begun = make(chan struct{}, 1), make(chan struct{})
	l.current.Store(&s)
}

func (l *life) state() state { return *l.current.Load() }

// handle puts an event through the state machine and returns the state after it.
func (l *life) handle(ev any) state {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.wake()
	return l.nextLocked(ev)
}

func (l *life) nextLocked(ev any) state {
	was := l.state()
	s, acts := next(was, ev)
	if l.current.Store(&s); s.begun() && !was.begun() {
		close(l.begun)
	}
	l.due = append(l.due, acts...)
	return s
}

// look handles the present state of the group, which is read in between other events, and takes the actions that are
// due.
func (l *life) look(group func() groupChanged) (state, []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.nextLocked(group())
	due := l.due
	l.due = nil
	return s, due
}

// wake makes drive look.
func (l *life) wake() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// setUpWait is how long a request waits for an allocation that is being set up or resumed: a new keeper may take a
// while on a busy machine.
const setUpWait = 10 * time.Second

// awaitSetUp waits until an allocation that is being set up or resumed has received its tasks. Errors:
// interfaces.ErrStarting, ctx's.
func (l *life) awaitSetUp(ctx context.Context) error {
	if l.state().phase != settingUp {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, setUpWait, interfaces.ErrStarting)
	defer cancel()
	select {
	case <-l.begun:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// awaitLive is awaitSetUp for what only an allocation that is to go on can do. Errors: also interfaces.ErrTerminal.
func (l *life) awaitLive(ctx context.Context) error {
	if err := l.awaitSetUp(ctx); err != nil {
		return err
	}
	if !l.state().live() {
		return interfaces.ErrTerminal
	}
	return nil
}

// runDetached does what must not stop half way when its caller goes away. The caller waits for as long as ctx lasts,
// and Run for as long as it takes. Errors: interfaces.ErrTerminal when the allocation does not live, ctx's, or what do
// returns.
func (l *life) runDetached(ctx context.Context, do func(context.Context) error) error {
	result := make(chan error, 1)
	l.mu.Lock()
	live := l.state().live()
	if live {
		l.work.Go(func() { result <- do(context.WithoutCancel(ctx)) })
	}
	l.mu.Unlock()
	if !live {
		return interfaces.ErrTerminal
	}
	return await(ctx, result)
}

// await returns a result, unless ctx ends before.
func await(ctx context.Context, result <-chan error) error {
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// drive performs the actions of the allocation's life until it is terminal or detached.
func (r *Runner) drive(ctx context.Context) {
	stop := ctx.Done()
	var delay <-chan time.Time // the group's shutdown_delay
	for {
		s, acts := r.life.look(r.groupNow)
		for _, act := range acts {
			if _, ok := act.(armDelay); ok {
				delay = r.shutdownDelay()
				continue
			}
			r.do(ctx, act)
		}
		if s.phase == terminal || s.phase == detached {
			return
		}
		select {
		case <-r.life.changed:
		case <-delay:
			r.life.handle(delayOver{})
		case <-stop:
			stop = nil
			if !r.life.state().requested {
				r.requestStop(interfaces.StopRequest{})
			}
		}
	}
}

// groupNow returns how the group stands.
func (r *Runner) groupNow() groupChanged {
	return groupChanged{
		tasks:     r.order(),
		states:    r.states(),
		delays:    ptr.Deref(r.group().ShutdownDelay) > 0,
		resetting: slices.ContainsFunc(r.tasks, (*taskrunner.Runner).Resetting),
	}
}

// do performs one action.
func (r *Runner) do(ctx context.Context, act any) {
	switch act := act.(type) {
	case openGates:
		r.resources.freePorts.Do(r.resources.ports.ReleaseSockets) // they are the tasks' from here on
		for _, name := range act.tasks {
			r.task(name).Open()
		}
	case endServices:
		r.serving.groupEnded(act.ended)
	case callPreKill:
		_ = eachHook(r, "prekill", func(h interfaces.RunnerPreKillHook) error { h.PreKill(); return nil })
	case lastIntervals:
		for _, t := range r.order() {
			if t.Hook == lifecycle.Poststop {
				r.task(t.Name).LastInterval()
			}
		}
	case killTask:
		r.task(act.task).Kill(killReason(act.why), act.mode)
	case restartTasks:
		r.life.work.Go(func() { act.reply <- r.restartTasks(context.WithoutCancel(ctx)) })
	case finish:
		r.snapshots.Change(func(*api.Allocation) {}) // from here on its identities are refused
		r.updated()
	}
}

// shutdownDelay starts the group's shutdown_delay: between its leaving the registry and the first kill. One that an
// earlier runner has begun goes on: the wall clock, which is all that two processes share, can't lengthen it.
func (r *Runner) shutdownDelay() <-chan time.Time {
	d := ptr.Deref(r.group().ShutdownDelay)
	if saved := r.cfg.Saved; saved != nil && !saved.KillAfter.IsZero() {
		return time.After(min(time.Until(saved.KillAfter), d))
	}
	r.journal.add(func(p *pending) { p.killAfter = time.Now().Add(d) })
	return time.After(d)
}

// killReason returns the event that says why a task is killed; nil for a stop, which Killing alone announces.
func killReason(e lifecycle.Ending) *api.TaskEvent {
	switch e.Cause {
	case lifecycle.LeaderDead:
		return taskrunner.LeaderDeadEvent()
	case lifecycle.SiblingFailed:
		return taskrunner.SiblingFailedEvent(e.Task)
	case lifecycle.MainTasksDead:
		return taskrunner.MainTasksDeadEvent()
	}
	return nil
}
