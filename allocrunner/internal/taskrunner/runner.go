// Package taskrunner runs one task: state.go decides its transitions, and Runner performs their effects, with the
// task's driver. It knows neither processes nor the group's order, which it gets as calls of Open, Kill and Reset.
package taskrunner

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/hookmeter"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/internal/signals"
)

// Config configures a task's runner. All fields but Hooks and Meter are required.
type Config struct {
	Task     *api.Task
	JobType  string
	Drivers  *drivers.Registry // that has the task's driver
	Starter  Starter
	Hooks    []interfaces.TaskHook
	Logger   *slog.Logger
	Meter    *hookmeter.Meter // counts the hooks' calls
	Observer Observer
}

// Observer is called from the task's goroutine. Only Save may block.
type Observer interface {
	// TaskEvent is called for each event once it is recorded.
	TaskEvent(task string, e *api.TaskEvent)
	// TaskChanged is called after every change of the values that Wire and State return.
	TaskChanged(task string)
	// TaskRecorded is called when only the value that Saved returns has changed.
	TaskRecorded(task string)
	// Save returns when the value that Saved returns is saved. It is called before the task acts on the change. Errors:
	// why the value can't be saved for now.
	Save(task string) error
}

// Starter prepares the machine for a task's start.
type Starter interface {
	// Alloc returns the allocation's latest version.
	Alloc() *api.Allocation
	// Prepare makes the task's directory and returns the request for prestart hooks. Errors are failed starts.
	Prepare(ctx context.Context) (*interfaces.TaskPrestartRequest, error)
	// Await waits until a driver can start processes, while the prestart hooks have run already. An error ends the task.
	Await(ctx context.Context) error
	// Env returns the task's environment, with the variables that hooks have added.
	Env(req *interfaces.TaskPrestartRequest, hookEnv map[string]string) interfaces.Env
	// DriverTask returns the task for its driver, with the mounts and devices from hooks.
	DriverTask(req *interfaces.TaskPrestartRequest, given *interfaces.TaskPrestartResponse) drivers.Task
}

var _ interfaces.TaskLifecycle = (*Runner)(nil)

// Runner runs one task. Make it with New; Run once.
type Runner struct {
	cfg    Config
	name   string
	record record
	logger *slog.Logger

	mailbox chan message
	quit    chan struct{} // closed by Close
	done    chan struct{} // closed when Run has ended

	// Used by the goroutine in Run alone, and by the effects that it starts:
	rules       rules
	state       state
	timer       *time.Timer
	alarm       *time.Timer // for the next look at the schedule
	cancelStart context.CancelFunc
	endStop     context.CancelFunc // ends the driver's Stop that is under way; nil while none is
	waiters     []chan<- error     // callers of Restart and Reset, answered when the old process is gone
	effects     sync.WaitGroup

	mu   sync.Mutex // guards the fields below
	last launched
	run  drivers.Run // the latest; nil before the first
	// Written by Restore, before Run, which reads them without the lock:
	resumption *resumption   // of a task that an earlier runner had; nil for a new one
	rejoined   chan struct{} // closed when the hooks have run for a process that outlived its runner; nil without one
}

// launched holds the arguments of a task's latest start.
type launched struct {
	request *interfaces.TaskPrestartRequest  // without its Alloc; nil: this runner has neither started nor resumed it
	given   *interfaces.TaskPrestartResponse // the merged response of all hooks
}

// message is an event for rules.next, or a call that only the task's goroutine may make, in sequence with its events.
type message struct {
	event event
	call  func(context.Context) error // when event is nil
	reply chan<- error                // nil for none
}

// Validate returns the error that New and Update would return: an unknown kill_signal.
func Validate(task *api.Task, jobType string) error {
	_, err := rulesOf(task, jobType)
	return err
}

// New returns a runner for a task. Errors: an unknown kill_signal.
func New(cfg Config) (*Runner, error) {
	rules, err := rulesOf(cfg.Task, cfg.JobType)
	if err != nil {
		return nil, err
	}
	cfg.Meter = cmp.Or(cfg.Meter, new(hookmeter.Meter))
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
	r.rules.now = time.Now()
	r.state.outside = r.rules.outsideNow()
	return r, nil
}

