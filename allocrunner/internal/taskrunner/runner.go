// Package taskrunner runs one task: it drives the task's life by the machine in machine.go and does what that asks for. It
// knows nothing of the group's order, which reaches it as Open, Kill and Reset.
package taskrunner

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/hookmeter"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/processes"
	"taskapi/allocrunner/internal/signals"
)

// Config is what a task's runner is made of. All fields but Hooks, Resources and Meter are required.
type Config struct {
	Task    *api.Task
	JobType string
	Starter Starter
	Hooks   []interfaces.TaskHook
	Logger  *slog.Logger

	// Resources is what the allocation's hooks have for those of its tasks, and Meter counts the hooks' calls.
	Resources *interfaces.HookResources
	Meter     *hookmeter.Meter

	Observer Observer
}

// Observer hears of what becomes of tasks, from the task's goroutine. Only Save may block.
type Observer interface {
	// TaskEvent is called for each event once it is recorded.
	TaskEvent(task string, e *api.TaskEvent)
	// TaskChanged is called after every change of what Wire and State show.
	TaskChanged(task string)
	// TaskRecorded is called when Saved gives something else than before, and nothing else has changed.
	TaskRecorded(task string)
	// Save returns when what Saved gives is written down, or can't be for now. It is called before the task acts on it.
	Save(task string)
}

// Starter prepares the machine for a task's process and says what the process is.
type Starter interface {
	// Alloc is the allocation as it stands.
	Alloc() *api.Allocation
	// Prepare makes the task's directory and gives what prestart hooks may know. Errors are failed starts.
	Prepare(ctx context.Context) (*interfaces.TaskPrestartRequest, error)
	// Env is the task's environment, with what hooks have added to it.
	Env(req *interfaces.TaskPrestartRequest, hookEnv map[string]string) interfaces.Env
	// Spec returns the process to start, with what the hooks give it. Errors: *drivers.ConfigError and errors.ErrUnsupported for what will
	// never do, others for what may be different next time.
	Spec(ctx context.Context, req *interfaces.TaskPrestartRequest, given *interfaces.TaskPrestartResponse) (drivers.Spec, error)
}

var _ interfaces.TaskLifecycle = (*Runner)(nil)

// Runner runs one task. Make it with New; Run once.
type Runner struct {
	cfg    Config
	name   string
	record record
	logger *slog.Logger

	mailbox chan message
	quit    chan struct{} // closed when Run is asked to end
	done    chan struct{} // closed when Run has ended

	// Of the goroutine in Run alone, and of the effects that it starts:
	processes   processes.Supervisor
	rules       rules
	machine     machine
	timer       *time.Timer
	cancelStart context.CancelFunc
	pursuit     context.Context // of the process that is being killed, until it is gone; nil while none is
	endPursuit  context.CancelFunc
	resumption  *resumption    // of a task that an earlier runner had; nil for a new one
	waiters     []chan<- error // callers of Restart and Reset, answered when the old process is gone
	effects     sync.WaitGroup

	mu   sync.Mutex // guards last
	last launched
}

// launched is what a task's latest start was made of.
type launched struct {
	request *interfaces.TaskPrestartRequest  // without its Alloc; nil: it was not started, or taken over, by this runner
	given   *interfaces.TaskPrestartResponse // what all hooks give together
}

// message is an event for the machine, or a question that only the task's goroutine can answer.
type message struct {
	event any
	reply chan<- error // nil for none
}

// signalRequest asks for a signal to the process, in order with the task's other events.
type signalRequest struct {
	name string
	sig  syscall.Signal
}

// updateRequest goes on with another version of the task.
type updateRequest struct{ req *interfaces.TaskUpdateRequest }

// Validate finds out whether New and Update would take a task. Errors: an unknown kill_signal.
func Validate(task *api.Task, jobType string) error {
	_, err := rulesOf(task, jobType)
	return err
}

// New makes a runner for a task. Errors: an unknown kill_signal.
func New(cfg Config) (*Runner, error) {
	rules, err := rulesOf(cfg.Task, cfg.JobType)
	if err != nil {
		return nil, err
	}
	if cfg.Meter == nil {
		cfg.Meter = new(hookmeter.Meter)
	}
	r := &Runner{
		cfg:     cfg,
		name:    cfg.Task.Name,
		rules:   rules,
		logger:  cfg.Logger.With("task", cfg.Task.Name),
		mailbox: make(chan message, 16), // room for a burst of callers; a full box makes them wait
		quit:    make(chan struct{}),
		done:    make(chan struct{}),
	}
	r.record.state.State = "pending"
	return r, nil
}

// Name is the task's name.
func (r *Runner) Name() string { return r.name }

// State is how the task stands in its group.
func (r *Runner) State() lifecycle.State { return r.record.lifecycle() }

