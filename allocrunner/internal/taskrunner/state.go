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
type phase int

const (
	waiting       phase = iota // the group's order has not reached it
	starting                   // hooks run, the process is being started
	running                    // there is a process
	shutdownDelay              // it is being killed, and has not been signalled yet
	stopping                   // it has its kill signal
	backoff                    // it waits to be started again
	dead
)

// phaseNames are the phases as they are saved.
var phaseNames = [...]string{
	waiting: "waiting", starting: "starting", running: "running", shutdownDelay: "shutdown_delay", stopping: "stopping",
	backoff: "backoff", dead: "dead",
}

func (p phase) String() string { return phaseNames[p] }

// phaseNamed returns the phase of that name; an unknown one is waiting, from which everything is decided again.
func phaseNamed(name string) phase { return phase(max(0, slices.Index(phaseNames[:], name))) }

// intent is what follows when the process, or the start, that is being stopped is gone.
type intent int

const (
	none     intent = iota
	kill            // nothing: the task is dead
	restart         // the next process, at once
	reset           // back to waiting, for a restart of the whole group
	evaluate        // the restart policy decides, as for a failure
)

// intentNames are the intents as they are saved.
var intentNames = [...]string{none: "", kill: "kill", restart: "restart", reset: "reset", evaluate: "evaluate"}

func (i intent) String() string { return intentNames[i] }

// intentNamed returns the intent of that name; an unknown one is none.
func intentNamed(name string) intent { return intent(max(0, slices.Index(intentNames[:], name))) }

// state is all that the transitions of a task remember, as plain data. Only next changes it.
type state struct {
	phase    phase
	intent   intent // kill stays, also when the task is dead: nothing starts it again
	failed   bool
	setUp    bool     // the task directory has been announced
	mode     KillMode // of its kill
	last     bool     // the restart policy's interval is the last
	again    bool     // a restart was requested; the old process is gone and the next does not run yet
	attempts restarts.State
}

// rules are what a transition depends on besides the state and the event.
type rules struct {
	policy        restarts.Policy
	killSignal    syscall.Signal
	killTimeout   time.Duration
	shutdownDelay time.Duration
	now           time.Time
	random        float64 // in [0, 1): the jitter of a restart delay
}

// rulesOf returns the rules of a task in a job of that type. Errors: an unknown kill_signal.
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
	return r, nil
}

// defaultKillSignal is what a task gets that names no kill_signal: Nomad's default for every driver.
const defaultKillSignal = syscall.SIGINT

// defaultKillTimeout is Nomad's.
const defaultKillTimeout = 5 * time.Second

// event is what happens to a task, or is requested of it: one of these types.
type event any

type (
	opened  struct{} // the gate of the task's hook is open
	started struct { // the process runs
		run     drivers.Run
		details map[string]string // of the event
	}
	startFailed struct { // it could not be started
		event         *api.TaskEvent // why
		unrecoverable bool
	}
	exited struct { // the process and all that it left behind are gone
		result   interfaces.ExitResult
		leftover int // processes that outlived the first one and had to be killed
	}
	elapsed       struct{} // the armed timer has run out
	killRequested struct { // the task is to end
		reason *api.TaskEvent // nil for none
		mode   KillMode
	}
	restartRequested struct { // a new process
		reason  string
		counted bool // by the restart policy, as a failure
	}
	resetRequested struct{ reason string } // all tasks of the group start again
	// the group is to end, and the task not to be killed: its restart policy begins no other interval
	lastInterval struct{}
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
	prekill   struct{} // run the pre-kill hooks
	stop      struct { // the signal, and SIGKILL to all of it after the timeout; one follows another
		signal  syscall.Signal
		timeout time.Duration
	}
	arm       struct{ after time.Duration } // one timer; arming replaces
	disarm    struct{}
	stopHooks struct{} // run the stop hooks
)

