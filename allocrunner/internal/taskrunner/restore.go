package taskrunner

import (
	"context"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/processes"
	"taskapi/allocrunner/internal/restarts"
)

// Saved returns what another runner needs to resume the task.
func (r *Runner) Saved() interfaces.SavedTask { return r.record.saved() }

// resumption is how a task of an earlier runner is resumed.
type resumption struct {
	machine machine
	process bool          // the supervisor has its process, which may have ended by now
	ended   bool          // it has, for certain
	first   any           // the next event; nil for none, or for the end of the process
	acts    []any         // effects that the earlier runner may not have performed
	wait    time.Duration // what remains of the timer that was armed; 0 for none
}

// resume decides how a task is resumed. known is the latest process that the supervisor has of the task, nil for none. What the
// supervisor knows is newer than what was saved.
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
	case neverSaved(saved, known): // it started after the latest save
		if m.hasProcess() && m.intent != kill {
			m.intent = none // that was of the process before
		}
		m.phase, m.setUp, res.process = starting, true, true
		res.first = begun(known)
	case m.hasProcess(): // Wait returns at once when it has ended
		res.process = true
		r.resumeStop(&res, saved.Due, now)
	case m.phase == starting && m.intent != none: // the start was to be given up
		res.first = startFailed{}
	case m.phase == starting: // it never came to a process
		m.phase, res.first = backoff, elapsed{}
	case m.phase == backoff:
		res.wait = remaining(saved.Due, now, r.longestBackoff())
	}
	return res
}

// resumeStop continues a stop that was under way. A process that has ended gets no signal.
func (r rules) resumeStop(res *resumption, due time.Time, now time.Time) {
	switch {
	case res.machine.phase == shutdownDelay:
		res.wait = remaining(due, now, r.shutdownDelay)
	case res.machine.phase == stopping && !res.ended:
		res.acts = []any{signal{r.killSignal}} // again: it may not have been sent
		res.wait = remaining(due, now, r.killTimeout)
	}
}

func begun(s *processes.Status) started {
	return started{interfaces.Handle{PID: s.PID, StartedAt: s.StartedAt}, s.NoCgroup}
}

// neverSaved reports whether the supervisor has a process of the task that was never saved.
func neverSaved(saved interfaces.SavedTask, known *processes.Status) bool {
	return known != nil && (saved.Handle == nil || saved.Handle.PID != known.PID || !saved.Handle.StartedAt.Equal(known.StartedAt))
}

// remaining returns what remains of a timer. Two processes share only the wall clock, which may have been set meanwhile: the longest that
// the timer can have been armed for is the bound.
func remaining(due, now time.Time, longest time.Duration) time.Duration {
	return max(min(due.Sub(now), longest), time.Nanosecond)
}

// earlier returns the earlier of two times: after a clock was set back no interval may begin in the future.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// longestBackoff returns how long a restart can be delayed at most.
func (r rules) longestBackoff() time.Duration { return max(r.policy.Interval, 2*r.policy.Delay) }

// Restore begins with what an earlier runner has saved; it is called instead of Receive. known is the latest process that the supervisor
// has of the task, nil for none.
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
	if r.resumption = &res; res.process {
		r.rejoined = make(chan struct{})
	}
}

// resume takes the first step of a restored task, in the task's goroutine.
func (r *Runner) resume(ctx context.Context) {
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

// rejoin runs the hooks for a process that outlived its runner, which gives it a socket again, and waits for its end.
func (r *Runner) rejoin(ctx context.Context, process processes.ProcessID) {
	if !r.resumption.ended {
		r.prepareRunning(ctx)
	}
	close(r.rejoined)
	if r.resumption.first != nil {
		r.postFromEffect(r.resumption.first)
	}
	if _, begins := r.resumption.first.(started); !begins { // started is followed by a watch
		r.watch(ctx, process)
	}
}

// prepareRunning runs the prestart hooks for a process that runs.
func (r *Runner) prepareRunning(ctx context.Context) {
	req, err := r.cfg.Starter.Prepare(ctx)
	if err != nil {
		r.logger.Warn("a running task's directory can't be prepared", "error", err)
		return
	}
	req.Restored = true
	if _, failed := r.runPrestart(ctx, req); failed != nil {
		r.logger.Warn("a hook failed for a running task, which goes on without it", "error", failed.event.DisplayMessage)
	}
}
