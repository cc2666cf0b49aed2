// Package taskrunner runs one task: it drives the task's life by the machine in machine.go and does what that asks for. It
// knows nothing of the group's order, which reaches it as Open, Kill and Reset.
package taskrunner

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/driver"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/restarts"
)

// killTreeTimeout bounds the wait for killed processes to be gone: SIGKILL is not refused, but a process in uninterruptible
// sleep may take long to die.
const killTreeTimeout = 10 * time.Second

// hookTimeout bounds the hooks that run between a task's events. They write small files and close listeners.
const hookTimeout = 10 * time.Second

// Config is what a task's runner is made of. All fields but Hooks are required.
type Config struct {
	Task    *api.Task
	JobType string
	Starter Starter
	Hooks   []interfaces.TaskHook
	Logger  *slog.Logger

	// OnEvent is called for each event once it is recorded, and OnChange after every change of the task's state, both from
	// the task's goroutine. They must not block.
	OnEvent  func(task string, e *api.TaskEvent)
	OnChange func()
}

// Starter prepares the machine for a task's process and says what the process is.
type Starter interface {
	// Prepare makes the task's directory and gives what prestart hooks may know. Errors are failed starts.
	Prepare(ctx context.Context) (*interfaces.TaskPrestartRequest, error)
	// Spec is the process to start, with what the hooks add to its environment. Errors: *ConfigError for a configuration that
	// will never do, others for what may be different next time.
	Spec(ctx context.Context, req *interfaces.TaskPrestartRequest, hookEnv map[string]string) (driver.Spec, error)
}

// ConfigError is a task configuration that can't work however often it is tried.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

var _ interfaces.TaskLifecycle = (*Runner)(nil)

// Runner runs one task. Make it with New; Run once.
type Runner struct {
	cfg    Config
	rules  rules
	record record
	logger *slog.Logger

	mailbox chan message
	quit    chan struct{} // closed when Run is asked to end
	done    chan struct{} // closed when Run has ended

	// Of the goroutine in Run alone, and of the effects that it starts:
	processes   driver.Supervisor
	machine     machine
	timer       *time.Timer
	cancelStart context.CancelFunc
	resumption  *resumption    // of a task that an earlier runner had; nil for a new one
	waiters     []chan<- error // callers of Restart, answered when the old process is gone
	effects     sync.WaitGroup
}

// message is an event for the machine, or a question that only the task's goroutine can answer.
type message struct {
	event any
	reply chan<- error // nil for none
}

// signalRequest asks for a signal to the process, in order with the task's other events.
type signalRequest struct{ name string }

// New makes a runner for a task. Errors: an unknown kill_signal.
func New(cfg Config) (*Runner, error) {
	r := &Runner{
		cfg:     cfg,
		logger:  cfg.Logger.With("task", cfg.Task.Name),
		mailbox: make(chan message, 16), // room for a burst of callers; a full box makes them wait
		quit:    make(chan struct{}),
		done:    make(chan struct{}),
		rules: rules{
			policy:        restarts.For(cfg.Task, cfg.JobType),
			killSignal:    DefaultKillSignal,
			killTimeout:   5 * time.Second,
			shutdownDelay: cfg.Task.ShutdownDelay,
		},
	}
	if name := cfg.Task.KillSignal; name != "" {
		sig, err := ParseSignal(name)
		if err != nil {
			return nil, fmt.Errorf("task %q: kill_signal: %w", cfg.Task.Name, err)
		}
		r.rules.killSignal = sig
	}
	if t := cfg.Task.KillTimeout; t != nil {
		r.rules.killTimeout = *t
	}
	r.record.state.State = "pending"
	return r, nil
}

// Name is the task's name.
func (r *Runner) Name() string { return r.cfg.Task.Name }

// State is how the task stands in its group.
func (r *Runner) State() lifecycle.State { return r.record.lifecycle() }

// Wire is the task's state as the API shows it.
func (r *Runner) Wire() *api.TaskState { return r.record.wire() }

// Running reports whether the task has a process that may be restarted.
func (r *Runner) Running() bool { return r.record.running() }

// Open lets the task start, now that the group's order has reached it.
func (r *Runner) Open() { r.post(context.Background(), opened{}, nil) }

// Kill ends the task; reason is the event that says why, or nil. force skips every delay.
func (r *Runner) Kill(reason *api.TaskEvent, force bool) {
	r.post(context.Background(), killed{reason, force}, nil)
}

// Reset takes the task back to before its start and returns when its process is gone.
func (r *Runner) Reset(ctx context.Context, reason string) error {
	return r.ask(ctx, reseted{reason})
}

// Restart ends the process for a new one and returns when the old one is gone. Errors: interfaces.ErrTaskNotRunning.
func (r *Runner) Restart(ctx context.Context, reason string) error {
	return r.ask(ctx, restarted{reason})
}

