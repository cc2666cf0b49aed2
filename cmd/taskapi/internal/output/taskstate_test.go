package output_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/internal/same"
)

func TestTaskState(t *testing.T) {
	ended := func(failed bool, events ...*api.TaskEvent) *api.TaskState {
		return &api.TaskState{State: "dead", Failed: failed, StartedAt: time.Now(), Events: events}
	}
	exit := func(code int) *api.TaskEvent {
		return &api.TaskEvent{Type: api.TaskTerminated, Details: map[string]string{"exit_code": strconv.Itoa(code)}}
	}
	notRestarting := &api.TaskEvent{Type: api.TaskNotRestarting}
	pausing := func(state interfaces.ScheduleState) *api.TaskState {
		return &api.TaskState{State: "pending", Events: []*api.TaskEvent{{
			Type: interfaces.EventPausing, Details: map[string]string{interfaces.DetailSchedule: string(state)}}}}
	}
	states := map[string]*api.TaskState{
		"pending":        nil,
		"running":        {State: "running", Restarts: 2, Events: []*api.TaskEvent{exit(1)}},
		"restarting":     {State: "pending", Restarts: 1},
		"paused":         pausing(interfaces.SchedulePause),
		"stopped":        pausing(interfaces.ScheduleForcedPause),
		"not started":    {State: "dead"},
		"complete (0)":   ended(false, exit(1), &api.TaskEvent{Type: api.TaskStarted}, exit(0), notRestarting),
		"complete":       ended(false),
		"failed (3)":     ended(true, exit(0), exit(3), notRestarting),
		"failed":         ended(true, exit(0), &api.TaskEvent{Type: api.TaskDriverFailure}, notRestarting),
		"complete (143)": ended(false, exit(143), &api.TaskEvent{Type: api.TaskKilled}),
	}
	var all []*api.TaskState
	for want, state := range states {
		same.As(t, want, output.TaskState(state))
		all = append(all, state)
	}
	want := "1 running, 1 pending, 1 restarting, 1 paused, 1 stopped, 3 complete, 2 failed, 1 not started"
	same.As(t, want, output.TaskCounts(all))
}
