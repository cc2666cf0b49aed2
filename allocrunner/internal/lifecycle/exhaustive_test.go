package lifecycle_test

import (
	"fmt"
	"slices"
	"testing"

	"taskapi/allocrunner/internal/lifecycle"
)

// kinds are all a task can be but for leading its group.
var kinds = []lifecycle.Task{
	{Hook: lifecycle.Main},
	{Hook: lifecycle.Prestart},
	{Hook: lifecycle.Prestart, Sidecar: true},
	{Hook: lifecycle.Poststart},
	{Hook: lifecycle.Poststart, Sidecar: true},
	{Hook: lifecycle.Poststop},
}

// shapes returns all groups of up to three tasks, each with any leader or none.
func shapes() [][]lifecycle.Task {
	var all [][]lifecycle.Task
	var grow func(group []lifecycle.Task)
	grow = func(group []lifecycle.Task) {
		if len(group) > 0 {
			for leader := range len(group) + 1 {
				shape := slices.Clone(group)
				if leader < len(group) {
					shape[leader].Leader = true
				}
				all = append(all, shape)
			}
		}
		if len(group) == 3 {
			return
		}
		for _, kind := range kinds {
			kind.Name = fmt.Sprint("t", len(group))
			grow(append(slices.Clone(group), kind))
		}
	}
	grow(nil)
	return all
}

// situation is how a group of at most three stands.
type situation struct {
	tasks  [3]lifecycle.State
	ending lifecycle.Ending
}

func (s situation) states(group []lifecycle.Task) map[string]lifecycle.State {
	states := map[string]lifecycle.State{}
	for i, t := range group {
		states[t.Name] = s.tasks[i]
	}
	return states
}

// TestEverySequence goes through every sequence of events of every group of up to three tasks, and looks at each
// decision.
func TestEverySequence(t *testing.T) {
	t.Parallel()
	for _, group := range shapes() {
		seen := map[situation]bool{{}: true}
		for todo := []situation{{}}; len(todo) > 0; todo = todo[1:] {
			for _, next := range decide(t, group, todo[0]) {
				if !seen[next] {
					seen[next] = true
					todo = append(todo, next)
				}
			}
			if t.Failed() {
				return
			}
		}
	}
}

// decide checks the decision on a situation and gives all situations that can follow: each thing that a task, the
// operator or a timer can do next.
func decide(t *testing.T, group []lifecycle.Task, s situation) []situation {
	states := s.states(group)
	d := next(group, states, s.ending)
	check(t, group, s, d)
	s.ending = d.Ending
	started := s
	for i, task := range group {
		if slices.Contains(d.Start, task.Name) {
			started.tasks[i].Phase = lifecycle.Pending
		}
	}
	next := []situation{started}
	for i := range group {
		for _, becomes := range moves(group[i], s.tasks[i].Phase, slices.Contains(d.Kill, group[i].Name)) {
			moved := s
			moved.tasks[i] = becomes
			next = append(next, moved)
		}
	}
	if s.ending.Cause == lifecycle.NotEnding {
		stopped, delayed := s, s
		stopped.ending = lifecycle.Ending{Cause: lifecycle.Stopped}
		delayed.ending = lifecycle.Ending{Cause: lifecycle.Stopped, Delayed: true}
		next = append(next, stopped, delayed)
	}
	aborted, awake := s, s
	aborted.ending = lifecycle.Ending{Cause: lifecycle.Aborted}
	awake.ending.Delayed = false
	return append(next, aborted, awake)
}

// moves returns what a task can become by itself, or by being killed. A sidecar that ends by itself is restarted, or
// has failed.
func moves(task lifecycle.Task, phase lifecycle.Phase, killed bool) []lifecycle.State {
	var next []lifecycle.State
	switch phase {
	case lifecycle.Pending:
		next = []lifecycle.State{{Phase: lifecycle.Running}, {Phase: lifecycle.Running, Unready: true},
			{Phase: lifecycle.Dead, Failed: true}}
	case lifecycle.Running: // ready at once, or by now
		next = []lifecycle.State{{Phase: lifecycle.Running}, {Phase: lifecycle.Pending},
			{Phase: lifecycle.Dead, Failed: true}}
	}
	if killed || len(next) > 0 && !task.Sidecar {
		next = append(next, lifecycle.State{Phase: lifecycle.Dead})
	}
	return next
}