// Name returns the task's name.
func (r *Runner) Name() string { return r.name }

// State returns the task's phase in its group.
func (r *Runner) State() lifecycle.State { return r.record.stands().State }

// Wire returns the task's state as the API shows it.
func (r *Runner) Wire() *api.TaskState { return r.record.wire() }

// Running reports whether the task has a process that may be restarted.
func (r *Runner) Running() bool { return r.record.stands().Phase == lifecycle.Running }

// Restarting reports whether a restart was requested, the old process is gone, and the new one does not run yet.
func (r *Runner) Restarting() bool { return r.record.stands().restarting }

// Up returns when the task's process started, even under an earlier runner. It is the zero time if there is no process
// or the process is being stopped.
func (r *Runner) Up() time.Time { return r.record.stands().up() }

// Resetting reports whether the task's process, or its start, is being stopped for a reset.
func (r *Runner) Resetting() bool { return r.record.stands().resetting }

// Open lets the task start, now that the group's order has reached it.
func (r *Runner) Open() { r.post(context.Background(), message{event: opened{}}) }

// Kill ends the task; reason is the event that says why, or nil. A later call can only strengthen an earlier one.
func (r *Runner) Kill(reason *api.TaskEvent, mode KillMode) {
	r.post(context.Background(), message{event: killRequested{reason: reason, mode: mode}})
}

// LastInterval makes a task that exceeds the attempts of its restart policy fail, instead of waiting for the policy's
// next interval.
func (r *Runner) LastInterval() { r.post(context.Background(), message{event: lastInterval{}}) }

// Reset returns the task to the state before its start, and returns when its process is gone. Errors:
// interfaces.ErrTerminal if the task was killed before or meanwhile; it then stays dead.
func (r *Runner) Reset(ctx context.Context, reason string) error {
	return r.request(ctx, message{event: resetRequested{reason}})
}

// Restart replaces the process and returns when the old one is gone. Errors: interfaces.ErrTaskNotRunning, and
// interfaces.ErrTerminal if the task was killed meanwhile.
func (r *Runner) Restart(ctx context.Context, reason string) error {
	if err := r.awaitFound(ctx); err != nil {
		return err
	}
	return r.request(ctx, message{event: restartRequested{reason: reason}})
}

// Unhealthy ends the process as if it had failed: the restart policy counts it, and decides whether and when a new
// process follows. Unhealthy does not wait, and ignores a task that does not run.
func (r *Runner) Unhealthy(reason string) {
	r.post(context.Background(), message{event: restartRequested{reason: reason, counted: true}})
}

// AllocUnhealthy adds an event that says why the allocation was not healthy in time, and changes nothing else. It does
// not wait for the event, which is lost if ctx or Run ends first.
func (r *Runner) AllocUnhealthy(ctx context.Context, reason string) {
	r.event(ctx, allocUnhealthyEvent(reason))
}

// Event adds an event, unless Run ends first.
func (r *Runner) Event(kind, message string) {
	r.event(context.Background(), newEvent(kind, message, map[string]string{"message": message}))
}

func (r *Runner) event(ctx context.Context, e *api.TaskEvent) {
	r.post(ctx, message{reply: make(chan error, 1), call: func(context.Context) error {
		r.show([]effect{emit{e}})
		return nil
	}})
}

// GroupDelay adds an event that says why a stop of the group does not kill the task yet. A task without a process has
// none.
func (r *Runner) GroupDelay(d time.Duration) {
	r.post(context.Background(), message{reply: make(chan error, 1), call: func(context.Context) error {
		if r.state.hasProcess() {
			r.show([]effect{emit{groupDelayEvent(d)}})
		}
		return nil
	}})
}

// Fail kills the task for good, and the task has failed.
func (r *Runner) Fail(reason string) {
	r.post(context.Background(), message{event: killRequested{reason: failedEvent(reason), fails: true}})
}

