package taskrunner

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/restarts"
	"taskapi/allocrunner/readiness"
	"taskapi/allocrunner/schedule"
	"taskapi/internal/signals"
)

// phase is how far a task is.
//
//	             open                 started
//	waiting ───────────────> starting ───────> running ──────────────┐ killed, restarted
//	   ^                      ^    │ failed       │ exited           v
//	   │ reset                │    v              v          [ shutdownDelay ]
//	   │              timer   │  policy <─────────┘                  │ timer
//	   │                   backoff │                                 v
//	   └────────── dead <──────────┴──────────────────────────── stopping
//	                          exited (and, when restarted, back to starting)
//
// A task is paused outside of the times of its schedule, and while an operator has stopped it: then it starts no
// process, and one that runs is stopped.
type phase int

const (
	waiting       phase = iota // the group's order has not reached it
	starting                   // hooks run, the process is being started
	running                    // there is a process
	shutdownDelay              // it is being killed, and has not been signalled yet
	stopping                   // it has its kill signal
	backoff                    // it waits to be started again
	paused                     // it waits for its schedule, or for an operator
	dead
)

// phaseNames are the phases as they are saved.
var phaseNames = [...]string{
	waiting: "waiting", starting: "starting", running: "running", shutdownDelay: "shutdown_delay", stopping: "stopping",
	backoff: "backoff", paused: "paused", dead: "dead",
}

func (p phase) String() string { return phaseNames[p] }

// phaseNamed returns the phase of that name; an unknown one is waiting, from which everything is decided again.
func phaseNamed(name string) phase { return phase(max(0, slices.Index(phaseNames[:], name))) }

// intent is the next step after a process, or a start, that is being stopped.
type intent int

const (
	none     intent = iota
	kill            // nothing: the task is dead
	restart         // the next process, at once
	reset           // back to waiting, for a restart of the whole group
	evaluate        // the restart policy decides, as for a failure
	pause           // the next process, when the schedule or an operator lets it run
)

// intentNames are the intents as they are saved.
var intentNames = [...]string{none: "", kill: "kill", restart: "restart", reset: "reset", evaluate: "evaluate",
	pause: "pause"}

func (i intent) String() string { return intentNames[i] }

// intentNamed returns the intent of that name; an unknown one is none.
func intentNamed(name string) intent { return intent(max(0, slices.Index(intentNames[:], name))) }

// state is everything that the transitions of a task remember, as plain data. Only next changes it.
type state struct {
	phase    phase
	intent   intent // kill stays, also when the task is dead: nothing starts it again
	failed   bool
	setUp    bool     // the task directory has been announced
	mode     KillMode // of its kill
	last     bool     // the restart policy's interval is the last
	again    bool     // a restart was requested; the old process is gone and the next does not run yet
	attempts restarts.State
	unready  bool   // its process runs and is to say when it is ready, and has not
	status   string // what its process has said last about itself
	outside  bool   // of the times of its schedule, at the latest look at the clock
	override interfaces.ScheduleState
}

// schedule returns what the task's schedule says, or an operator.
func (s state) schedule() interfaces.ScheduleState {
	switch {
	case s.override != interfaces.ScheduleRun:
		return s.override
	case s.outside:
		return interfaces.SchedulePause
	}
	return interfaces.ScheduleRun
}

// rules are the settings that a transition depends on besides the state and the event.
type rules struct {
	policy        restarts.Policy
	killSignal    syscall.Signal
	killTimeout   time.Duration
	shutdownDelay time.Duration
	readyTimeout  time.Duration // of a process that is to say when it is ready; 0 for no end
	watchdog      time.Duration // how long a process that has said so may be silent; 0 for any time
	listens       bool          // sockets are kept for the next process
	times         schedule.Times
	now           time.Time
	random        float64 // in [0, 1): the jitter of a restart delay
}

