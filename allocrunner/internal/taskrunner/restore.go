package taskrunner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/restarts"
)

// Saved returns the state that another runner needs to resume the task.
func (r *Runner) Saved() interfaces.SavedTask { return r.record.saved() }

// resumption is how a task of an earlier runner is resumed.
type resumption struct {
	state   state
	process bool     // it has a process, which may have ended by now
	ended   bool     // it has, for certain
	first   event    // the next event; nil for none, or for the end of the process
	effects []effect // effects that the earlier runner may not have performed, with their remaining times
}

// resume decides how a task is resumed. run is its latest run, nil for none, with its status. The driver's knowledge is
// newer than the saved state.
func (r rules) resume(saved interfaces.SavedTask, run drivers.Run, status drivers.Status) resumption {
	res := resumption{state: state{
		phase:    phaseNamed(saved.Phase),
		intent:   intentNamed(saved.Intent),
		failed:   saved.Failed,
		setUp:    saved.SetUp,
		attempts: restarts.State{Start: earlier(saved.IntervalStart, r.now), Count: saved.Attempts},
		outside:  saved.Outside, // until the first look at the clock
		override: saved.Override,
	}}
	s := &res.state
	res.ended = status.Exit != nil
	switch {
	case run != nil && !bytes.Equal(run.Handle(), saved.Handle): // it started after the latest save
		if s.hasProcess() && s.intent != kill {
			s.intent = none // that belonged to the earlier process
		}
		s.phase, s.setUp, res.process = starting, true, true
		res.first = started{run, status.Details, status.Notice != nil}
	case s.hasProcess(): // Wait returns at once when it has ended
		res.process = true
		if n := status.Notice; n != nil && !res.ended {
			s.unready, s.status = !n.Ready, n.Status
			res.effects = append(res.effects, listen{})
			if s.phase == running && n.Ready && r.watchdog > 0 {
				res.effects = append(res.effects, guard{r.watchdog})
			}
		}
		switch {
		case s.phase == running && s.unready && r.readyTimeout > 0:
			res.effects = append(res.effects, arm{r.remaining(saved.Due, r.readyTimeout)})
		case s.phase == shutdownDelay:
			res.effects = append(res.effects, arm{r.remaining(saved.Due, r.shutdownDelay)})
		case s.phase == stopping && !res.ended: // sent again: the earlier runner may not have sent it
			res.effects = append(res.effects, stop{r.killSignal, r.remaining(saved.Due, r.killTimeout)})
		}
	case s.phase == starting && s.intent != none: // the start was being given up
		res.first = startFailed{}
	case s.phase == starting: // it never came to a process
		s.phase, res.first = backoff, elapsed{}
	case s.phase == backoff:
		longest := max(r.policy.Interval, 2*r.policy.Delay) // that a restart may wait for
		res.effects = []effect{arm{r.remaining(saved.Due, longest)}}
	}
	return res
}

// remaining returns the remaining time of a timer. Two processes share only the wall clock, which may have been set
// meanwhile, so the longest possible time of the timer bounds the result.
func (r rules) remaining(due time.Time, longest time.Duration) time.Duration {
	return max(min(due.Sub(r.now), longest), time.Nanosecond)
}

// earlier returns the earlier of two times: after a clock was set back no interval may begin in the future.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Restore begins with the state that an earlier runner has saved and with the run that the driver has, if any; it is
// called instead of Receive. Only the fields of task that drivers.Driver's Recover needs are set. Errors: Recover's,
// after which the task is unchanged.
func (r *Runner) Restore(ctx context.Context, saved interfaces.SavedTask, task drivers.Task) error {
	run, err := r.cfg.Drivers.Recover(ctx, task, saved.Handle)
	if err != nil && !errors.Is(err, drivers.ErrNoRun) {
		return fmt.Errorf("task %q: %w", r.name, err)
	}
	var status drivers.Status
	if run != nil {
		r.setRun(run)
		if status, err = run.Inspect(ctx); err != nil {
			return fmt.Errorf("task %q: %w", r.name, err)
		}
	}
	now, rules := time.Now(), r.rules
	rules.now = now
	res := rules.resume(saved, run, status)
	r.state = res.state
	r.record.restore(saved, now)
	r.record.set(r.state, now, armed(res.effects))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.resumption = &res; res.process {
		r.rejoined = make(chan struct{})
	}
	return nil
}

// resume takes the first step of a restored task, in the task's goroutine.
func (r *Runner) resume(ctx context.Context) {
	res := r.resumption
	if res == nil {
		return
	}
	for _, effect := range res.effects {
		r.perform(ctx, effect)
	}
	switch {
	case res.process:
		run := r.Latest()
		r.effects.Go(func() { r.rejoin(ctx, run) })
	case res.first != nil:
		r.handle(ctx, res.first)
	}
}

// rejoin runs the hooks for a process that outlived its runner, which gives it a socket again, and waits for its end.
func (r *Runner) rejoin(ctx context.Context, run drivers.Run) {
	if !r.resumption.ended {
		r.prepareRunning(ctx)
	}
	if r.resumption.first != nil {
		r.postFromEffect(r.resumption.first) // before the requests that wait: they need a process that is known to run
	}
	close(r.rejoined)
	if _, begins := r.resumption.first.(started); !begins { // started is followed by a watch
		r.watch(ctx, run)
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
	if _, err := r.runPrestart(ctx, req); err != nil {
		r.logger.Warn("a hook failed for a running task, which goes on without it", "error", err)
	}
}
