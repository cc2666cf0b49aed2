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
	detached              // what is left, tasks or a replacement, is another agent's
)

// life is the state of an agent's work on one allocation and its replacements. Only after changes it; the agent
// performs the actions.
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
type life struct {
	phase   phase
	stopped bool
	how     interfaces.StopRequest // of the latest stop
	killed  bool
	detach  bool
	next    *api.Allocation // the accepted replacement; nil for none
	alloc   *api.Allocation // the first allocation, or the replacement whose turn it is

	text, nextText *api.JobSubmission // the texts of the jobs of alloc and next; nil when they are not known
}

// event is what happens to an agent.
type event struct {
	kind eventKind

	how       interfaces.StopRequest // of stop
	by        *api.Allocation        // of replace
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

// action is something that an agent does when its life changes.
type action int

const (
	killNow      action = iota // the runner skips every delay
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
func (l life) wanted() (interfaces.StopRequest, bool) {
	if l.stopped {
		return l.how, true
	}
	return interfaces.StopRequest{ReplacedBy: l.next}, l.next != nil
}

// after returns the life after an event, and the actions that the agent performs, in their order. An event that does
// not fit the phase changes nothing.
func (l life) after(e event) (life, []action) {
	switch {
	case e.kind == replace:
		return l.replace(e)
	case l.phase == over, l.phase == detached,
		e.kind == begun && l.phase != waiting, e.kind == ended && l.phase != running:
		return l, nil
	}
	switch e.kind {
	case begun:
		return l.begin()
	case stop:
		return l.stop(e.how)
	case kill:
		l.killed = true
		return l, l.ifRunning(killNow)
	case detach:
		return l.leave()
	}
	return l.end(e)
}

func (l life) ifRunning(a ...action) []action {
	if l.phase != running {
		return nil
	}
	return a
}

func (l life) begin() (life, []action) {
	l.phase = running
	var actions []action
	if l.detach {
		actions = append(actions, detachNow)
	}
	if l.killed {
		actions = append(actions, killNow)
	}
	if _, stops := l.wanted(); stops {
		actions = append(actions, stopRunner)
	}
	return l, actions
}

func (l life) stop(how interfaces.StopRequest) (life, []action) {
	var actions []action
	if !l.stopped {
		actions = append(actions, sayStopping)
	}
	l.stopped, l.how, l.next = true, how, nil
	return l, append(actions, l.ifRunning(stopRunner)...)
}

func (l life) leave() (life, []action) {
	var actions []action
	if !l.detach {
		actions = append(actions, sayDetaching)
	}
	l.detach = true
	return l, append(actions, l.ifRunning(detachNow)...)
}

func (l life) replace(e event) (life, []action) {
	if l.phase != running || l.stopped || l.detach || e.ending && l.next == nil {
		return l, []action{refuse}
	}
	l.next, l.nextText = e.by, e.text
	return l, []action{stopRunner}
}

func (l life) end(e event) (life, []action) {
	next := l.next
	switch {
	case !e.terminal:
		l.phase = detached
		return l, nil
	case l.stopped || e.cancelled:
		l.phase, l.next = over, nil
		return l, []action{finish}
	case next == nil:
		l.phase = over
		return l, nil
	case l.detach:
		l.phase, l.alloc, l.next = detached, next, nil
		return l, []action{recreate, sayLeftNext}
	}
	l.phase, l.alloc, l.next = waiting, next, nil
	l.text, l.nextText = l.nextText, nil
	return l, []action{recreate}
}