// Wire is the task's state as the API shows it.
func (r *Runner) Wire() *api.TaskState { return r.record.wire() }

// Running reports whether the task has a process that may be restarted.
func (r *Runner) Running() bool { return r.record.running() }

// Restarting reports whether the task has no process because somebody asked for the next, which is on its way.
func (r *Runner) Restarting() bool { return r.record.restarting() }

// Up is since when the task's process has run, also under an earlier runner, the zero time when there is none or it is being stopped.
func (r *Runner) Up() time.Time { return r.record.up() }

// Resetting reports whether the task is on its way back to before its start, and what ran of it is not gone yet.
func (r *Runner) Resetting() bool { return r.record.resetting() }

// Open lets the task start, now that the group's order has reached it.
func (r *Runner) Open() { r.post(context.Background(), opened{}, nil) }

// Kill ends the task; reason is the event that says why, or nil. A later call can only hurry an earlier one.
func (r *Runner) Kill(reason *api.TaskEvent, mode KillMode) {
	r.post(context.Background(), killed{reason, mode}, nil)
}

// LastInterval has the task fail that is past the attempts of its restart policy, or comes to be, instead of waiting for the next interval.
func (r *Runner) LastInterval() { r.post(context.Background(), lastInterval{}, nil) }

// Reset takes the task back to before its start and returns when its process is gone. Errors: interfaces.ErrTerminal for a task that has
// been killed, before or meanwhile: it stays dead.
func (r *Runner) Reset(ctx context.Context, reason string) error {
	return r.ask(ctx, reseted{reason})
}

// Restart ends the process for a new one and returns when the old one is gone. Errors: interfaces.ErrTaskNotRunning, and
// interfaces.ErrTerminal when the task was killed meanwhile.
func (r *Runner) Restart(ctx context.Context, reason string) error {
	return r.ask(ctx, restarted{reason: reason})
}

// Unhealthy ends the process as one that has failed: the restart policy counts it, and says whether and when a new one follows. It
// does not wait. A task that does not run is left alone.
func (r *Runner) Unhealthy(reason string) {
	r.post(context.Background(), restarted{reason: reason, counted: true}, nil)
}

// Signal sends a signal to the task's first process. Errors: interfaces.ErrUnknownSignal, interfaces.ErrTaskNotRunning.
func (r *Runner) Signal(ctx context.Context, name string) error {
	sig, err := signals.Parse(name)
	if err != nil {
		return err
	}
	return r.ask(ctx, signalRequest{name, sig})
}

// Update goes on with another version of the task, and calls the update hooks. What the process was started with takes effect with
// the next one. Errors: an unknown kill_signal, and then nothing has changed.
func (r *Runner) Update(ctx context.Context, req *interfaces.TaskUpdateRequest) error {
	return r.ask(ctx, updateRequest{req})
}

// Launched returns what the task's latest start was made of, but for the allocation, for a program that is to run beside the process. ok is
// false before the first.
func (r *Runner) Launched() (req *interfaces.TaskPrestartRequest, given *interfaces.TaskPrestartResponse, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last.request, r.last.given, r.last.request != nil
}

// post hands an event to the task's goroutine. When ctx or Run ends first, nobody takes it.
func (r *Runner) post(ctx context.Context, ev any, reply chan<- error) {
	select {
	case r.mailbox <- message{ev, reply}:
	case <-ctx.Done():
	case <-r.done:
	}
}

func (r *Runner) ask(ctx context.Context, ev any) error {
	reply := make(chan error, 1)
	r.post(ctx, ev, reply)
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.done:
		select {
		case err := <-reply:
			return err
		default:
			return interfaces.ErrTaskNotRunning
		}
	}
}

// Receive records that the task has been received. It is called once, before Run.
func (r *Runner) Receive() {
	r.machine.tracker.Start = time.Now()
	r.show([]any{emit{receivedEvent()}})
}

// FailBefore makes the task dead and failed because its allocation's set-up failed. It is called instead of Receive and Run, and the
// Observer does not hear of it.
func (r *Runner) FailBefore(reason error) {
	now := time.Now()
	e := setupFailureEvent(reason.Error())
	e.FailsTask = true
	r.record.add(e, now)
	r.machine.phase, r.machine.failed = dead, true
	r.record.set(r.machine, now, nil)
}

// Close makes Run return. The task is expected to be dead; a process that still runs is the supervisor's to kill, or to keep.
func (r *Runner) Close() { close(r.quit) }

// Shutdown tells the task's hooks that this process ends and the task runs on.
func (r *Runner) Shutdown() {
	for _, hook := range r.cfg.Hooks {
		if h, ok := hook.(interfaces.ShutdownHook); ok {
			_ = r.cfg.Meter.Call(r.logger, h.Name(), "task_shutdown", func() error { h.Shutdown(); return nil })
		}
	}
}