// rulesOf returns the rules of a task in a job of that type. Errors: an unknown kill_signal, settings of readiness that
// or of the schedule that can't be read.
func rulesOf(task *api.Task, jobType string) (rules, error) {
	r := rules{
		policy:        restarts.For(task, jobType),
		killSignal:    defaultKillSignal,
		killTimeout:   defaultKillTimeout,
		shutdownDelay: task.ShutdownDelay,
	}
	if name := task.KillSignal; name != "" {
		sig, err := signals.Parse(name)
		if err != nil {
			return rules{}, fmt.Errorf("task %q: kill_signal: %w", task.Name, err)
		}
		r.killSignal = sig
	}
	if t := task.KillTimeout; t != nil {
		r.killTimeout = *t
	}
	set, err := readiness.Of(task)
	if err != nil {
		return rules{}, fmt.Errorf("task %q: meta: %w", task.Name, err)
	}
	r.readyTimeout, r.watchdog, r.listens = set.ReadyTimeout, set.Watchdog, len(set.Listen) > 0
	if r.times, err = schedule.Parse(task.Schedule); err != nil {
		return rules{}, fmt.Errorf("task %q: schedule: %w", task.Name, err)
	}
	return r, nil
}

// defaultKillSignal is the signal for a task without a kill_signal: Nomad's default for every driver.
const defaultKillSignal = syscall.SIGINT

// defaultKillTimeout is Nomad's.
const defaultKillTimeout = 5 * time.Second

// event is a request to a task, or something that has happened to it: one of these types.
type event any

type (
	opened  struct{} // the gate of the task's hook is open
	started struct { // the process runs
		run      drivers.Run
		details  map[string]string // of the event
		notifies bool              // it is going to say when it is ready
	}
	notified struct { // the process has said something about itself
		run    drivers.Run
		notice drivers.Notice
	}
	silent      struct{ run drivers.Run } // the process gives no sign of life any more
	startFailed struct {                  // it could not be started
		event         *api.TaskEvent // why
		unrecoverable bool
	}
	exited struct { // the process and all processes that it left behind are gone
		result   interfaces.ExitResult
		leftover int // processes that outlived the first one and had to be killed
	}
	elapsed       struct{} // the armed timer has run out
	killRequested struct { // the task is to end
		reason *api.TaskEvent // nil for none; it replaces the event Killing if it is one
		mode   KillMode
		fails  bool // the task has failed
	}
	restartRequested struct { // a new process
		reason  string
		counted bool // by the restart policy, as a failure
	}
	resetRequested struct{ reason string } // all tasks of the group start again
	// the group ends and the task is not killed: its restart policy begins no further interval
	lastInterval struct{}
	clockRead    struct{}                                 // the time may have come to pause, or to run
	overridden   struct{ state interfaces.ScheduleState } // an operator says what holds instead of the schedule
)

// KillMode is how a task is killed: each value skips more than the one before.
type KillMode int

const (
	Graceful        KillMode = iota // shutdown_delay, kill_signal, kill_timeout, SIGKILL
	NoShutdownDelay                 // kill_signal, kill_timeout, SIGKILL
	AtOnce                          // SIGKILL
)

// effect is something that Runner does when the state changes: one of these types.
type effect any

type (
	emit      struct{ event *api.TaskEvent }
	start     struct{} // run the prestart hooks and start the process; ends in started or startFailed
	abort     struct{} // give up a start under way; it still ends in started or startFailed
	poststart struct{} // run the poststart hooks
	watch     struct{} // wait for the process to end; ends in exited
	listen    struct{} // to what the process says about itself: each is a notified, until the process ends
	// look for signs of life at this interval, until the process ends or there is none: then it ends in silent
	guard   struct{ interval time.Duration }
	prekill struct{} // run the pre-kill hooks
	stop    struct { // the signal, and SIGKILL to all of it after the timeout; one follows another
		signal  syscall.Signal
		timeout time.Duration
	}
	arm       struct{ after time.Duration } // one timer; arming replaces
	disarm    struct{}
	stopHooks struct{} // run the stop hooks
	unlisten  struct{} // close the sockets that are kept for the next process: there is none
)

