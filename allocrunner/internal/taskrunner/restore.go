package taskrunner

import (
	"context"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/processes"
	"taskapi/allocrunner/internal/restarts"
)

// Saved is what another runner has to know to go on with the task.
func (r *Runner) Saved() interfaces.SavedTask { return r.record.saved() }

// resumption is how a task goes on that an earlier runner had.
type resumption struct {
	machine machine
	process bool          // the supervisor has its process, which may have ended by now
	ended   bool          // it has, for certain
	first   any           // what happens to the machine next; nil for nothing, or for the end of the process
	acts    []any         // what an earlier runner was about to do to the process
	wait    time.Duration // of the timer that was armed, what is left of it; 0 for none
}

// resume decides how a task goes on. known is the latest process that the supervisor has of the task, nil for none. The supervisor's
// word is newer than what was written down.
func (r rules) resume(saved interfaces.SavedTask, known *processes.Status, now time.Time) resumption {
	res := resumption{machine: machine{
		phase:   phaseNamed(saved.Phase),
		intent:  intentNamed(saved.Intent),
		failed:  saved.Failed,
		setUp:   saved.SetUp,
		tracker: restarts.Tracker{Start: earlier(saved.IntervalStart, now), Count: saved.Attempts},
	}}
	m := &res.machine
	res.ended = known != nil && known.Exit != nil
	switch {
	case untold(saved, known): // it was started after the last thing that was written down
		if m.hasProcess() && m.intent != kill {
			m.intent = none // what the process before was stopped for
		}
		m.phase, m.setUp, res.process = starting, true, true
		res.first = begun(known)
	case m.hasProcess(): // whether it still is, Wait will say
		res.process = true
		r.resumeStop(&res, saved.Due, now)
	case m.phase == starting && m.intent != none: // it was to be given up
		res.first = startFailed{}
	case m.phase == starting: // it never came to a process
		m.phase, res.first = backoff, elapsed{}
	case m.phase == backoff:
		res.wait = left(saved.Due, now, r.longestBackoff())
	}
	return res
}

// resumeStop goes on with the stop of a process that was under way. A process that ended before it was told is not told now.
func (r rules) resumeStop(res *resumption, due time.Time, now time.Time) {
	switch {
	case res.machine.phase == shutdownDelay:
		res.wait = left(due, now, r.shutdownDelay)
	case res.machine.phase == stopping && !res.ended:
		res.acts = []any{signal{r.killSignal}} // once more: it may not have been sent
		res.wait = left(due, now, r.killTimeout)
	}
}

func begun(s *processes.Status) started {
	return started{interfaces.Handle{PID: s.PID, StartedAt: s.StartedAt}, s.NoCgroup}
}

// untold reports whether the supervisor has a process of the task that nothing written down knows of.
func untold(saved interfaces.SavedTask, known *processes.Status) bool {
	return known != nil && (saved.Handle == nil || saved.Handle.PID != known.PID || !saved.Handle.StartedAt.Equal(known.StartedAt))
}

// left is what is left of a timer. Between two processes there is only the wall clock, which may have been set meanwhile: the
// longest that the timer can have been armed for bounds that.
func left(due, now time.Time, longest time.Duration) time.Duration {
	return max(min(due.Sub(now), longest), time.Nanosecond)
}

// earlier is the earlier of two times: a clock that was set back must not make an interval that began in the future.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// longestBackoff is how long a restart can be delayed at most.
func (r rules) longestBackoff() time.Duration { return max(r.policy.Interval, 2*r.policy.Delay) }

// Restore puts the task where an earlier runner left it, instead of Receive. known is the latest process that the supervisor has of
// it, nil for none.
func (r *Runner) Restore(saved interfaces.SavedTask, known *processes.Status) {
	now := time.Now()
	res := r.rules.resume(saved, known, now)
	r.machine = res.machine
	r.record.restore(saved, now)
	var timer any
	if res.wait > 0 {
		timer = arm{res.wait}
	}
	r.record.set(r.machine, now, timer)
	r.resumption = &res
}

// carryOn does the first step of a restored task, from the task's goroutine.
func (r *Runner) carryOn(ctx context.Context) {
	res := r.resumption
	if res == nil {
		return
	}
	if res.wait > 0 {
		r.timer.Reset(res.wait)
	}
	for _, a := range res.acts {
		r.do(ctx, a)
	}
	switch {
	case res.process:
		process := r.process()
		r.effects.Go(func() { r.rejoin(ctx, process) })
	case res.first != nil:
		r.handle(ctx, res.first)
	}
}

// rejoin gives a process that outlived its runner what the hooks have for it, such as a socket, and waits for its end.
func (r *Runner) rejoin(ctx context.Context, process processes.ProcessID) {
	if !r.resumption.ended {
		r.takeOver(ctx)
	}
	if r.resumption.first != nil {
		r.postFromEffect(r.resumption.first)
	}
	if _, begins := r.resumption.first.(started); !begins { // started brings its own watch
		r.watch(ctx, process)
	}
}

// takeOver runs the prestart hooks for a process that runs.
func (r *Runner) takeOver(ctx context.Context) {
	req, err := r.cfg.Starter.Prepare(ctx)
	if err != nil {
		r.logger.Warn("a running task's directory can't be prepared", "error", err)
		return
	}
	req.Restored = true
	if _, failed := r.runPrestart(ctx, req); failed != nil {
		r.logger.Warn("a running task is taken over without what a hook has for it", "error", failed.event.DisplayMessage)
	}
}
