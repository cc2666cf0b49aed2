package allocrunner

import (
	"fmt"
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/taskrunner"
)

// groupModel is an allocation's state with what its effects have done to a group of tasks, and whether the machine it
// runs on still has an earlier runner's restart of all tasks to complete.
type groupModel struct {
	state     state
	tasks     [2]lifecycle.State
	killed    [2]int  // by this runner: 1 + the mode
	doomed    [2]bool // by any runner: a restart does not take it back
	preKilled bool
	delayed   bool // the group's shutdown_delay has begun
	resetting bool
	resumed   bool
}

var sequenceGroups = map[string][2]lifecycle.Task{
	"leader, poststop":   {{Name: "a", Leader: true}, {Name: "b", Hook: lifecycle.Poststop}},
	"sidecar, leader":    {{Name: "a", Hook: lifecycle.Prestart, Sidecar: true}, {Name: "b", Leader: true}},
	"sidecar, poststop":  {{Name: "a", Hook: lifecycle.Prestart, Sidecar: true}, {Name: "b", Hook: lifecycle.Poststop}},
	"two equals":         {{Name: "a"}, {Name: "b"}},
	"prestart, main":     {{Name: "a", Hook: lifecycle.Prestart}, {Name: "b"}},
	"main and poststart": {{Name: "a"}, {Name: "b", Hook: lifecycle.Poststart, Sidecar: true}},
}

// TestEverySequenceOfEvents goes through every state that any sequence of events can lead to, crashes included, and
// looks at each transition. Starting from what has been seen already leads nowhere new, so the sequences have any
// length.
func TestEverySequenceOfEvents(t *testing.T) {
	t.Parallel()
	for name, group := range sequenceGroups {
		for _, delays := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, shutdown_delay %v", name, delays), func(t *testing.T) {
				t.Parallel()
				w := walk{t: t, group: group[:], delays: delays, seen: map[position]bool{}}
				w.visit(groupModel{})
				for len(w.todo) > 0 && !t.Failed() {
					from := w.todo[0]
					w.todo = w.todo[1:]
					w.leave(from)
				}
				t.Logf("%d states", len(w.seen))
			})
		}
	}
}

type walk struct {
	t      *testing.T
	group  []lifecycle.Task
	delays bool
	seen   map[position]bool
	todo   []groupModel
}

// position is a groupModel to be compared.
type position struct {
	phase           phase
	ending          lifecycle.Ending
	mode            taskrunner.KillMode
	stopped, detach bool
	restarts        int
	ended           bool
	sent            [2]int
	tasks           [2]lifecycle.State
	killed          [2]int
	doomed          [2]bool
	flags           [4]bool
}

func (w *walk) positionOf(to groupModel) position {
	s := to.state
	p := position{
		s.phase, s.ending, s.mode, s.stopped, s.detach, s.restarts, s.ended, [2]int{}, to.tasks, to.killed, to.doomed,
		[4]bool{to.preKilled, to.delayed, to.resetting, to.resumed},
	}
	for i, task := range w.group {
		if mode, sent := s.sent[task.Name]; sent {
			p.sent[i] = 1 + int(mode)
		}
	}
	return p
}

func (w *walk) visit(to groupModel) {
	if position := w.positionOf(to); !w.seen[position] {
		w.seen[position] = true
		w.todo = append(w.todo, to)
	}
}

// leave visits all that can follow: each event, each thing that a task can do, and a crash.
func (w *walk) leave(from groupModel) {
	events := []event{
		setUpBegun{}, setUpFailed{leaves: from.resumed}, tasksReceived(
			w.look(from)), stopRequested{}, stopRequested{noShutdownDelay: true}, killRequested{},
		detachRequested{}, w.look(from),
	}
	if from.delayed {
		events = append(events, delayOver{})
	}
	if from.state.restarts < 2 {
		events = append(events, restartRequested{})
	}
	for _, e := range events {
		w.visit(w.step(from, e))
	}
	if from.state.restarts > 0 {
		w.visit(w.step(w.reset(from), restartEnded{}))
	}
	if from.state.phase == terminal {
		return
	}
	for i, task := range w.group {
		for _, becomes := range moves(task, from.tasks[i].Phase, from.doomed[i]) {
			moved := from
			moved.tasks[i] = becomes
			w.visit(moved)
		}
	}
	w.visit(w.crash(from))
	if from.resetting {
		w.visit(w.completeReset(from))
	}
}

func (w *walk) look(from groupModel) groupChanged {
	states := map[string]lifecycle.State{}
	for i, task := range w.group {
		states[task.Name] = from.tasks[i]
	}
	return groupChanged{Group: lifecycle.Group{Tasks: w.group, States: states}, delays: w.delays,
		resetting: from.resetting}
}

// moves returns what a task can become by itself, or by being killed.
func moves(task lifecycle.Task, phase lifecycle.Phase, killed bool) []lifecycle.State {
	var next []lifecycle.State
	switch phase {
	case lifecycle.Pending:
		next = []lifecycle.State{{Phase: lifecycle.Running}, {Phase: lifecycle.Dead, Failed: true}}
	case lifecycle.Running:
		next = []lifecycle.State{{Phase: lifecycle.Pending}, {Phase: lifecycle.Dead, Failed: true}}
	}
	if killed || phase == lifecycle.Running && !task.Sidecar {
		next = append(next, lifecycle.State{Phase: lifecycle.Dead})
	}
	return next
}

// reset ends a restart of all tasks: those that were not killed wait for their gates.
func (w *walk) reset(from groupModel) groupModel {
	for i := range from.tasks {
		if !from.doomed[i] {
			from.tasks[i] = lifecycle.State{}
		}
	}
	return from
}