// lifecyclePhase returns the task's phase in its group. A task that is killed is pending in its shutdown delay, as in
// Nomad.
func (s state) lifecyclePhase() lifecycle.Phase {
	if s.phase == shutdownDelay && (s.intent == pause || s.intent == reset) {
		return lifecycle.Running
	}
	switch s.phase {
	case waiting:
		return lifecycle.Waiting
	case running, stopping:
		return lifecycle.Running
	case dead:
		return lifecycle.Dead
	}
	return lifecycle.Pending
}

// hasProcess reports whether there is a process to send a signal to.
func (s state) hasProcess() bool {
	return s.phase == running || s.phase == shutdownDelay || s.phase == stopping
}

// restarting reports whether a requested restart is under way and the old process gone.
func (s state) restarting() bool {
	return s.again && s.intent != kill && (s.phase == waiting || s.phase == starting)
}

// beingStopped reports whether a process, or the start of one, is being stopped.
func (s state) beingStopped() bool {
	return s.intent != none && (s.phase == starting || s.hasProcess())
}

// next returns the state after an event, and the effects that Runner performs, in their order. An event that does not
// fit the phase changes nothing.
func (r rules) next(s state, e event) (state, []effect) {
	r.policy.Last = s.last
	t := transition{rules: r, state: s}
	t.apply(e)
	return t.state, t.effects
}

// transition is a state that becomes the next one, with the effects so far.
type transition struct {
	rules
	state
	effects []effect
}

func (t *transition) do(effects ...effect) { t.effects = append(t.effects, effects...) }

func (t *transition) emit(e *api.TaskEvent) { t.do(emit{e}) }

func (t *transition) apply(e event) {
	switch e := e.(type) {
	case opened:
		if t.phase != waiting {
			return
		}
		if !t.setUp {
			t.emit(setupEvent())
		}
		t.setUp = true
		if says := t.schedule(); says != interfaces.ScheduleRun {
			t.emit(t.scheduleEvent(says))
		}
		t.start()
	case started:
		if t.phase == starting {
			t.started(e)
		}
	case startFailed:
		if t.phase == starting {
			t.startFailed(e)
		}
	case exited:
		if t.hasProcess() {
			t.exited(e)
		}
	case notified:
		if t.hasProcess() {
			t.notified(e.notice)
		}
	case silent:
		t.silent(fmt.Sprintf("The task has given no sign of life for %v", t.watchdog))
	case elapsed:
		switch t.phase {
		case running:
			if t.unready {
				t.restart(restartRequested{reason: fmt.Sprintf("The task was not ready within %v", t.readyTimeout),
					counted: true})
			}
		case shutdownDelay:
			t.stopDelayed()
		case backoff:
			t.start()
		}
	case killRequested:
		t.kill(e)
	case restartRequested:
		t.restart(e)
	case resetRequested:
		t.reset(e)
	case lastInterval: // a wait for another interval ends
		t.last, t.policy.Last = true, true
		if then := t.policy.Waiting(t.attempts); t.phase == backoff && then.Failed {
			t.do(disarm{})
			t.fail(then.Reason)
		}
	case clockRead:
		t.follow(t.override)
	case overridden:
		t.follow(e.state)
	}
}

// start starts the next process, or waits for the schedule.
func (t *transition) start(before ...effect) {
	t.do(before...)
	if t.schedule().Pauses() {
		t.phase = paused
		return
	}
	t.phase = starting
	t.do(start{})
}

