// Package restarts decides whether and when a task is started again after its process ended or could not be started. It
// is Nomad's restart policy as a pure function; the caller waits.
package restarts

import (
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/internal/ptr"
)

// Policy is a task's restart policy, with the rules that follow from its place in the group.
type Policy struct {
	Attempts int
	Interval time.Duration
	Delay    time.Duration
	Wait     bool // mode "delay": past the attempts, wait for the next interval instead of failing
	Last     bool // the present interval is the last, whatever the mode: a wait for the next would delay a stop

	// OnSuccess: a successful exit is restarted, too. True for sidecars, and for the main tasks of a service.
	OnSuccess bool
}

// For returns the policy of a task in a job of that type: the task's own restart block, which Canonicalize has merged
// with its group's.
func For(task *api.Task, jobType string) Policy {
	at := lifecycle.Of(task)
	p := Policy{OnSuccess: at.Sidecar ||
		at.Hook == lifecycle.Main && (jobType == api.JobTypeService || jobType == api.JobTypeSystem)}
	if r := task.RestartPolicy; r != nil {
		p.Attempts = ptr.Deref(r.Attempts)
		p.Interval = ptr.Deref(r.Interval)
		p.Delay = ptr.Deref(r.Delay)
		p.Wait = ptr.Deref(r.Mode) == "delay"
	}
	return p
}

// State counts a task's attempts in the current interval. Its first interval begins with the allocation.
type State struct {
	Start time.Time
	Count int
}

// Event is how an attempt ended.
type Event struct {
	Success       bool
	Unrecoverable bool // it would fail the same way each time
}

// Effect is the decision: Restart, Failed, or neither, which means that the task is done.
type Effect struct {
	Restart bool
	Delay   time.Duration
	Failed  bool
	Reason  string // for the event
}

// Reasons, in the words of Nomad's events.
const (
	ReasonWithinPolicy  = "Restart within policy"
	ReasonNoRestarts    = "Policy allows no restarts"
	ReasonUnrecoverable = "Error was unrecoverable"
	ReasonDelay         = "Exceeded allowed attempts, applying a delay"
)

// jitter is the largest part of the delay that is added to it, so that tasks which failed together do not start
// together.
const jitter = 0.25

// Next evaluates an outcome at now; random in [0, 1) chooses the jitter.
func (p Policy) Next(s State, e Event, now time.Time, random float64) (State, Effect) {
	if e.Success && !p.OnSuccess {
		return s, Effect{}
	}
	if e.Unrecoverable {
		return s, Effect{Failed: true, Reason: ReasonUnrecoverable}
	}
	if p.Attempts == 0 {
		return s, Effect{Failed: true, Reason: ReasonNoRestarts}
	}
	if now.Sub(s.Start) > p.Interval {
		s = State{Start: now}
	}
	s.Count++
	if s.Count <= p.Attempts {
		delay := p.Delay + time.Duration(random*jitter*float64(p.Delay))
		return s, Effect{Restart: true, Delay: delay, Reason: ReasonWithinPolicy}
	}
	if p.Wait && !p.Last {
		return s, Effect{Restart: true, Delay: max(0, s.Start.Add(p.Interval).Sub(now)), Reason: ReasonDelay}
	}
	return s, p.exceeded()
}

// Waiting evaluates a task in a restart delay after a change of its policy. The task goes on waiting, unless the next
// interval that it waits for does not come.
func (p Policy) Waiting(s State) Effect {
	if p.Last && s.Count > p.Attempts {
		return p.exceeded()
	}
	return Effect{Restart: true}
}

func (p Policy) exceeded() Effect {
	why := `and mode is "fail"`
	if p.Wait {
		why = "and a stop does not wait for the next"
	}
	return Effect{Failed: true, Reason: fmt.Sprintf("Exceeded allowed attempts %d in interval %v %s", p.Attempts,
		p.Interval, why)}
}
