package allocrunner

import (
	"maps"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/taskrunner"
)

// phase is how far an allocation is.
//
//	            Run            tasks received           a cause to end           every task dead
//	received ───────> settingUp ─────────────> running ────────────────> ending ────────────────> terminal
//	                      │                     │   │                      │                       ^    ^
//	                      │ set-up failed       │   └──────────────────────┼───────────────────────┘    │
//	                      ├─────────────────────┼──────────────────────────┼─── every task dead ────────┘
//	                      │                     │ detach                   │ detach
//	                      │                     v                          v
//	                      └────────────────> detached <────────────────────┘
//	                        detach, or the set-up of a resumed allocation failed
//
// A runner of an allocation that was saved begins with received as well, or with terminal. Requests from before the
// tasks have been received take effect when they are; a stop and a detach also end the prerun hooks.
type phase int

const (
	received  phase = iota // Run has not been called
	settingUp              // resources are acquired, hooks called
	running                // the tasks follow the group's order
	ending                 // pre-kill hooks have been called; shutdown_delay, kills, poststop tasks
	terminal               // no task runs or ever will
	detached               // the tasks are another runner's
)

// state is everything that the transitions of an allocation remember, as plain data. Only next changes it.
type state struct {
	phase   phase
	ending  lifecycle.Ending    // why it ends; known before the phase is ending, when it was requested
	mode    taskrunner.KillMode // how tasks are killed
	stopped bool                // somebody requested the end; it did not come by itself
	detach  bool                // requested during the set-up
	// restarts of all tasks under way: no gate opens, and dead tasks are no cause to end
	restarts int
	ended    bool                           // only poststop tasks are left
	sent     map[string]taskrunner.KillMode // the latest kill of each task; replaced, not changed
}

// newState returns the state of an allocation as it is created, or as it was saved.
func newState(alloc *api.Allocation, hasEnded bool) state {
	var s state
	if alloc.DesiredStatus == api.AllocDesiredStatusStop {
		s, _ = s.next(stopRequested{alloc.DesiredTransition.ShouldIgnoreShutdownDelay()})
	}
	if hasEnded {
		s.phase = terminal
	}
	return s
}

// live reports whether the tasks have been received and are not to end.
func (s state) live() bool { return s.phase == running && s.ending.Cause == lifecycle.NotEnding }

// begun reports whether hooks and tasks have received the allocation.
func (s state) begun() bool { return s.phase >= running }

// interrupts reports whether the set-up calls no more prerun hooks.
func (s state) interrupts() bool { return s.stopped || s.detach }

// event is a request to an allocation, or something that has happened to it: one of these types.
type event any

type (
	setUpBegun       struct{}
	setUpFailed      struct{ leaves bool } // leaves: tasks may run, or another runner is to begin them
	tasksReceived    groupChanged
	stopRequested    struct{ noShutdownDelay bool }
	killRequested    struct{}
	detachRequested  struct{}
	restartRequested struct { // of all tasks or, for an update, of those that it names
		reply  chan<- error
		update *taskUpdate
	}
	restartEnded struct{}
	delayOver    struct{} // the group's shutdown_delay

	// groupChanged has the present state of the group. It also follows every other event.
	groupChanged struct {
		lifecycle.Group
		delays    bool // the group has a shutdown_delay
		resetting bool // processes that an earlier runner's restart of all tasks stops are not gone yet
	}
)

// effect is something that Runner does when the state changes: one of these types.
type effect any

type (
	openGates     struct{ tasks []string }
	endServices   struct{ ended bool } // of the group; or begin them again, when all tasks were restarted
	callPreKill   struct{}             // hooks
	armDelay      struct{}             // the group's shutdown_delay; ends in delayOver
	lastIntervals struct{}             // a stop does not wait for another interval of a poststop task's restart policy
	restartTasks  restartRequested
	finish        struct{} // show that the allocation is terminal
	killTask      struct {
		task string
		why  lifecycle.Ending
		mode taskrunner.KillMode
	}
)

