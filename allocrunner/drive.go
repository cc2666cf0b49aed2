package allocrunner

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/taskrunner"
)

// drive applies the group's order to its tasks until all are over.
func (r *Runner) drive(ctx context.Context) {
	stop, delay := ctx.Done(), (<-chan time.Time)(nil)
	kill := r.kill
	var ending lifecycle.Ending
	if r.Alloc().DesiredStatus == api.AllocDesiredStatusStop { // an earlier runner was told
		ending = lifecycle.Ending{Cause: lifecycle.Stopped}
		r.beginEnding()
	}
	sent := map[string]lifecycle.Cause{}
	for {
		d := lifecycle.Next(r.order, r.states(), ending)
		if d.Over && r.finish() {
			r.snapshots.markOver()
			return
		}
		if d.Ending.Cause != lifecycle.NotEnding && ending.Cause == lifecycle.NotEnding {
			r.beginEnding()
		}
		ending = d.Ending
		r.apply(d, sent)

		select {
		case <-r.changed:
		case <-stop:
			stop = nil
			r.snapshots.stop()
			r.beginEnding()
			delay = time.After(deref(r.group.ShutdownDelay))
		case <-delay:
			delay = nil
			if ending.Cause == lifecycle.NotEnding {
				ending = lifecycle.Ending{Cause: lifecycle.Stopped}
			}
		case <-kill:
			kill, stop, delay = nil, nil, nil
			r.snapshots.stop()
			r.beginEnding()
			ending = lifecycle.Ending{Cause: lifecycle.Aborted}
		}
	}
}

// apply opens gates and sends kills, each kill once for its cause.
func (r *Runner) apply(d lifecycle.Decision, sent map[string]lifecycle.Cause) {
	if len(d.Start) > 0 && !r.held() {
		r.resources.beforeStart()
		for _, name := range d.Start {
			r.task(name).Open()
		}
	}
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

// beginEnding is done once, before the first task of an ending group is killed: checks stop, and hooks hear of it.
func (r *Runner) beginEnding() {
	r.running.mu.Lock()
	was := r.running.ending
	r.running.ending = true
	r.running.mu.Unlock()
	if was {
		return
	}
	r.resources.checks.Stop()
	for _, hook := range r.cfg.Hooks {
		if h, ok := hook.(interfaces.RunnerPreKillHook); ok {
			h.PreKill()
		}
	}
}
