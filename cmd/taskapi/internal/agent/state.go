package agent

import (
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// phase is how far an agent is.
type phase int

const (
	waiting  phase = iota // for a runner: before the first, and between an allocation and its replacement
	running               // a runner is at work
	over                  // the allocation has ended, and nothing follows it
	detached              // another agent continues with the tasks or the replacement
)

// state is how far an agent's work on one allocation and its replacements is. Only next changes it; the agent performs
// the effects.
//
//	          begun              ended, terminal, no replacement
//	waiting ─────────► running ───────────────────────────────────────► over
//	   ▲                │   │
//	   └────────────────┘   │    ended, not terminal; or ended, terminal,
//	 ended, terminal,       │    with a replacement and a detach requested
//	 with a replacement     └─────────────────────────────────────────► detached
//
// Requests come in any order while the agent waits or runs. A runner that begins gets the requests that came before:
//
//	stop      the allocation ends; no replacement follows, not even an accepted one
//	kill      every delay is skipped, also the delays of a replacement
//	detach    the tasks run on; an accepted replacement is left to another agent
//	replace   the allocation ends, and another one follows. The request is refused when the allocation ends for
//	          another reason, or is being detached. A later replacement takes the place of an earlier one
//
// A crash loses no accepted request: the runner has saved it with the allocation, and the agent that resumes the
// allocation begins with Config.Next and Config.Stop.
type state struct {
	phase       phase
	stopped     bool
	how         interfaces.StopRequest // of the latest stop
	killed      bool
	detach      bool
	replacement *api.Allocation // the accepted one; nil for none
	fresh       bool            // the latest replacement starts all tasks, also those that were stopped
	alloc       *api.Allocation // the first allocation, or the replacement whose turn it is

	text, nextText *api.JobSubmission // the texts of the jobs of alloc and next; nil when they are not known
}

// event is what happens to an agent.
type event struct {
	kind eventKind

	how       interfaces.StopRequest // of stop
	by        *api.Allocation        // of replace
	fresh     bool                   // of replace: all tasks start
	text      *api.JobSubmission     // of replace: the text of the job
	ending    bool                   // of replace: the allocation is ending already
	terminal  bool                   // of ended: nothing of the allocation runs
	cancelled bool                   // of ended: the agent's context has ended, which counts as a stop
}

type eventKind int

const (
	begun   eventKind = iota // a runner is there
	stop                     // requested
	kill                     // requested
	detach                   // requested
	replace                  // requested
	ended                    // the runner has returned
)

// effect is something that an agent does when its state changes.
type effect int

const (
	killNow      effect = iota // the runner skips every delay
	detachNow                  // the runner returns
	stopRunner                 // the runner stops as wanted says, and saves that
	sayStopping                // it was the first request to stop
	sayDetaching               // it was the first request to detach
	refuse                     // the request changes nothing
	finish                     // save that nothing follows
	recreate                   // save that the replacement is to begin
	sayLeftNext                // the replacement is left to another agent
)

// wanted returns how the allocation is to stop; false for not at all.
func (s state) wanted() (interfaces.StopRequest, bool) {
	if s.stopped {
		return s.how, true
	}
	return interfaces.StopRequest{ReplacedBy: s.replacement}, s.replacement != nil
}

// next returns the state after an event, and the effects that the agent performs, in their order. An event that does
// not fit the phase changes nothing.
func (s state) next(e event) (state, []effect) {
	runs, replacement := s.phase == running, s.replacement
	switch {
	case e.kind == replace && (!runs || s.stopped || s.detach || e.ending && replacement == nil):
		return s, []effect{refuse}
	case s.phase == over, s.phase == detached, e.kind == begun && s.phase != waiting, e.kind == ended && !runs:
		return s, nil
	}
	var effects []effect
	doIf := func(condition bool, f effect) {
		if condition {
			effects = append(effects, f)
		}
	}
	switch e.kind {
	case begun:
		s.phase = running
		_, stops := s.wanted()
		doIf(s.detach, detachNow)
		doIf(s.killed, killNow)
		doIf(stops, stopRunner)
	case stop:
		doIf(!s.stopped, sayStopping)
		doIf(runs, stopRunner)
		s.stopped, s.how, s.replacement = true, e.how, nil
	case kill:
		doIf(runs, killNow)
		s.killed = true
	case detach:
		doIf(!s.detach, sayDetaching)
		doIf(runs, detachNow)
		s.detach = true
	case replace:
		s.replacement, s.fresh, s.nextText = e.by, e.fresh, e.text
		return s, []effect{stopRunner}
	case ended:
		switch {
		case !e.terminal:
			s.phase = detached
		case s.stopped || e.cancelled:
			s.phase, s.replacement = over, nil
			return s, []effect{finish}
		case replacement == nil:
			s.phase = over
		case s.detach:
			s.phase, s.alloc, s.replacement = detached, replacement, nil
			return s, []effect{recreate, sayLeftNext}
		default:
			s.phase, s.alloc, s.replacement = waiting, replacement, nil
			s.text, s.nextText = s.nextText, nil
			return s, []effect{recreate}
		}
	}
	return s, effects
}
