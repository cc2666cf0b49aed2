package allocrunner

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/taskrunner"
)

// course is what drive has decided so far.
type course struct {
	ending lifecycle.Ending
	delay  <-chan time.Time // the group's shutdown_delay, while it runs
	sent   map[string]order // how each task has been told to end
	left   bool             // only poststop tasks are left, and the group's services are gone
}

// order is how a task is told to end.
type order struct {
	cause lifecycle.Cause
	mode  taskrunner.KillMode
}

// drive applies the group's order to its tasks until all are over, or until they are left to another runner.
func (r *Runner) drive(ctx context.Context) (left bool) {
	stop, kill := ctx.Done(), r.kill.asked
	c := course{sent: map[string]order{}}
	for !r.step(&c) {
		select {
		case <-r.changed:
		case <-stop:
			stop = nil
			r.stopUnlessAsked()
		case <-c.delay:
			c.delay, c.ending.Delayed = nil, false
		case <-kill:
			kill, stop, c.delay = nil, nil, nil
			r.stopUnlessAsked()
			c.ending = lifecycle.Ending{Cause: lifecycle.Aborted}
		case <-r.leave.asked:
			r.setLeft()
			return true
		}
	}
	r.snapshots.markOver()
	r.updated()
	return false
}

// step does what is to be done now, and reports whether nothing is left to do.
func (r *Runner) step(c *course) (over bool) {
	if c.ending.Cause == lifecycle.NotEnding && r.stopRequested() {
		c.ending = lifecycle.Ending{Cause: lifecycle.Stopped}
	}
	if r.noShutdownDelay() {
		c.delay, c.ending.Delayed = nil, false
	}
	order, states := r.order(), r.states()
	d := lifecycle.Next(order, states, c.ending)
	if d.Over && r.finish() {
		return true
	}
	if left := lifecycle.Ended(order, states); left != c.left {
		c.left = left
		r.checks.groupEnded(left)
	}
	if d.Ending.Cause != lifecycle.NotEnding {
		switch first, may := r.beginEnding(d.Ending); {
		case !may:
			return false
		case first:
			r.preKill() // what others reach the tasks by goes before the first of them
			if c.delay = r.shutdownDelay(d.Ending); c.delay != nil {
				d.Ending.Delayed, d.Kill = true, nil
			}
		}
	}
	c.ending = d.Ending
	r.apply(d, c.sent)
	return false
}

// stopUnlessAsked has the allocation end. Somebody who has asked for that has said how.
func (r *Runner) stopUnlessAsked() {
	if !r.stopRequested() {
		r.requestStop(interfaces.StopRequest{})
	}
}

func (r *Runner) stopRequested() bool { return r.Alloc().DesiredStatus == api.AllocDesiredStatusStop }

// shutdownDelay starts the group's shutdown_delay: between its leaving the registry and the first kill. Nil without one. One that an
// earlier runner has begun goes on: the wall clock, which is all that two processes share, can't lengthen it.
func (r *Runner) shutdownDelay(e lifecycle.Ending) <-chan time.Time {
	d := deref(r.group().ShutdownDelay)
	if d <= 0 || e.Cause == lifecycle.Aborted || r.noShutdownDelay() {
		return nil
	}
	if saved := r.cfg.Saved; saved != nil && !saved.KillAfter.IsZero() {
		return time.After(min(time.Until(saved.KillAfter), d))
	}
	r.journal.killsAfter(time.Now().Add(d))
	return time.After(d)
}

// noShutdownDelay reports that whoever asked for the end does not want to wait for shutdown_delay.
func (r *Runner) noShutdownDelay() bool {
	return r.Alloc().DesiredTransition.ShouldIgnoreShutdownDelay()
}

// apply opens gates and sends kills, each kill once.
func (r *Runner) apply(d lifecycle.Decision, sent map[string]order) {
	r.open(d.Start)
	kill := order{cause: d.Ending.Cause}
	switch {
	case d.Ending.Cause == lifecycle.Aborted:
		kill.mode = taskrunner.AtOnce
	case r.noShutdownDelay():
		kill.mode = taskrunner.NoShutdownDelay
	}
	for _, name := range d.Kill {
		if sent[name] == kill {
			continue
		}
		sent[name] = kill
		reason := killReason(d.Ending)
		if d.Ending.Cause == lifecycle.Stopped && lifecycle.LeaderEnded(r.order(), r.states()) {
			reason = taskrunner.LeaderDeadEvent()
		}
		r.task(name).Kill(reason, kill.mode)
	}
}

// killReason is the event that tells a task why it is killed; a stop is told by Killing alone, unless a leader has ended for it before.
func killReason(e lifecycle.Ending) *api.TaskEvent {
	switch e.Cause {
	case lifecycle.LeaderDead:
		return taskrunner.LeaderDeadEvent()
	case lifecycle.SiblingFailed:
		return taskrunner.SiblingFailedEvent(e.Task)
	case lifecycle.MainTasksDead:
		return taskrunner.MainTasksDeadEvent()
	}
	return nil
}