// Signal sends a signal to the task's first process. Errors: interfaces.ErrUnknownSignal, interfaces.ErrTaskNotRunning.
func (r *Runner) Signal(ctx context.Context, name string) error {
	if _, err := ParseSignal(name); err != nil {
		return err
	}
	return r.ask(ctx, signalRequest{name})
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

// Close makes Run return. The task is expected to be dead; a process that still runs is the supervisor's to kill.
func (r *Runner) Close() { close(r.quit) }

// Run drives the task, whose processes are children of processes, until Close. It returns when its effects have ended.
func (r *Runner) Run(ctx context.Context, processes driver.Supervisor) {
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
		m.reply <- r.signal(ctx, ev.name)
		return
	case restarted:
		if m.reply != nil {
			r.takeRestart(ctx, ev, m.reply)
			return
		}
	case reseted:
		if r.machine.hasProcess() {
			r.waiters = append(r.waiters, m.reply)
			m.reply = nil
		}
	}
	r.handle(ctx, m.event)
	if m.reply != nil {
		m.reply <- nil
	}
}

// takeRestart joins a restart under way, begins one, or refuses.
func (r *Runner) takeRestart(ctx context.Context, ev restarted, reply chan<- error) {
	joins := r.machine.phase == stopping && r.machine.intent == restart
	if r.machine.phase != running && !joins {
		reply <- interfaces.ErrTaskNotRunning
		return
	}
	r.waiters = append(r.waiters, reply)
	r.handle(ctx, ev)
}

func (r *Runner) signal(ctx context.Context, name string) error {
	if !r.machine.hasProcess() {
		return interfaces.ErrTaskNotRunning
	}
	sig, err := ParseSignal(name)
	if err != nil {
		return err
	}
	r.show([]any{emit{signalingEvent(name)}})
	if err := r.processes.Signal(ctx, r.Name(), sig); err != nil {
		return fmt.Errorf("%w: %w", interfaces.ErrTaskNotRunning, err)
	}
	return nil
}

// handle puts an event through the machine and does what it asks for.
func (r *Runner) handle(ctx context.Context, ev any) {
	var acts []any
	r.machine, acts = r.rules.next(r.machine, ev, time.Now(), rand.Float64())
	r.show(acts)
	if _, ok := ev.(exited); ok {
		for _, w := range r.waiters {
			w <- nil
		}
		r.waiters = nil
	}
	for _, a := range acts {
		r.do(ctx, a)
	}
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
	r.record.set(r.machine, now, now.Add(armed(acts)))
	r.cfg.OnChange()
	for _, a := range acts {
		if e, ok := a.(emit); ok {
			r.cfg.OnEvent(r.Name(), e.event)
		}
	}
}

// armed is how long the timer among the effects runs, zero for none.
func armed(acts []any) time.Duration {
	for _, a := range acts {
		if t, ok := a.(arm); ok {
			return t.after
		}
	}
	return 0
}

// do performs one effect.
func (r *Runner) do(ctx context.Context, act any) {
	switch act := act.(type) {
	case start:
		r.start(ctx)
	case abort:
		if r.cancelStart != nil {
			r.cancelStart()
		}
	case poststart:
		runHooks(ctx, r, interfaces.TaskPoststartHook.Poststart)
	case watch:
		r.effects.Go(func() { r.watch(ctx) })
	case prekill:
		runHooks(ctx, r, interfaces.TaskPreKillHook.PreKilling)
	case signal:
		if err := r.processes.Signal(ctx, r.Name(), act.sig); err != nil {
			r.logger.Debug("kill signal not delivered", "signal", act.sig.String(), "error", err)
		}
	case killTree:
		r.effects.Go(func() { r.killTree(ctx) })
	case arm:
		r.timer.Reset(act.after)
	case disarm:
		r.timer.Stop()
	case over:
		runHooks(ctx, r, interfaces.TaskStopHook.Stop)
	}
}

// watch waits for the process to end and clears away what it left behind, then tells the machine.
func (r *Runner) watch(ctx context.Context) {
	result, err := r.processes.Wait(ctx, r.Name())
	if err != nil {
		if ctx.Err() != nil {
			return // the runner ends before the process: the supervisor has it
		}
		result = interfaces.ExitResult{ExitCode: -1, At: time.Now(), Err: err.Error()}
	}
	leftover := r.killTree(ctx)
	runHooks(ctx, r, func(h interfaces.TaskExitedHook, ctx context.Context) error { return h.Exited(ctx, result) })
	r.postFromEffect(exited{result, leftover})
}

// postFromEffect posts from a goroutine that Run waits for: it must not block once Run has left its loop.
func (r *Runner) postFromEffect(ev any) {
	select {
	case r.mailbox <- message{event: ev}:
	case <-r.quit:
	}
}

func (r *Runner) killTree(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, killTreeTimeout)
	defer cancel()
	n, err := r.processes.KillTree(ctx, r.Name())
	if err != nil {
		r.logger.Warn("processes of the task could not be killed; look for them with ps and kill them by hand", "error", err)
	}
	return n
}
