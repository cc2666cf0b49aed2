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

// phase is where a task is in its life.
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

// machine is a task's life as plain data. Only next changes it.
type machine struct {
	phase   phase
	intent  intent // kill stays, also when the task is dead: nothing starts it again
	failed  bool
	setUp   bool     // the task directory has been announced
	mode    KillMode // of its kill
	last    bool     // the restart policy's interval is the last
	again   bool     // a restart was requested; the old process is gone and the next does not run yet
	tracker restarts.Tracker
}

// rules are what the transitions of a task's life depend on.
type rules struct {
	policy        restarts.Policy
	killSignal    syscall.Signal
	killTimeout   time.Duration
	shutdownDelay time.Duration
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

// The events of a task's life.
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

// The effects that a transition asks for, in order.
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
func (m machine) lifecyclePhase() lifecycle.Phase {
	switch m.phase {
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
func (m machine) hasProcess() bool {
	return m.phase == running || m.phase == shutdownDelay || m.phase == stopping
}

// restarting reports whether a requested restart is under way and the old process gone.
func (m machine) restarting() bool {
	return m.again && m.intent != kill && (m.phase == waiting || m.phase == starting)
}

// beingStopped reports whether a process, or the start of one, is being stopped.
func (m machine) beingStopped() bool {
	return m.intent != none && (m.phase == starting || m.hasProcess())
}

// next is the transition function. Events that mean nothing in a phase change nothing. random in [0, 1) is the jitter
// of a restart delay.
func (r rules) next(m machine, ev any, now time.Time, random float64) (machine, []any) {
	switch ev := ev.(type) {
	case opened:
		return r.onOpened(m)
	case started:
		return r.onStarted(m, ev)
	case startFailed:
		return r.onStartFailed(m, ev, now, random)
	case exited:
		return r.onExited(m, ev, now, random)
	case elapsed:
		return r.onElapsed(m)
	case killRequested:
		return r.onKilled(m, ev)
	case restartRequested:
		return r.onRestarted(m, ev)
	case resetRequested:
		return r.onReset(m, ev, now, random)
	case lastInterval:
		return r.onLastInterval(m)
	}
	return m, nil
}

func (r rules) onOpened(m machine) (machine, []any) {
	if m.phase != waiting {
		return m, nil
	}
	m.phase = starting
	if m.setUp {
		return m, []any{start{}}
	}
	m.setUp = true
	return m, []any{emit{setupEvent()}, start{}}
}

func (r rules) onStarted(m machine, ev started) (machine, []any) {
	if m.phase != starting {
		return m, nil
	}
	m.again = false
	if m.intent == none {
		m.phase = running
		return m, []any{emit{startedEvent(ev.details)}, poststart{}, watch{}}
	}
	// requested during the start: nobody reaches the process yet, so that no shutdown delay is needed
	m, acts := r.end(m)
	return m, append([]any{emit{startedEvent(ev.details)}, watch{}}, acts...)
}

func (r rules) onStartFailed(m machine, ev startFailed, now time.Time, random float64) (machine, []any) {
	if m.phase != starting {
		return m, nil
	}
	if m.intent != none { // the failure is ours: the start was given up
		return r.afterStop(m, now, random)
	}
	m.again = false
	m, acts := r.evaluate(m, restarts.Outcome{Unrecoverable: ev.unrecoverable}, now, random)
	return m, append([]any{emit{ev.event}}, acts...)
}

func (r rules) onExited(m machine, ev exited, now time.Time, random float64) (machine, []any) {
	acts := []any{disarm{}, emit{terminatedEvent(ev.result)}}
	if ev.leftover > 0 {
		acts = append(acts, emit{leftoverEvent(ev.leftover)})
	}
	switch m.phase {
	case running:
		m, more := r.evaluate(m, restarts.Outcome{Success: ev.result.Successful()}, now, random)
		return m, append(acts, more...)
	case shutdownDelay, stopping:
		if m.intent == kill {
			acts = append(acts, emit{killedEvent()})
		}
		m, more := r.afterStop(m, now, random)
		return m, append(acts, more...)
	}
	return m, nil
}

// evaluate applies the restart policy to a process that ended or failed to start.
func (r rules) evaluate(m machine, o restarts.Outcome, now time.Time, random float64) (machine, []any) {
	var v restarts.Verdict
	m.tracker, v = r.policyOf(m).Next(m.tracker, o, now, random)
	switch {
	case v.Restart:
		m.phase = backoff
		return m, []any{emit{restartingEvent(v.Delay, v.Reason)}, arm{v.Delay}}
	case v.Failed:
		m.phase, m.failed = dead, true
		return m, []any{emit{notRestartingEvent(v.Reason)}, stopHooks{}}
	}
	m.phase = dead
	return m, []any{stopHooks{}}
}

func (r rules) policyOf(m machine) restarts.Policy {
	p := r.policy
	p.Last = m.last
	return p
}

// onLastInterval ends the wait for another interval.
func (r rules) onLastInterval(m machine) (machine, []any) {
	m.last = true
	if m.phase != backoff {
		return m, nil
	}
	v := r.policyOf(m).Waiting(m.tracker)
	if !v.Failed {
		return m, nil
	}
	m.phase, m.failed = dead, true
	return m, []any{disarm{}, emit{notRestartingEvent(v.Reason)}, stopHooks{}}
}

// afterStop does what follows when the process that was stopped is gone.
func (r rules) afterStop(m machine, now time.Time, random float64) (machine, []any) {
	was := m.intent
	m.intent, m.again = none, was == restart || was == reset
	switch was {
	case evaluate:
		return r.evaluate(m, restarts.Outcome{}, now, random)
	case restart:
		m.phase = starting
		return m, []any{emit{restartingEvent(0, "")}, start{}}
	case reset:
		m.phase = waiting
		return m, []any{emit{restartingEvent(0, "")}}
	}
	m.phase, m.intent = dead, was
	return m, []any{stopHooks{}}
}

func (r rules) onElapsed(m machine) (machine, []any) {
	switch m.phase {
	case shutdownDelay:
		return r.end(m)
	case backoff:
		m.phase = starting
		return m, []any{start{}}
	}
	return m, nil
}

func (r rules) onKilled(m machine, ev killRequested) (machine, []any) {
	if m.phase == dead {
		m.intent = kill
		return m, nil
	}
	var acts []any
	first := m.intent != kill
	if first { // a second kill can only make the first stronger
		if ev.reason != nil {
			acts = append(acts, emit{ev.reason})
		}
		acts = append(acts, emit{killingEvent(ev.mode, r.killTimeout)})
	}
	m.intent = kill
	m.mode = max(m.mode, ev.mode)
	switch m.phase {
	case waiting:
		m.phase = dead
		return m, append(acts, stopHooks{})
	case backoff:
		m.phase = dead
		return m, append(acts, disarm{}, stopHooks{})
	case starting:
		return m, append(acts, abort{})
	case running:
		acts = append(acts, prekill{})
		if r.shutdownDelay > 0 && m.mode == Graceful {
			m.phase = shutdownDelay
			return m, append(acts, emit{shutdownDelayEvent(r.shutdownDelay)}, arm{r.shutdownDelay})
		}
	case shutdownDelay:
		if m.mode == Graceful {
			return m, acts
		}
	case stopping: // for a restart, perhaps by rules that have changed since: what Killing says happens now
		if !first && ev.mode != AtOnce {
			return m, acts
		}
	}
	m, more := r.end(m)
	return m, append(acts, more...)
}

// end stops the process with the kill signal and the kill timeout, or kills it at once.
func (r rules) end(m machine) (machine, []any) {
	m.phase = stopping
	if m.mode == AtOnce {
		return m, []any{disarm{}, stop{syscall.SIGKILL, 0}}
	}
	return m, []any{disarm{}, stop{r.killSignal, r.killTimeout}}
}

// onRestarted stops the process for a new one, without the shutdown delay, as in Nomad. A requested restart takes
// precedence over one that the restart policy would count.
func (r rules) onRestarted(m machine, ev restartRequested) (machine, []any) {
	if m.phase == stopping && m.intent == evaluate && !ev.counted {
		m.intent = restart
		return m, []any{emit{restartSignaledEvent(ev.reason)}}
	}
	if m.phase != running {
		return m, nil
	}
	m.intent = restart
	if ev.counted {
		m.intent = evaluate
	}
	m, acts := r.end(m)
	return m, append([]any{emit{restartSignaledEvent(ev.reason)}, prekill{}}, acts...)
}

// onReset takes the task back to before its start, unless it was killed.
func (r rules) onReset(m machine, ev resetRequested, now time.Time, random float64) (machine, []any) {
	if m.intent == kill || m.phase == waiting {
		return m, nil
	}
	acts := []any{emit{restartSignaledEvent(ev.reason)}}
	was := m.phase
	m.intent, m.failed = reset, false
	switch was {
	case starting:
		return m, append(acts, abort{})
	case running:
		m, more := r.end(m)
		return m, append(append(acts, prekill{}), more...)
	case backoff:
		acts = append(acts, disarm{})
		fallthrough
	case dead:
		m, more := r.afterStop(m, now, random)
		return m, append(acts, more...)
	}
	return m, acts // stopping for a restart, which becomes a reset
}