// completeReset ends what an earlier runner's restart of all tasks was ending: the dead it had taken back at once.
func (w *walk) completeReset(from groupModel) groupModel {
	for i, task := range from.tasks {
		if task.Phase != lifecycle.Dead && !from.doomed[i] {
			from.tasks[i] = lifecycle.State{}
		}
	}
	from.resetting = false
	return from
}

// crash begins another runner, which knows what was saved.
func (w *walk) crash(from groupModel) groupModel {
	alloc := &api.Allocation{DesiredStatus: api.AllocDesiredStatusRun}
	if from.state.stopped {
		alloc.DesiredStatus = api.AllocDesiredStatusStop
		alloc.DesiredTransition.NoShutdownDelay = new(from.state.mode == taskrunner.NoShutdownDelay)
	}
	return groupModel{state: newState(alloc, false), tasks: from.tasks, doomed: from.doomed, resetting: from.resetting ||
		from.state.restarts > 0, resumed: true}
}

// step makes a transition, and does what its effects do. It holds each against the rules.
func (w *walk) step(from groupModel, e event) groupModel {
	to := from
	var effects []effect
	to.state, effects = from.state.next(e)
	fail := func(rule string) {
		w.t.Errorf("%s\n  from %+v\n event %T%+v\n    to %+v\neffects %+v", rule, from, e, e, to.state, effects)
	}
	was, is := from.state, to.state
	gone := was.phase == terminal || was.phase == detached
	switch {
	case gone && (len(effects) > 0 || w.positionOf(from) != w.positionOf(to)):
		fail("something follows the end, or the detachment")
	case is.phase < was.phase:
		fail("the phase goes back")
	case is.mode < was.mode:
		fail("a kill became weaker")
	case was.stopped && !is.stopped:
		fail("a request was forgotten")
	case was.ending.Cause != lifecycle.NotEnding && is.ending.Cause != was.ending.Cause &&
		is.ending.Cause != lifecycle.Aborted:
		fail("the cause of the end has changed")
	case is.detach && (is.phase == running || is.phase == ending):
		fail("a detachment was forgotten")
	case is.mode > taskrunner.Graceful && is.ending.Delayed:
		fail("a kill without delays waits for one")
	case (is.stopped || is.phase != running) && is.live():
		fail("an allocation that is to end, or does not run, is live")
	}
	if is.phase == terminal && was.begun() &&
		!gone != slices.ContainsFunc(effects, func(a effect) bool { return a == finish{} }) {
		fail("the end is shown once")
	}
	for _, e := range effects {
		w.perform(&to, e, fail)
	}
	if _, looked := e.(groupChanged); looked && (is.phase == running || is.phase == ending) {
		w.moving(to, effects, fail)
	}
	return to
}

func (w *walk) perform(to *groupModel, e effect, fail func(string)) {
	s := to.state
	switch e := e.(type) {
	case openGates:
		for i, task := range w.group {
			switch {
			case !slices.Contains(e.tasks, task.Name):
				continue
			case to.tasks[i].Phase != lifecycle.Waiting:
				fail("what has started is started again")
			case s.restarts > 0 || to.resetting:
				fail("a gate opens while all tasks are restarted")
			case s.ending.Cause != lifecycle.NotEnding && task.Hook != lifecycle.Poststop:
				fail("a start while the allocation ends")
			case s.ending.Cause == lifecycle.Aborted:
				fail("a start after a kill without any delay")
			}
			to.tasks[i].Phase = lifecycle.Pending
		}
	case callPreKill:
		if to.preKilled || s.phase != ending {
			fail("pre-kill hooks are called twice, or without an end")
		}
		to.preKilled = true
	case armDelay:
		if to.delayed || !w.delays || s.mode != taskrunner.Graceful {
			fail("a delay that nobody wants, or a second one")
		}
		to.delayed = true
	case killTask:
		i := slices.IndexFunc(w.group, func(t lifecycle.Task) bool { return t.Name == e.task })
		switch {
		case !to.preKilled || s.phase != ending || s.ending.Delayed:
			fail("a kill without an end, before its hooks, or in its delay")
		case to.killed[i] > int(e.mode):
			fail("the same kill, or a weaker one, a second time")
		case e.mode != s.mode:
			fail("a kill of another mode than the allocation's")
		case to.tasks[i].Phase == lifecycle.Dead:
			fail("the dead are killed")
		}
		to.killed[i], to.doomed[i] = 1+int(e.mode), true
	case lastIntervals:
		if !s.stopped || s.phase < running {
			fail("nobody has requested the end")
		}
	case finish:
		if s.restarts > 0 ||
			slices.ContainsFunc(to.tasks[:], func(t lifecycle.State) bool { return t.Phase != lifecycle.Dead }) {
			fail("an end with a task that lives, or begins again")
		}
	}
}

// moving holds what drive has done against what must never stand still.
func (w *walk) moving(to groupModel, effects []effect, fail func(string)) {
	s := to.state
	moves := s.restarts > 0 || to.resetting || s.ending.Delayed || s.phase == terminal
	for i, task := range to.tasks {
		alive := task.Phase != lifecycle.Dead
		moves = moves || task.Phase == lifecycle.Pending || task.Phase == lifecycle.Running
		if s.mode == taskrunner.AtOnce && alive && to.killed[i] != 1+int(taskrunner.AtOnce) {
			fail("a kill without any delay does not reach a task at once")
		}
		moves = moves || alive && to.killed[i] > 0
	}
	if !moves {
		fail("nothing moves, and it is not over")
	}
	if s.phase == running && s.stopped {
		fail("a request to end has no effect")
	}
}
