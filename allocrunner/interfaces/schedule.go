package interfaces

import (
	"context"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// ScheduleState says whether a task runs or pauses by its schedule, or by an operator's request. The values are the
// API's. A task without a schedule only pauses by request: it is stopped until it is started.
type ScheduleState string

const (
	ScheduleRun         ScheduleState = ""
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
		if SaysSchedule(e) {
			return ScheduleState(e.Details[DetailSchedule])
		}
	}
	return ScheduleRun
}

// SaysSchedule reports whether an event has a task's ScheduleState.
func SaysSchedule(e *api.TaskEvent) bool { return e.Type == EventPausing || e.Type == EventRunning }

// Pauser is a runner whose tasks can be stopped and started.
type Pauser interface {
	// PauseState returns the present state of a task. Errors: ErrTaskNotFound.
	PauseState(task string) (ScheduleState, error)
	// SetPauseState makes a task pause or run whatever its schedule says; ScheduleRun makes it follow the schedule again,
	// or run if it has none. It returns when the override is saved, and does not wait for the process. Errors:
	// ErrTaskNotFound, ErrTaskNotRunning if the task has ended or is being killed, ErrStarting, ErrUnsaved,
	// ErrPoststop.
	SetPauseState(ctx context.Context, task string, override ScheduleState) error
}
