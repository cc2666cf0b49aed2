package taskrunner

import (
	"context"
	"fmt"
	"time"

	"taskapi/allocrunner/interfaces"
)

// longestAlarm is how long a task waits without a look at the clock, which may have been set.
const longestAlarm = time.Minute

// lookAtSchedule pauses the task, or lets it run, as its schedule says now, and sets the alarm for the next look.
func (r *Runner) lookAtSchedule(ctx context.Context) {
	if r.rules.times.Always() && r.state.schedule() == interfaces.ScheduleRun {
		r.alarm.Stop()
		return
	}
	r.handle(ctx, clockRead{})
	now := time.Now()
	after := longestAlarm
	if _, change := r.rules.times.At(now); !change.IsZero() {
		after = min(longestAlarm, max(0, change.Sub(now.Round(0)))) // by the wall clock
	}
	r.alarm.Reset(after)
}

// PauseState returns the present state of the task, by its schedule or by an operator's request.
func (r *Runner) PauseState() interfaces.ScheduleState { return r.record.stands().schedule }

// SavedPauseState returns what held for a task when its state was saved.
func SavedPauseState(saved interfaces.SavedTask) interfaces.ScheduleState {
	return state{outside: saved.Outside, override: saved.Override}.schedule()
}

// SetPauseState makes the task pause or run whatever its schedule says, or follow the schedule again. It returns when
// the override is saved. Errors: interfaces.ErrNotSupported, interfaces.ErrTaskNotRunning.
func (r *Runner) SetPauseState(ctx context.Context, override interfaces.ScheduleState) error {
	return r.request(ctx, message{call: func(ctx context.Context) error {
		switch {
		case r.rules.times.Always():
			return fmt.Errorf("the task has no schedule: %w", interfaces.ErrNotSupported)
		case r.state.phase == dead:
			return interfaces.ErrTaskNotRunning
		}
		r.handle(ctx, overridden{override})
		return nil
	}})
}