// maxExecOutput bounds the output of a command, in bytes, which is not returned.
const maxExecOutput = 4 << 10

// Exec runs a command beside the task's process, with the arguments of its start. Errors: interfaces.ErrTaskNotRunning,
// interfaces.ErrStarting, interfaces.ErrNotSupported, those of the start.
func (r *Runner) Exec(ctx context.Context, command []string) (exitCode int, err error) {
	if err := r.AwaitRejoined(ctx); err != nil {
		return -1, err
	}
	req, given, ok := r.LaunchedBeside()
	run := r.Latest()
	if !ok || run == nil || !r.Running() {
		return -1, interfaces.ErrTaskNotRunning
	}
	beside, ok := run.(drivers.Executor)
	if !ok {
		return -1, fmt.Errorf("the driver %q runs no other programs: %w", r.cfg.Task.Driver, interfaces.ErrNotSupported)
	}
	result, err := beside.Exec(ctx, r.cfg.Starter.DriverTask(req, given),
		drivers.Program{Command: command, MaxOutput: maxExecOutput})
	return result.Exit.ExitCode, err
}

// Signal sends a signal to the task's first process. Errors: interfaces.ErrUnknownSignal, interfaces.ErrTaskNotRunning.
func (r *Runner) Signal(ctx context.Context, name string) error {
	sig, err := signals.Parse(name)
	if err != nil {
		return err
	}
	if err := r.awaitFound(ctx); err != nil {
		return err
	}
	return r.request(ctx, message{call: func(ctx context.Context) error { return r.signal(ctx, name, sig) }})
}

// Beside calls a function with the task's run, and does not wait for it: Run does. The function's context ends with
// ctx, and with Run. Errors: interfaces.ErrTaskNotRunning, or ctx's.
func (r *Runner) Beside(ctx context.Context, use func(context.Context, drivers.Run)) error {
	return r.request(ctx, message{call: func(runCtx context.Context) error {
		if !r.state.hasProcess() {
			return interfaces.ErrTaskNotRunning
		}
		run := r.Latest()
		r.effects.Go(func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(runCtx, cancel)()
			use(ctx, run)
		})
		return nil
	}})
}

// Latest returns the task's latest run, which may have ended; nil before the first.
func (r *Runner) Latest() drivers.Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.run
}

func (r *Runner) setRun(run drivers.Run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.run = run
}

// Update gives the task another version of its job and calls the update hooks. Settings of a process's start take
// effect with the next process. Errors: an unknown kill_signal, and then nothing has changed.
func (r *Runner) Update(ctx context.Context, req *interfaces.TaskUpdateRequest) error {
	return r.request(ctx, message{call: func(ctx context.Context) error {
		rules, err := rulesOf(req.Task, r.cfg.JobType)
		if err != nil {
			return err
		}
		r.rules = rules
		r.lookAtSchedule(ctx)
		runHooks(ctx, r, "task_update", func(h interfaces.TaskUpdateHook, ctx context.Context) error {
			return h.Update(ctx, req)
		})
		return nil
	}})
}

// rejoinWait is how long a request waits for the hooks of a process that outlived its runner.
const rejoinWait = 10 * time.Second

