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
	"taskapi/internal/wake"
)

// fsm owns an allocation's state. Anybody may handle an event; drive alone performs the effects.
type fsm struct {
	current atomic.Pointer[state]
	changed wake.Signal   // wakes drive; only the latest signal matters
	begun   chan struct{} // closed when the tasks have been received, or will never be

	mu  sync.Mutex // held during a transition; guards due, interrupt, and additions to work
	due []effect   // effects that drive has not performed yet
	// ends the context of the prerun hooks; nil unless they are called
	interrupt context.CancelFunc
	work      sync.WaitGroup // restarts and updates that outlive their callers
}

func (m *fsm) init(s state) {
	m.changed, m.begun = wake.New(), make(chan struct{})
	m.current.Store(&s)
}

func (m *fsm) state() state { return *m.current.Load() }

// handle puts an event through the state machine and returns the state after it.
func (m *fsm) handle(e event) state {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.changed.Send()
	return m.nextLocked(e)
}

func (m *fsm) nextLocked(e event) state {
	was := m.state()
	s, effects := was.next(e)
	if m.current.Store(&s); s.begun() && !was.begun() {
		close(m.begun)
	}
	if m.interrupt != nil && s.interrupts() {
		m.interrupt()
	}
	m.due = append(m.due, effects...)
	return s
}

// interruptible returns a context that ends also when the allocation is to stop or to be detached, until release.
func (m *fsm) interruptible(ctx context.Context) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancel(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.interrupt = cancel; m.state().interrupts() {
		cancel()
	}
	return ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.interrupt = nil
		cancel()
	}
}

// look reads the group's present state between other events, handles it, and takes the effects that are due.
func (m *fsm) look(group func() groupChanged) (state, []effect) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.nextLocked(group())
	due := m.due
	m.due = nil
	return s, due
}

// setUpWait is how long a request waits while the allocation is set up or resumed. On a busy machine a new keeper takes
// a while.
const setUpWait = 10 * time.Second

