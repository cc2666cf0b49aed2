package taskrunner

import (
	"context"
	"fmt"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/lifecycle"
)

// longestAlarm is how long a task waits without a look at the clock, which may have been set.
const longestAlarm = time.Minute

// lookAtSchedule pauses the task, or lets it run, as its schedule or an operator says, and sets the alarm for the next
// look at the schedule.
func (r *Runner) lookAtSchedule(ctx context.Context) {
	r.handle(ctx, clockRead{})
	if r.rules.times.Always() {
		r.alarm.Stop()
		return
	}
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
// the override is saved. Errors: interfaces.ErrTaskNotRunning, interfaces.ErrPoststop, interfaces.ErrUnsaved.
func (r *Runner) SetPauseState(ctx context.Context, override interfaces.ScheduleState) error {
	return r.request(ctx, message{call: func(ctx context.Context) error {
		switch {
		case lifecycle.Of(r.cfg.Task).Hook == lifecycle.Poststop:
			return interfaces.ErrPoststop
		case r.state.phase == dead, r.state.intent == kill:
			return interfaces.ErrTaskNotRunning
		}
		r.handle(ctx, overridden{override})
		if err := r.cfg.Observer.Save(r.name); err != nil {
			return fmt.Errorf("%w: %w", interfaces.ErrUnsaved, err)
		}
		return nil
	}})
}