// check holds a decision against the rules of the order, each in its own words.
func check(t *testing.T, group []lifecycle.Task, s situation, d decision) {
	t.Helper()
	fail := func(rule string) {
		t.Errorf("%s\n group %+v\nstates %+v\nending %+v\ndecision %+v", rule, group, s.tasks, s.ending, d)
	}
	alive := func(in func(lifecycle.Task) bool) bool {
		for i, task := range group {
			if in(task) && s.tasks[i].Phase != lifecycle.Dead {
				return true
			}
		}
		return false
	}
	notPoststop := func(t lifecycle.Task) bool { return t.Hook != lifecycle.Poststop }
	moving := len(d.Start) > 0 || len(d.Kill) > 0 || d.Ending.Delayed
	for i, task := range group {
		phase := s.tasks[i].Phase
		moving = moving || phase == lifecycle.Pending || phase == lifecycle.Running
		if slices.Contains(d.Start, task.Name) {
			switch {
			case phase != lifecycle.Waiting:
				fail("what has started is started again")
			case task.Hook == lifecycle.Poststop && alive(notPoststop):
				fail("poststop before all others are dead")
			case task.Hook != lifecycle.Poststop && d.Ending.Cause != lifecycle.NotEnding:
				fail("a start in a group that ends")
			case d.Ending.Cause == lifecycle.Aborted:
				fail("a start in a group that is aborted")
			case task.Hook == lifecycle.Main && !prestartDone(group, s):
				fail("main before prestart is done")
			case task.Hook == lifecycle.Poststart && anyMainPending(group, s):
				fail("poststart while a main task has not started")
			}
		}
		if slices.Contains(d.Kill, task.Name) {
			aborted := d.Ending.Cause == lifecycle.Aborted
			switch {
			case phase == lifecycle.Dead:
				fail("the dead are killed")
			case d.Ending.Cause == lifecycle.NotEnding || d.Ending.Delayed && !aborted:
				fail("a kill without an ending, or in its delay")
			case task.Hook == lifecycle.Poststop && !aborted:
				fail("a poststop task is killed by a stop")
			case !aborted && !task.Leader && alive(func(t lifecycle.Task) bool {
				return t.Leader && t.Hook != lifecycle.Poststop
			}):
				fail("another is killed before the leader is dead")
			case !aborted && !task.Leader && task.Sidecar && alive(func(t lifecycle.Task) bool {
				return notPoststop(t) && !t.Sidecar
			}):
				fail("a sidecar is killed before those that it serves are dead")
			}
		}
	}
	all := alive(func(lifecycle.Task) bool { return true })
	switch {
	case s.ending.Cause != lifecycle.NotEnding && d.Ending != s.ending:
		fail("an ending was changed")
	case d.Done && all:
		fail("over with a living task")
	case !d.Done && !all:
		fail("all are dead, and it is not over")
	case !d.Done && !moving:
		fail("nothing moves, and it is not over")
	}
}

func prestartDone(group []lifecycle.Task, s situation) bool {
	for i, task := range group {
		ready := s.tasks[i].Phase == lifecycle.Dead && !s.tasks[i].Failed
		if task.Sidecar {
			ready = s.tasks[i].Phase == lifecycle.Running && !s.tasks[i].Unready
		}
		if task.Hook == lifecycle.Prestart && !ready {
			return false
		}
	}
	return true
}

func anyMainPending(group []lifecycle.Task, s situation) bool {
	for i, task := range group {
		s := s.tasks[i]
		if task.Hook == lifecycle.Main && (s.Phase == lifecycle.Waiting || s.Phase == lifecycle.Pending || s.Unready) {
			return true
		}
	}
	return false
}