// lifecyclePhase returns how the group sees the task. A task in its shutdown delay is pending, as in Nomad.
func (s state) lifecyclePhase() lifecycle.Phase {
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

// next returns the state after an event, and the effects that Runner performs, in their order. An event that means
// nothing in the phase changes nothing.
func (r rules) next(s state, e event) (state, []effect) {
	switch e := e.(type) {
	case opened:
		return r.onOpened(s)
	case started:
		return r.onStarted(s, e)
	case startFailed:
		return r.onStartFailed(s, e)
	case exited:
		return r.onExited(s, e)
	case elapsed:
		return r.onElapsed(s)
	case killRequested:
		return r.onKilled(s, e)
	case restartRequested:
		return r.onRestarted(s, e)
	case resetRequested:
		return r.onReset(s, e)
	case lastInterval:
		return r.onLastInterval(s)
	}
	return s, nil
}

func (r rules) onOpened(s state) (state, []effect) {
	if s.phase != waiting {
		return s, nil
	}
	s.phase = starting
	if s.setUp {
		return s, []effect{start{}}
	}
	s.setUp = true
	return s, []effect{emit{setupEvent()}, start{}}
}

func (r rules) onStarted(s state, e started) (state, []effect) {
	if s.phase != starting {
		return s, nil
	}
	s.again = false
	if s.intent == none {
		s.phase = running
		return s, []effect{emit{startedEvent(e.details)}, poststart{}, watch{}}
	}
	// requested during the start: nobody reaches the process yet, so that no shutdown delay is needed
	s, effects := r.end(s)
	return s, append([]effect{emit{startedEvent(e.details)}, watch{}}, effects...)
}

func (r rules) onStartFailed(s state, e startFailed) (state, []effect) {
	if s.phase != starting {
		return s, nil
	}
	if s.intent != none { // the failure is ours: the start was given up
		return r.afterStop(s)
	}
	s.again = false
	s, effects := r.evaluate(s, restarts.Event{Unrecoverable: e.unrecoverable})
	return s, append([]effect{emit{e.event}}, effects...)
}

func (r rules) onExited(s state, e exited) (state, []effect) {
	effects := []effect{disarm{}, emit{terminatedEvent(e.result)}}
	if e.leftover > 0 {
		effects = append(effects, emit{leftoverEvent(e.leftover)})
	}
	switch s.phase {
	case running:
		s, more := r.evaluate(s, restarts.Event{Success: e.result.Successful()})
		return s, append(effects, more...)
	case shutdownDelay, stopping:
		if s.intent == kill {
			effects = append(effects, emit{killedEvent()})
		}
		s, more := r.afterStop(s)
		return s, append(effects, more...)
	}
	return s, nil
}

// evaluate applies the restart policy to a process that ended or failed to start.
func (r rules) evaluate(s state, o restarts.Event) (state, []effect) {
	var then restarts.Effect
	s.attempts, then = r.policyOf(s).Next(s.attempts, o, r.now, r.random)
	switch {
	case then.Restart:
		s.phase = backoff
		return s, []effect{emit{restartingEvent(then.Delay, then.Reason)}, arm{then.Delay}}
	case then.Failed:
		s.phase, s.failed = dead, true
		return s, []effect{emit{notRestartingEvent(then.Reason)}, stopHooks{}}
	}
	s.phase = dead
	return s, []effect{stopHooks{}}
}

func (r rules) policyOf(s state) restarts.Policy {
	p := r.policy
	p.Last = s.last
	return p
}

// onLastInterval ends the wait for another interval.
func (r rules) onLastInterval(s state) (state, []effect) {
	s.last = true
	if s.phase != backoff {
		return s, nil
	}
	then := r.policyOf(s).Waiting(s.attempts)
	if !then.Failed {
		return s, nil
	}
	s.phase, s.failed = dead, true
	return s, []effect{disarm{}, emit{notRestartingEvent(then.Reason)}, stopHooks{}}
}

// afterStop does what follows when the process that was stopped is gone.
func (r rules) afterStop(s state) (state, []effect) {
	was := s.intent
	s.intent, s.again = none, was == restart || was == reset
	switch was {
	case evaluate:
		return r.evaluate(s, restarts.Event{})
	case restart:
		s.phase = starting
		return s, []effect{emit{restartingEvent(0, "")}, start{}}
	case reset:
		s.phase = waiting
		return s, []effect{emit{restartingEvent(0, "")}}
	}
	s.phase, s.intent = dead, was
	return s, []effect{stopHooks{}}
}

func (r rules) onElapsed(s state) (state, []effect) {
	switch s.phase {
	case shutdownDelay:
		return r.end(s)
	case backoff:
		s.phase = starting
		return s, []effect{start{}}
	}
	return s, nil
}

func (r rules) onKilled(s state, e killRequested) (state, []effect) {
	if s.phase == dead {
		s.intent = kill
		return s, nil
	}
	var effects []effect
	first := s.intent != kill
	if first { // a second kill can only make the first stronger
		if e.reason != nil {
			effects = append(effects, emit{e.reason})
		}
		effects = append(effects, emit{killingEvent(e.mode, r.killTimeout)})
	}
	s.intent = kill
	s.mode = max(s.mode, e.mode)
	switch s.phase {
	case waiting:
		s.phase = dead
		return s, append(effects, stopHooks{})
	case backoff:
		s.phase = dead
		return s, append(effects, disarm{}, stopHooks{})
	case starting:
		return s, append(effects, abort{})
	case running:
		effects = append(effects, prekill{})
		if r.shutdownDelay > 0 && s.mode == Graceful {
			s.phase = shutdownDelay
			return s, append(effects, emit{shutdownDelayEvent(r.shutdownDelay)}, arm{r.shutdownDelay})
		}
	case shutdownDelay:
		if s.mode == Graceful {
			return s, effects
		}
	case stopping: // for a restart, perhaps by rules that have changed since: what Killing says happens now
		if !first && e.mode != AtOnce {
			return s, effects
		}
	}
	s, more := r.end(s)
	return s, append(effects, more...)
}

// end stops the process with the kill signal and the kill timeout, or kills it at once.
func (r rules) end(s state) (state, []effect) {
	s.phase = stopping
	if s.mode == AtOnce {
		return s, []effect{disarm{}, stop{syscall.SIGKILL, 0}}
	}
	return s, []effect{disarm{}, stop{r.killSignal, r.killTimeout}}
}

// onRestarted stops the process for a new one, without the shutdown delay, as in Nomad. A requested restart takes
// precedence over one that the restart policy would count.
func (r rules) onRestarted(s state, e restartRequested) (state, []effect) {
	if s.phase == stopping && s.intent == evaluate && !e.counted {
		s.intent = restart
		return s, []effect{emit{restartSignaledEvent(e.reason)}}
	}
	if s.phase != running {
		return s, nil
	}
	s.intent = restart
	if e.counted {
		s.intent = evaluate
	}
	s, effects := r.end(s)
	return s, append([]effect{emit{restartSignaledEvent(e.reason)}, prekill{}}, effects...)
}

// onReset takes the task back to before its start, unless it was killed.
func (r rules) onReset(s state, e resetRequested) (state, []effect) {
	if s.intent == kill || s.phase == waiting {
		return s, nil
	}
	effects := []effect{emit{restartSignaledEvent(e.reason)}}
	was := s.phase
	s.intent, s.failed = reset, false
	switch was {
	case starting:
		return s, append(effects, abort{})
	case running:
		s, more := r.end(s)
		return s, append(append(effects, prekill{}), more...)
	case backoff:
		effects = append(effects, disarm{})
		fallthrough
	case dead:
		s, more := r.afterStop(s)
		return s, append(effects, more...)
	}
	return s, effects // stopping for a restart, which becomes a reset
}