// follow acts on what the schedule says now, or the operator. As in Nomad, a pause has the kill_signal and the
// kill_timeout of a kill, and at the end of the schedule's times no shutdown delay. Clients of a paused task are
// refused: it may be paused for days.
func (t *transition) follow(override interfaces.ScheduleState) {
	was, stopped := t.schedule(), t.override
	if t.times.Always() && override == interfaces.ScheduleForcedRun { // it needs no force
		override = interfaces.ScheduleRun
	}
	t.outside, t.override = t.outsideNow(), override
	if t.phase == dead || t.intent == kill || t.phase == waiting && stopped == override {
		return
	}
	says := t.schedule()
	if says != was {
		t.emit(t.scheduleEvent(says))
	}
	switch {
	case t.phase == waiting:
	case !says.Pauses():
		if t.phase == paused {
			t.start()
		}
	case t.phase == starting && t.intent == none:
		t.intent = pause
		t.do(abort{})
	case t.phase == running:
		t.intent = pause
		t.unlisten()
		if says == interfaces.ScheduleForcedPause && t.delays(Graceful) {
			t.delayStop()
		} else {
			t.stop(prekill{})
		}
	case t.phase == stopping && t.intent != reset:
		t.intent = pause
	case t.phase == backoff:
		t.phase = paused
		t.do(disarm{})
	}
}

// outsideNow reports whether it is outside of the times of the task's schedule.
func (r rules) outsideNow() bool {
	may, _ := r.times.At(r.now)
	return !may
}

func (t *transition) started(e started) {
	t.again, t.unready, t.status = false, e.notifies, ""
	t.emit(startedEvent(e.details))
	if t.intent == none {
		t.phase = running
		t.do(poststart{}, watch{})
		if e.notifies {
			t.do(listen{})
		}
		if e.notifies && t.readyTimeout > 0 {
			t.do(arm{t.readyTimeout})
		}
		return
	}
	// requested during the start: nobody reaches the process yet, so that no shutdown delay is needed
	t.stop(watch{})
}

// notified follows what the process has said. The timer is that of the readiness only while the task runs.
func (t *transition) notified(n drivers.Notice) {
	if t.unready && n.Ready {
		t.unready = false
		if t.phase == running {
			t.do(disarm{})
		}
		t.emit(readyEvent())
		if t.watchdog > 0 {
			t.do(guard{t.watchdog})
		}
	}
	if t.status != n.Status {
		t.status = n.Status
		t.emit(statusEvent(n.Status))
	}
	if n.Trigger {
		t.silent("The task says that it can't go on (WATCHDOG=trigger)")
	}
}

// silent ends the process as if it had failed. It gets the signal that makes most programs say where they hang.
func (t *transition) silent(reason string) {
	if t.phase != running {
		return
	}
	t.intent, t.phase = evaluate, stopping
	t.do(emit{restartSignaledEvent(reason)}, prekill{}, disarm{}, stop{syscall.SIGABRT, t.killTimeout})
}

func (t *transition) startFailed(e startFailed) {
	if t.intent != none { // the failure is ours: the start was given up
		t.afterStop()
		return
	}
	t.again = false
	t.emit(e.event)
	t.evaluate(restarts.Event{Unrecoverable: e.unrecoverable})
}

func (t *transition) exited(e exited) {
	t.unready = false
	t.do(disarm{}, emit{terminatedEvent(e.result)})
	if e.leftover > 0 {
		t.emit(leftoverEvent(e.leftover))
	}
	if t.phase == running {
		t.evaluate(restarts.Event{Success: e.result.Successful()})
		return
	}
	if t.intent == kill {
		t.emit(killedEvent())
	}
	t.afterStop()
}

// evaluate applies the restart policy to a process that ended or failed to start.
func (t *transition) evaluate(e restarts.Event) {
	var then restarts.Effect
	t.attempts, then = t.policy.Next(t.attempts, e, t.now, t.random)
	switch {
	case then.Restart:
		t.phase = backoff
		t.do(emit{restartingEvent(then.Delay, then.Reason)}, arm{then.Delay})
	case then.Failed:
		t.fail(then.Reason)
	default:
		t.die()
	}
}

func (t *transition) fail(reason string) {
	t.failed = true
	t.die(emit{notRestartingEvent(reason)})
}

func (t *transition) die(before ...effect) {
	t.phase = dead
	t.do(append(before, stopHooks{})...)
	t.unlisten()
}

// unlisten has clients refused from now on, when the process closes its own copy of the sockets.
func (t *transition) unlisten() {
	if t.listens {
		t.do(unlisten{})
	}
}

