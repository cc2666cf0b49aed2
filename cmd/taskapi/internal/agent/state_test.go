package agent

import (
	"fmt"
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

var (
	gracefully = interfaces.StopRequest{}
	sooner     = interfaces.StopRequest{NoShutdownDelay: true}
	second     = &api.Allocation{Name: "second"}
	third      = &api.Allocation{Name: "third"}
)

// everyEvent is each kind of event with each of its values that matter.
var everyEvent = []event{
	{kind: begun},
	{kind: stop, how: gracefully},
	{kind: stop, how: sooner},
	{kind: kill},
	{kind: detach},
	{kind: replace, by: second},
	{kind: replace, by: third},
	{kind: replace, by: second, ending: true},
	{kind: ended, terminal: true},
	{kind: ended, terminal: true, cancelled: true},
	{kind: ended},
}

// story is what a sequence of events comes to, as somebody sees it who keeps the requests and performs the effects.
type story struct {
	state  state
	events []event

	// What was requested.
	stopped  *interfaces.StopRequest // the latest stop
	killed   bool
	detached bool
	accepted *api.Allocation // the latest replacement that was not refused, and is not begun or concluded yet

	// What the runner at work got, and what is saved.
	toStop   *interfaces.StopRequest
	toKill   bool
	toDetach bool
	begins   *api.Allocation // saved as what is to begin
	finished bool            // saved that nothing follows
}

func (s story) next(e event) (story, []effect) {
	s.events = append(slices.Clone(s.events), e)
	was := s.state
	var effects []effect
	s.state, effects = was.next(e)
	if e.kind != replace && (was.phase == over || was.phase == detached) {
		return s, effects
	}
	switch e.kind {
	case begun:
		if was.phase == waiting {
			s.toStop, s.toKill, s.toDetach, s.begins = nil, false, false, nil
		}
	case stop:
		s.stopped, s.accepted = &e.how, nil
	case kill:
		s.killed = true
	case detach:
		s.detached = true
	case replace:
		if !slices.Contains(effects, refuse) {
			s.accepted = e.by
		}
	}
	for _, do := range effects {
		switch do {
		case stopRunner:
			how, _ := s.state.wanted()
			s.toStop = &how
		case killNow:
			s.toKill = true
		case detachNow:
			s.toDetach = true
		case recreate:
			s.begins, s.accepted = s.state.alloc, nil
		case finish:
			s.finished, s.accepted = true, nil
		}
	}
	return s, effects
}

// wrong returns what an event and its effects break of what is promised, empty for nothing.
func (s story) wrong(was story, effects []effect) string {
	e, l := s.events[len(s.events)-1], s.state
	ends := e.kind == ended && was.state.phase == running
	needsRunner := slices.ContainsFunc(effects, func(a effect) bool {
		return a == killNow || a == detachNow || a == stopRunner
	})
	switch {
	case was.state.phase >= over && (len(effects) > 0 && e.kind != replace || l != was.state):
		return "something happens after the end"
	case needsRunner && l.phase != running:
		return "no runner could answer"
	case l.phase == running && s.stopped != nil && (s.toStop == nil || *s.toStop != *s.stopped):
		return "the runner does not stop as was requested last"
	case l.phase == running && s.accepted != nil && (s.toStop == nil || s.toStop.ReplacedBy == nil):
		return "a replacement was accepted, and the runner does not stop for it"
	case l.phase == running && s.killed != s.toKill:
		return fmt.Sprintf("killed: requested %v, the runner got %v", s.killed, s.toKill)
	case l.phase == running && s.detached != s.toDetach:
		return fmt.Sprintf("detached: requested %v, the runner got %v", s.detached, s.toDetach)
	case l.phase == running && s.stopped == nil && s.accepted == nil && s.toStop != nil:
		return "the runner stops, and nobody has requested that"
	case s.stopped != nil && was.stopped != nil && s.begins != was.begins && e.kind != begun:
		return "a replacement follows a stop"
	case was.accepted != nil && ends && e.terminal && !e.cancelled && s.begins != was.accepted:
		return "an accepted replacement is lost"
	case was.accepted != nil && ends && e.cancelled && !s.finished:
		return "a cancelled agent leaves a replacement behind"
	case was.stopped != nil && ends && e.terminal && !s.finished:
		return "a stop leaves what an earlier request has saved to follow"
	case was.accepted != nil && e.kind == replace && s.accepted == nil:
		return "a replacement that is refused undoes another"
	case e.kind == replace && !slices.Contains(effects, refuse) &&
		(s.stopped != nil || s.detached || was.state.phase != running):
		return "a replacement is accepted that can't be had"
	case s.begins != nil && s.begins != was.begins && s.detached != (l.phase == detached):
		return "a replacement begins here exactly when nobody has requested a detach"
	case ends && l.phase == running:
		return "the end of the runner is ignored"
	case ends && l.phase == detached && e.terminal && s.begins == nil:
		return "an allocation that has ended is left to another agent"
	case l.phase == over && s.begins != nil && s.begins != was.begins:
		return "it has ended, and something is to begin"
	}
	return ""
}

// walk follows every story that continues from s by up to so many events.
func walk(t *testing.T, s story, events int) (stories int) {
	if events == 0 {
		return 1
	}
	stories = 1
	for _, e := range everyEvent {
		next, effects := s.next(e)
		if wrong := next.wrong(s, effects); wrong != "" {
			t.Fatalf("%s\nevents %+v\nstate %+v\nactions %v", wrong, next.events, next.state, effects)
		}
		if next.state == s.state && len(effects) == 0 { // what follows follows without it, too
			stories++
			continue
		}
		stories += walk(t, next, events-1)
	}
	return stories
}

// TestEverySequence holds the agent's state to its promises through every sequence of events, from every way in which
// it may begin.
func TestEverySequence(t *testing.T) {
	const events = 6
	stories := walk(t, story{}, events)
	for _, first := range []story{
		{stopped: &gracefully, state: state{stopped: true}},
		{stopped: &sooner, killed: true, state: state{stopped: true, how: sooner, killed: true}},
		{accepted: second, state: state{replacement: second}},
	} {
		stories += walk(t, first, events-1)
	}
	if stories < 10_000 {
		t.Errorf("%d sequences only", stories)
	}
}

// TestAnEndWithARequest: what is said and saved when an allocation ends that was to be replaced, stopped or detached.
func TestAnEndWithARequest(t *testing.T) {
	for _, tc := range []struct {
		name   string
		before []event
		end    event
		phase  phase
		want   []effect
	}{
		{"by itself", nil, event{kind: ended, terminal: true}, over, nil},
		{"for a replacement", []event{{kind: replace, by: second}}, event{kind: ended, terminal: true},
			waiting, []effect{recreate}},
		{"for a replacement, and a detach", []event{{kind: replace, by: second}, {kind: detach}},
			event{kind: ended, terminal: true}, detached, []effect{recreate, sayLeftNext}},
		{"for a replacement, and a stop", []event{{kind: replace, by: second}, {kind: stop}},
			event{kind: ended, terminal: true}, over, []effect{finish}},
		{"for a replacement, cancelled", []event{{kind: replace, by: second}},
			event{kind: ended, terminal: true, cancelled: true}, over, []effect{finish}},
		{"detached", []event{{kind: detach}}, event{kind: ended}, detached, nil},
		{"detached too late", []event{{kind: detach}}, event{kind: ended, terminal: true}, over, nil},
		{"not taken over", nil, event{kind: ended}, detached, nil},
	} {
		l, _ := state{}.next(event{kind: begun})
		for _, e := range tc.before {
			l, _ = l.next(e)
		}
		l, effects := l.next(tc.end)
		if l.phase != tc.phase || !slices.Equal(effects, tc.want) {
			t.Errorf("%s: phase %v, effects %v; want %v, %v", tc.name, l.phase, effects, tc.phase, tc.want)
		}
	}
}