// next returns the state after an event, and the effects that Runner performs, in their order. An event that does not
// fit the phase changes nothing.
func (s state) next(e event) (state, []effect) {
	if s.phase == terminal || s.phase == detached {
		return s, nil
	}
	switch e := e.(type) {
	case setUpBegun:
		s.phase = max(s.phase, settingUp)
	case setUpFailed:
		if s.begun() {
			return s, nil
		}
		s.phase = terminal
		if e.leaves {
			s.phase = detached
		}
	case tasksReceived:
		return s.receive(groupChanged(e))
	case stopRequested:
		return s.stop(e)
	case killRequested:
		s.ending, s.mode, s.stopped = lifecycle.Ending{Cause: lifecycle.Aborted}, taskrunner.AtOnce, true
	case detachRequested:
		s.detach = true
		if s.begun() {
			s.phase = detached
		}
	case delayOver:
		s.ending.Delayed = false
	case restartRequested:
		if s.live() {
			s.restarts++
			return s, []effect{restartTasks(e)}
		}
	case restartEnded:
		s.restarts--
	case groupChanged:
		if s.begun() {
			return s.follow(e, nil)
		}
	}
	return s, nil
}

// receive begins to follow the group's order. If an earlier runner was ending the allocation, it continues to end and
// is never live.
func (s state) receive(g groupChanged) (state, []effect) {
	switch {
	case s.begun():
		return s, nil
	case s.detach:
		s.phase = detached
		return s, nil
	}
	s.phase = running
	var effects []effect
	if s.stopped {
		effects = append(effects, lastIntervals{})
	}
	return s.follow(g, effects)
}

// stop keeps the cause of an end that has begun by itself.
func (s state) stop(e stopRequested) (state, []effect) {
	if s.ending.Cause == lifecycle.NotEnding {
		s.ending.Cause = lifecycle.Stopped
	}
	if e.noShutdownDelay {
		s.mode, s.ending.Delayed = max(s.mode, taskrunner.NoShutdownDelay), false
	}
	first := !s.stopped
	s.stopped = true
	if first && s.begun() {
		return s, []effect{lastIntervals{}}
	}
	return s, nil
}

// follow applies the group's order.
func (s state) follow(g groupChanged, effects []effect) (state, []effect) {
	is, do := s.ending.Next(g.Group)
	if do.Done && s.restarts == 0 {
		s.phase = terminal
		return s, append(effects, finish{})
	}
	if ended := g.Ended(); ended != s.ended {
		s.ended = ended
		effects = append(effects, endServices{ended})
	}
	if s.restarts > 0 && !s.stopped && s.phase == running { // what has ended begins again with the others
		return s, effects
	}
	if s.ending = is; s.ending.Cause != lifecycle.NotEnding && s.phase == running {
		s.phase = ending
		effects = append(effects, callPreKill{}) // the services are deregistered before the first task is killed
		if g.delays && s.mode == taskrunner.Graceful {
			s.ending.Delayed, do.Kill = true, nil
			effects = append(effects, armDelay{})
		}
	}
	if len(do.Start) > 0 && s.restarts == 0 && !g.resetting {
		effects = append(effects, openGates{do.Start})
	}
	return s.kill(do.Kill, g, effects)
}

// kill sends each task one kill of each mode.
func (s state) kill(tasks []string, g groupChanged, effects []effect) (state, []effect) {
	why := s.ending
	if why.Cause == lifecycle.Stopped {
		why.Cause = g.StopCause()
	}
	sent := maps.Clone(s.sent)
	for _, name := range tasks {
		if mode, ok := sent[name]; ok && mode >= s.mode {
			continue
		}
		if sent == nil {
			sent = map[string]taskrunner.KillMode{}
		}
		sent[name] = s.mode
		effects = append(effects, killTask{name, why, s.mode})
	}
	s.sent = sent
	return s, effects
}
