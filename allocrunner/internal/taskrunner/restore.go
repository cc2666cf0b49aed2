package taskrunner

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/driver"
	"taskapi/allocrunner/internal/restarts"
)

// Saved is what another runner has to know to go on with the task.
func (r *Runner) Saved() interfaces.SavedTask { return r.record.saved() }

// resumption is how a task goes on that an earlier runner had.
type resumption struct {
	machine machine
	process bool          // the supervisor has its process, which may have ended by now
	first   any           // what happens to the machine next; nil for nothing, or for the end of the process
	wait    time.Duration // of a restart delay, what is left of it
}

// resume decides how a task goes on. startedAt is the latest start that was written down; known is the latest process that the
// supervisor has of the task, nil for none. The supervisor's word is newer than what was written down.
func resume(saved interfaces.SavedTask, startedAt time.Time, known *driver.Status, now time.Time) resumption {
	res := resumption{machine: machine{
		phase:   phaseNamed(saved.Phase),
		failed:  saved.Failed,
		setUp:   saved.SetUp,
		tracker: restarts.Tracker{Start: saved.IntervalStart, Count: saved.Attempts},
	}}
	m := &res.machine
	untold := known != nil && (known.Exit == nil || known.StartedAt.After(startedAt))
	switch {
	case m.hasProcess(): // whether it still is, Wait will say; a kill that was under way is decided anew by the group
		m.phase, res.process = running, true
		if saved.Restarting {
			res.first = restarted{"restart was under way"}
		}
	case untold: // it was started after the last thing that was written down
		m.phase, m.setUp, res.process = starting, true, true
		res.first = started{}
	case m.phase == starting: // it never came to a process
		m.phase, res.first = backoff, elapsed{}
	case m.phase == backoff:
		res.wait = max(saved.Due.Sub(now), time.Nanosecond)
	}
	return res
}

// Restore puts the task where an earlier runner left it, instead of Receive. known is the latest process that the supervisor has of
// it, nil for none.
func (r *Runner) Restore(saved interfaces.SavedTask, state *api.TaskState, known *driver.Status) {
	if state != nil {
		r.record.restore(state)
	}
	res := resume(saved, r.record.startedAt(), known, time.Now())
	r.machine = res.machine
	r.record.set(r.machine, time.Now(), saved.Due)
	r.resumption = &res
}

// carryOn does the first step of a restored task, from the task's goroutine.
func (r *Runner) carryOn(ctx context.Context) {
	res := r.resumption
	switch {
	case res == nil:
	case res.process:
		r.effects.Go(func() { r.rejoin(ctx) })
	case res.wait > 0:
		r.timer.Reset(res.wait)
	case res.first != nil:
		r.handle(ctx, res.first)
	}
}

// rejoin gives a process that outlived its runner what the hooks have for it, such as a socket, and waits for its end.
func (r *Runner) rejoin(ctx context.Context) {
	if req, err := r.cfg.Starter.Prepare(ctx); err != nil {
		r.logger.Warn("a running task's directory can't be prepared", "error", err)
	} else {
		req.Lifecycle = r
		if _, failed := r.runPrestart(ctx, req); failed != nil {
			r.logger.Warn("a running task is taken over without what a hook has for it", "error", failed.event.DisplayMessage)
		}
	}
	if r.resumption.first != nil {
		r.postFromEffect(r.resumption.first)
	}
	if _, begins := r.resumption.first.(started); !begins { // started brings its own watch
		r.watch(ctx)
	}
}