// Run drives the task, whose processes are children of processes, until Close. It returns when its effects have ended.
func (r *Runner) Run(ctx context.Context, processes processes.Supervisor) {
	r.processes = processes
	defer close(r.done)
	defer r.effects.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.timer = time.NewTimer(time.Hour)
	r.timer.Stop()
	defer r.timer.Stop()
	r.carryOn(ctx)
	for {
		select {
		case <-r.quit:
			return
		case <-r.timer.C:
			r.handle(ctx, elapsed{})
		case m := <-r.mailbox:
			r.take(ctx, m)
		}
	}
}

// take handles a message and answers whoever sent it, now or when the old process is gone.
func (r *Runner) take(ctx context.Context, m message) {
	switch ev := m.event.(type) {
	case signalRequest:
		m.reply <- r.signal(ctx, ev)
		return
	case updateRequest:
		m.reply <- r.update(ctx, ev)
		return
	case restarted:
		if m.reply != nil {
			r.takeRestart(ctx, ev, m.reply)
			return
		}
	case reseted:
		r.waiters = append(r.waiters, m.reply)
	}
	r.handle(ctx, m.event)
}

// takeRestart joins a restart under way, begins one, or refuses.
func (r *Runner) takeRestart(ctx context.Context, ev restarted, reply chan<- error) {
	joins := r.machine.phase == stopping && r.machine.intent != kill
	if r.machine.restarting() && !r.machine.leaving() { // the old process is gone, and the next is on its way
		reply <- nil
		return
	}
	if r.machine.phase != running && !joins {
		reply <- interfaces.ErrTaskNotRunning
		return
	}
	r.waiters = append(r.waiters, reply)
	r.handle(ctx, ev)
}

func (r *Runner) signal(ctx context.Context, req signalRequest) error {
	if !r.machine.hasProcess() {
		return interfaces.ErrTaskNotRunning
	}
	r.show([]any{emit{signalingEvent(req.name)}})
	if err := r.send(ctx, req.sig); err != nil {
		return fmt.Errorf("%w: %w", interfaces.ErrTaskNotRunning, err)
	}
	return nil
}

func (r *Runner) update(ctx context.Context, ev updateRequest) error {
	rules, err := rulesOf(ev.req.Task, r.cfg.JobType)
	if err != nil {
		return err
	}
	r.rules = rules
	runHooks(ctx, r, "task_update", func(h interfaces.TaskUpdateHook, ctx context.Context) error { return h.Update(ctx, ev.req) })
	return nil
}

// handle puts an event through the machine and does what it asks for.
func (r *Runner) handle(ctx context.Context, ev any) {
	was := r.machine
	var acts []any
	r.machine, acts = r.rules.next(was, ev, time.Now(), rand.Float64())
	switch ev := ev.(type) {
	case started:
		r.record.setHandle(ev.handle)
	case exited:
		if r.pursuit != nil {
			r.endPursuit()
			r.pursuit = nil
		}
	}
	if r.machine != was || len(acts) > 0 {
		r.show(acts)
	}
	if mustBeSafe(was, r.machine) {
		r.cfg.Observer.Save(r.name)
	}
	if !r.machine.leaving() {
		r.answerWaiters()
	}
	for _, a := range acts {
		r.do(ctx, a)
	}
}

// answerWaiters says that the old process is gone, and whether a new one can follow.
func (r *Runner) answerWaiters() {
	var answer error
	if r.machine.intent == kill {
		answer = interfaces.ErrTerminal
	}
	for _, w := range r.waiters {
		w <- answer
	}
	r.waiters = nil
}

// mustBeSafe reports whether a transition has to be written down before it is acted on: a runner that goes on with the task and does
// not know of it would count an attempt twice, forget what a process is stopped for or how it ended, or run a task again that is dead.
// What else is lost the supervisor knows: whether there is a process, which one, and how it ended, until there is the next one.
func mustBeSafe(was, is machine) bool {
	return was.tracker != is.tracker || was.failed != is.failed || (was.phase == dead) != (is.phase == dead) ||
		was.intent != is.intent || was.phase == backoff && is.phase == waiting
}

// show makes what the events say and where the task is visible together, then tells of the events: whoever hears of one finds the
// task as it says.
func (r *Runner) show(acts []any) {
	now := time.Now()
	for _, a := range acts {
		if e, ok := a.(emit); ok {
			r.record.add(e.event, now)
		}
	}
	r.record.set(r.machine, now, armed(acts))
	r.cfg.Observer.TaskChanged(r.name)
	for _, a := range acts {
		if e, ok := a.(emit); ok {
			r.cfg.Observer.TaskEvent(r.name, e.event)
		}
	}
}

// armed is the timer among the effects, nil for none.
func armed(acts []any) any {
	var latest any
	for _, a := range acts {
		switch a.(type) {
		case arm, disarm:
			latest = a
		}
	}
	return latest
}