// AwaitRejoined waits until the hooks have run for a process that outlived its runner. Errors: interfaces.ErrStarting,
// ctx's.
func (r *Runner) AwaitRejoined(ctx context.Context) error {
	_, rejoined := r.resumed()
	if rejoined == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, rejoinWait, interfaces.ErrStarting)
	defer cancel()
	select {
	case <-rejoined:
		return nil
	case <-r.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// awaitFound waits until a process that the saved state does not know is known to run. Errors: those of AwaitRejoined.
func (r *Runner) awaitFound(ctx context.Context) error {
	res, _ := r.resumed()
	if res == nil {
		return nil
	}
	if _, found := res.first.(started); !found {
		return nil
	}
	return r.AwaitRejoined(ctx)
}

// resumed returns how the task is resumed, and what is closed when the hooks have run for its process; nil for neither.
func (r *Runner) resumed() (*resumption, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.resumption, r.rejoined
}

// LaunchedBeside is Launched for a program that begins now beside the process, with tokens that are good now.
func (r *Runner) LaunchedBeside() (
	req *interfaces.TaskPrestartRequest, given *interfaces.TaskPrestartResponse, ok bool,
) {
	req, given, ok = r.Launched()
	if !ok {
		return req, given, ok
	}
	now := *given
	now.Env = maps.Clone(given.Env)
	for h := range interfaces.Having[interfaces.TaskBesideHook](r.cfg.Hooks) {
		for name, value := range h.BesideEnv() {
			if _, has := now.Env[name]; has {
				now.Env[name] = value
			}
		}
	}
	return req, &now, true
}

// Launched returns the arguments of the task's latest start, without the allocation. ok is false before the first
// start.
func (r *Runner) Launched() (req *interfaces.TaskPrestartRequest, given *interfaces.TaskPrestartResponse, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last.request, r.last.given, r.last.request != nil
}

// post hands a message to the task's goroutine, unless ctx or Run ends first.
func (r *Runner) post(ctx context.Context, m message) {
	select {
	case r.mailbox <- m:
	case <-ctx.Done():
	case <-r.done:
	}
}

// request posts a message and returns the reply.
func (r *Runner) request(ctx context.Context, m message) error {
	reply := make(chan error, 1)
	m.reply = reply
	r.post(ctx, m)
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

// Receive records that the task has been received, with an operator's request that holds from before. It is called
// once, before Run.
func (r *Runner) Receive(override interfaces.ScheduleState) {
	r.state.attempts.Start, r.state.override = time.Now(), override
	r.show([]effect{emit{receivedEvent()}})
	if override != interfaces.ScheduleRun {
		r.show([]effect{emit{r.rules.scheduleEvent(override)}})
	}
}

// FailBefore makes the task dead and failed because its allocation's set-up failed. It is called instead of Run, and
// the Observer is not called.
func (r *Runner) FailBefore(reason error) {
	now := time.Now()
	e := setupFailureEvent(reason.Error())
	e.FailsTask = true
	r.record.add(e, now)
	r.state.phase, r.state.failed = dead, true
	r.record.set(r.state, now, nil)
}

// Close makes Run return. The task must be dead, or left running.
func (r *Runner) Close() { close(r.quit) }

// Shutdown calls the task's shutdown hooks: this process ends and the task runs on.
func (r *Runner) Shutdown() {
	for h := range interfaces.Having[interfaces.ShutdownHook](r.cfg.Hooks) {
		_ = r.cfg.Meter.Call(r.logger, h.Name(), "task_shutdown", func() error { h.Shutdown(); return nil })
	}
}

// Run drives the task until Close. It returns when its effects have ended.
func (r *Runner) Run(ctx context.Context) {
	defer close(r.done)
	defer r.effects.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.timer = time.NewTimer(time.Hour)
	r.timer.Stop()
	defer r.timer.Stop()
	r.alarm = time.NewTimer(time.Hour)
	defer r.alarm.Stop()
	r.resume(ctx)
	r.lookAtSchedule(ctx)
	for {
		select {
		case <-r.quit:
			return
		case <-r.timer.C:
			r.handle(ctx, elapsed{})
		case <-r.alarm.C:
			r.lookAtSchedule(ctx)
		case m := <-r.mailbox:
			r.receive(ctx, m)
		}
	}
}

// receive handles a message and replies to its sender, now or when the old process is gone.
func (r *Runner) receive(ctx context.Context, m message) {
	switch e := m.event.(type) {
	case nil:
		m.reply <- m.call(ctx)
		return
	case restartRequested:
		if m.reply != nil {
			r.receiveRestart(ctx, e, m.reply)
			return
		}
	case resetRequested:
		r.waiters = append(r.waiters, m.reply)
	}
	r.handle(ctx, m.event)
}

// receiveRestart joins a restart that is under way, begins one, or refuses it.
func (r *Runner) receiveRestart(ctx context.Context, e restartRequested, reply chan<- error) {
	joins := r.state.phase == stopping && r.state.intent != kill && r.state.intent != pause
	if r.state.restarting() && !r.state.beingStopped() { // the old process is gone, and the next is being started
		reply <- nil
		return
	}
	if r.state.phase != running && r.state.phase != backoff && !joins {
		reply <- interfaces.ErrTaskNotRunning
		return
	}
	r.waiters = append(r.waiters, reply)
	r.handle(ctx, e)
}

func (r *Runner) signal(ctx context.Context, name string, sig syscall.Signal) error {
	if !r.state.hasProcess() {
		return interfaces.ErrTaskNotRunning
	}
	run, ok := r.Latest().(drivers.Signaler)
	if !ok {
		return fmt.Errorf("the driver %q sends no signals: %w", r.cfg.Task.Driver, interfaces.ErrNotSupported)
	}
	r.show([]effect{emit{signalingEvent(name)}})
	ctx, cancel := context.WithTimeout(ctx, signalTimeout) // a kill that follows must not wait
	defer cancel()
	if err := run.Signal(ctx, sig); err != nil {
		return fmt.Errorf("%w: %w", interfaces.ErrTaskNotRunning, err)
	}
	return nil
}

// handle makes a transition and performs its effects.
func (r *Runner) handle(ctx context.Context, e event) {
	if about := runOf(e); about != nil && about != r.Latest() {
		return // another process runs by now
	}
	was, rules := r.state, r.rules
	rules.now, rules.random = time.Now(), rand.Float64()
	is, effects := rules.next(was, e)
	r.state = is
	switch e := e.(type) {
	case started:
		if e.run != nil {
			r.setRun(e.run)
			r.record.setHandle(e.run.Handle())
		}
	case exited:
		if r.endStop != nil {
			r.endStop()
			r.endStop = nil
		}
	}
	if r.state != was || len(effects) > 0 {
		r.show(effects)
	}
	if mustBeSafe(was, r.state) {
		_ = r.cfg.Observer.Save(r.name) // after an error, it is saved later
	}
	if !r.state.beingStopped() {
		r.answerWaiters()
	}
	for _, effect := range effects {
		r.perform(ctx, effect)
	}
}

// runOf returns the run of an event that is only about that run; nil for other events.
func runOf(e event) drivers.Run {
	switch e := e.(type) {
	case notified:
		return e.run
	case silent:
		return e.run
	}
	return nil
}

// answerWaiters replies that the old process is gone, or that no new one follows it.
func (r *Runner) answerWaiters() {
	var answer error
	if r.state.intent == kill {
		answer = interfaces.ErrTerminal
	}
	for _, w := range r.waiters {
		w <- answer
	}
	r.waiters = nil
}

// mustBeSafe reports whether a transition must be saved before its effects. A runner that resumes the task without it
// would count an attempt twice, forget why a process is stopped or how it ended, or run a dead task again. Other
// changes can be lost, since the supervisor knows them: whether there is a process, which one, and how it ended, until
// the next process starts.
func mustBeSafe(was, is state) bool {
	return was.attempts != is.attempts || was.failed != is.failed || (was.phase == dead) != (is.phase == dead) ||
		was.intent != is.intent || (was.phase == backoff || was.phase == paused) && is.phase == waiting ||
		was.override != is.override
}

// show makes the events and the task's state visible together, and then calls the Observer, so that a reader of an
// event sees the state that belongs to it.
func (r *Runner) show(effects []effect) {
	now := time.Now()
	for _, a := range effects {
		if e, ok := a.(emit); ok {
			r.record.add(e.event, now)
		}
	}
	r.record.set(r.state, now, armed(effects))
	r.cfg.Observer.TaskChanged(r.name)
	for _, a := range effects {
		if e, ok := a.(emit); ok {
			r.cfg.Observer.TaskEvent(r.name, e.event)
		}
	}
}

// armed returns the last effect that arms or disarms a timer, the driver's included; nil for none.
func armed(effects []effect) any {
	var latest any
	for _, a := range effects {
		switch a.(type) {
		case arm, disarm, stop:
			latest = a
		}
	}
	return latest
}