// afterStop takes the next step after the stopped process is gone.
func (t *transition) afterStop() {
	was := t.intent
	t.intent, t.again = none, was == restart || was == reset
	switch was {
	case evaluate:
		t.evaluate(restarts.Event{})
	case pause:
		t.start()
	case restart:
		t.start(emit{restartingEvent(0, "")})
	case reset:
		t.phase = waiting
		t.emit(restartingEvent(0, ""))
	default:
		t.intent = was
		t.die()
	}
}

func (t *transition) kill(e killRequested) {
	first := t.intent != kill
	t.intent = kill
	if t.phase == dead {
		return
	}
	t.failed = t.failed || e.fails
	if first { // a second kill can only make the first stronger
		if e.reason != nil {
			t.emit(e.reason)
		}
		if !t.delays(e.mode) && t.phase != shutdownDelay && (e.reason == nil || e.reason.Type != api.TaskKilling) {
			t.emit(killingEvent(e.mode, t.killTimeout))
		}
		if t.hasProcess() {
			t.unlisten()
		}
	}
	t.mode = max(t.mode, e.mode)
	switch t.phase {
	case waiting, paused:
		t.die()
	case backoff:
		t.die(disarm{})
	case starting:
		t.do(abort{})
	case running:
		if !t.delays(t.mode) {
			t.stop(prekill{})
			return
		}
		t.delayStop()
	case shutdownDelay:
		if t.mode != Graceful {
			t.stopDelayed()
		}
	case stopping: // for a restart, perhaps by rules that have changed since: what Killing says happens now
		if first || e.mode == AtOnce {
			t.stop()
		}
	}
}

// delays reports whether a kill of that mode begins with the shutdown delay.
func (t *transition) delays(mode KillMode) bool {
	return t.phase == running && t.shutdownDelay > 0 && mode == Graceful
}

func (t *transition) delayStop() {
	t.phase = shutdownDelay
	t.do(prekill{}, emit{shutdownDelayEvent(t.shutdownDelay)}, arm{t.shutdownDelay})
}

// stopDelayed stops the process at the end of the shutdown delay. Only now is Killing true, which names the signal.
func (t *transition) stopDelayed() {
	if t.intent == kill {
		t.emit(killingEvent(t.mode, t.killTimeout))
	}
	t.stop()
}

// stop stops the process with the kill signal and the kill timeout, or kills it at once.
func (t *transition) stop(before ...effect) {
	how := stop{t.killSignal, t.killTimeout}
	if t.mode == AtOnce {
		how = stop{syscall.SIGKILL, 0}
	}
	t.phase = stopping
	t.do(append(before, disarm{}, how)...)
}

// restart stops the process for a new one, without the shutdown delay, as in Nomad. A requested restart takes
// precedence over one that the restart policy would count, and over the policy's delay.
func (t *transition) restart(e restartRequested) {
	switch {
	case t.phase == stopping && t.intent == evaluate && !e.counted:
		t.intent = restart
		t.emit(restartSignaledEvent(e.reason))
	case t.phase == backoff && !e.counted: // the wait ends
		t.intent = restart
		t.do(emit{restartSignaledEvent(e.reason)}, disarm{})
		t.afterStop()
	case t.phase == running:
		t.intent = restart
		if e.counted {
			t.intent = evaluate
		}
		t.stop(emit{restartSignaledEvent(e.reason)}, prekill{})
	}
}

// reset returns the task to the state before its start, unless it was killed. A restart that is stopping the task
// becomes a reset.
func (t *transition) reset(e resetRequested) {
	if t.intent == kill || t.phase == waiting {
		return
	}
	t.emit(restartSignaledEvent(e.reason))
	t.intent, t.failed = reset, false
	switch t.phase {
	case starting:
		t.do(abort{})
	case running:
		t.stop(prekill{})
	case backoff, paused, dead:
		t.do(disarm{})
		t.afterStop()
	}
}
