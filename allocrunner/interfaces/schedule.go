package interfaces

import (
	"context"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// ScheduleState says whether a task runs or pauses by its schedule, or by an operator's request. The values are the
// API's.
type ScheduleState string

const (
	ScheduleRun         ScheduleState = "" // also of a task without a schedule
	SchedulePause       ScheduleState = "scheduled_pause"
	ScheduleForcedRun   ScheduleState = "force_run"
	ScheduleForcedPause ScheduleState = "force_pause"
)

// Pauses reports whether the task must not run.
func (s ScheduleState) Pauses() bool { return s == SchedulePause || s == ScheduleForcedPause }

// The types of a task's events about its schedule, and their detail with the ScheduleState.
const (
	EventPausing   = "Pausing"
	EventRunning   = "Running"
	DetailSchedule = "schedule_state"
)

// ShownSchedule returns the state in a task's latest event about its schedule.
func ShownSchedule(state *api.TaskState) ScheduleState {
	if state == nil || state.State == "dead" {
		return ScheduleRun
	}
	for _, e := range slices.Backward(state.Events) {
		if e.Type == EventPausing || e.Type == EventRunning {
			return ScheduleState(e.Details[DetailSchedule])
		}
	}
	return ScheduleRun
}

// Pauser is a runner with tasks that may have a schedule.
type Pauser interface {
	// PauseState returns the present state of a task. Errors: ErrTaskNotFound.
	PauseState(task string) (ScheduleState, error)
	// SetPauseState makes a task pause or run whatever its schedule says; ScheduleRun makes it follow the schedule again.
	// It returns when the override is saved. Errors: ErrTaskNotFound, ErrTaskNotRunning if the task has ended,
	// ErrNotSupported if the task has no schedule, ErrStarting.
	SetPauseState(ctx context.Context, task string, override ScheduleState) error
}