// awaitSetUp waits until an allocation that is being set up or resumed has received its tasks. Errors:
// interfaces.ErrStarting, ctx's.
func (m *fsm) awaitSetUp(ctx context.Context) error {
	if m.state().phase != settingUp {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, setUpWait, interfaces.ErrStarting)
	defer cancel()
	select {
	case <-m.begun:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// awaitLive is awaitSetUp for requests that need an allocation which is not ending. Errors: also
// interfaces.ErrTerminal.
func (m *fsm) awaitLive(ctx context.Context) error {
	if err := m.awaitSetUp(ctx); err != nil {
		return err
	}
	if !m.state().live() {
		return interfaces.ErrTerminal
	}
	return nil
}

// runDetached runs do, which goes on when its caller goes away. The caller waits until ctx ends, and Run until do
// returns. Errors: interfaces.ErrTerminal when the allocation does not live; ctx's; do's.
func (m *fsm) runDetached(ctx context.Context, do func(context.Context) error) error {
	result := make(chan error, 1)
	m.mu.Lock()
	live := m.state().live()
	if live {
		m.work.Go(func() { result <- do(context.WithoutCancel(ctx)) })
	}
	m.mu.Unlock()
	if !live {
		return interfaces.ErrTerminal
	}
	return await(ctx, result)
}

// await returns a result, or ctx's error if ctx ends first.
func await(ctx context.Context, result <-chan error) error {
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// drive performs the effects of the allocation's transitions until it is terminal or detached.
func (r *Runner) drive(ctx context.Context) {
	stop := ctx.Done()
	var delay <-chan time.Time // the group's shutdown_delay
	expiry := time.NewTimer(0)
	defer expiry.Stop()
	for {
		s, effects := r.fsm.look(r.groupNow)
		for _, effect := range effects {
			if _, ok := effect.(armDelay); ok {
				delay = r.shutdownDelay()
				continue
			}
			r.perform(ctx, effect)
		}
		if s.phase == terminal || s.phase == detached {
			return
		}
		expiry.Stop()
		if left, ok := r.timeLeft(); ok && !s.stopped {
			expiry.Reset(left)
		}
		select {
		case <-r.fsm.changed:
		case <-expiry.C:
			r.requestStop(interfaces.StopRequest{Expired: true})
		case <-delay:
			r.fsm.handle(delayOver{})
		case <-stop:
			stop = nil
			if !r.fsm.state().stopped {
				r.requestStop(interfaces.StopRequest{})
			}
		}
	}
}

// timeLeft returns how long the allocation may still run. As in Nomad, max_run_duration counts from the creation, and
// only in jobs that are to end.
func (r *Runner) timeLeft() (left time.Duration, ok bool) {
	alloc := r.Alloc()
	switch longest := ptr.Deref(r.group().MaxRunDuration); ptr.Deref(alloc.Job.Type) {
	case api.JobTypeBatch, api.JobTypeSysbatch:
		return time.Until(time.Unix(0, alloc.CreateTime).Add(longest)), longest > 0
	}
	return 0, false
}

// groupNow returns how the group stands.
func (r *Runner) groupNow() groupChanged {
	return groupChanged{
		Group:     r.standing(),
		delays:    ptr.Deref(r.group().ShutdownDelay) > 0,
		resetting: slices.ContainsFunc(r.tasks, (*taskrunner.Runner).Resetting),
	}
}

// perform performs one effect.
func (r *Runner) perform(ctx context.Context, e effect) {
	switch e := e.(type) {
	case openGates:
		r.resources.freePorts.Do(r.resources.ports.ReleaseSockets) // from here on the tasks own them
		for _, name := range e.tasks {
			r.task(name).Open()
		}
	case endServices:
		r.serving.groupEnded(e.ended)
	case callPreKill:
		_ = eachHook(r, "prekill", func(h interfaces.RunnerPreKillHook) error { h.PreKill(); return nil })
	case lastIntervals:
		for _, t := range r.order() {
			if t.Hook == lifecycle.Poststop {
				r.task(t.Name).LastInterval()
			}
		}
	case killTask:
		r.task(e.task).Kill(r.killReason(e.why), e.mode)
	case restartTasks:
		r.fsm.work.Go(func() { e.reply <- r.restartTasks(context.WithoutCancel(ctx), e.update) })
	case finish:
		r.snapshots.Change(func(*api.Allocation) {}) // from here on its identities are refused
		r.updated()
	}
}

// shutdownDelay starts the group's shutdown_delay, which lies between the deregistration of its services and the first
// kill. A delay that an earlier runner has begun continues. Setting the wall clock, the only clock that two processes
// share, can't lengthen it.
func (r *Runner) shutdownDelay() <-chan time.Time {
	d := ptr.Deref(r.group().ShutdownDelay)
	if saved := r.cfg.Saved; saved != nil && !saved.KillAfter.IsZero() {
		return time.After(min(time.Until(saved.KillAfter), d))
	}
	r.journal.add(func(p *pending) { p.killAfter = time.Now().Add(d) })
	for _, t := range r.tasks {
		t.GroupDelay(d)
	}
	return time.After(d)
}

// killReason returns the event that says why a task is killed. It is nil for a requested stop, which only the event
// Killing announces.
func (r *Runner) killReason(e lifecycle.Ending) *api.TaskEvent {
	if r.cfg.Tenure != nil {
		if end, _ := r.cfg.Tenure.Until(); end < 0 {
			return taskrunner.TenureLostEvent()
		}
	}
	switch e.Cause {
	case lifecycle.LeaderDead:
		return taskrunner.LeaderDeadEvent()
	case lifecycle.SiblingFailed:
		return taskrunner.SiblingFailedEvent(e.Task)
	case lifecycle.MainTasksDead:
		return taskrunner.MainTasksDeadEvent()
	case lifecycle.Stopped:
		if r.Alloc().DesiredDescription == interfaces.DescriptionExpired {
			return taskrunner.ExpiredEvent()
		}
	}
	return nil
}
