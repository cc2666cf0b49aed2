package allocrunner

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/taskrunner"
)

// drive applies the group's order to its tasks until all are over, or until they are left to another runner.
func (r *Runner) drive(ctx context.Context) (left bool) {
	stop, kill := ctx.Done(), r.kill.asked
	var ending lifecycle.Ending
	var delay <-chan time.Time // the group's shutdown_delay, while it runs
	sent := map[string]lifecycle.Cause{}
	for {
		if ending.Cause == lifecycle.NotEnding && r.stopRequested() {
			ending = lifecycle.Ending{Cause: lifecycle.Stopped}
		}
		d := lifecycle.Next(r.order(), r.states(), ending)
		if d.Over && r.finish() {
			r.snapshots.markOver()
			r.updated()
			return false
		}
		if d.Ending.Cause != lifecycle.NotEnding {
			switch first, may := r.beginEnding(d.Ending); {
			case !may:
				d = lifecycle.Decision{}
			case first:
				r.preKill() // what others reach the tasks by goes before the first of them
				if delay = r.shutdownDelay(d.Ending); delay != nil {
					d.Ending.Delayed, d.Kill = true, nil
				}
			}
		}
		ending = d.Ending
		r.apply(d, sent)

		select {
		case <-r.changed:
		case <-stop:
			stop = nil
			r.requestStop()
		case <-delay:
			delay, ending.Delayed = nil, false
		case <-kill:
			kill, stop, delay = nil, nil, nil
			r.requestStop()
			ending = lifecycle.Ending{Cause: lifecycle.Aborted}
		case <-r.leave.asked:
			r.setLeft()
			return true
		}
	}
}

func (r *Runner) stopRequested() bool { return r.Alloc().DesiredStatus == api.AllocDesiredStatusStop }

// shutdownDelay starts the group's shutdown_delay: between its leaving the registry and the first kill. Nil without one.
func (r *Runner) shutdownDelay(e lifecycle.Ending) <-chan time.Time {
	d := deref(r.group().ShutdownDelay)
	if d <= 0 || e.Cause == lifecycle.Aborted {
		return nil
	}
	return time.After(d)
}

// apply opens gates and sends kills, each kill once for its cause.
func (r *Runner) apply(d lifecycle.Decision, sent map[string]lifecycle.Cause) {
	r.open(d.Start)
	for _, name := range d.Kill {
		if sent[name] == d.Ending.Cause {
			continue
		}
		sent[name] = d.Ending.Cause
		r.task(name).Kill(killReason(d.Ending), d.Ending.Cause == lifecycle.Aborted)
	}
}

// killReason is the event that tells a task why it is killed; a stop is told by Killing alone.
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
