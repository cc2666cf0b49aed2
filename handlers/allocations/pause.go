package allocations

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
)

// Nomad Enterprise starts and stops tasks by schedules. Job files with a schedule are refused here, so no task can be
// paused: the answers are those for a task without a schedule.

// pauseGet answers GET /v1/client/allocation/:id/pause: the state of a task without a schedule is empty. Without the
// name of a task it is the state of all.
func (h *handlers) pauseGet(_ context.Context, r *route.Request) (route.Answer, error) {
	alloc, err := r.Alloc(apierror.NoAllocOnClient)
	if err != nil {
		return route.Answer{}, err
	}
	if task := r.Query().Get("task"); task != "" && wire.OwnTask(alloc.Snapshot(), task) == nil {
		return route.Answer{}, apierror.New(apierror.NoTask)
	}
	return route.Respond(api.AllocGetPauseResponse{})
}

// pauseSet answers PUT /v1/client/allocation/:id/pause: what is wrong with the request, or that the task has no
// schedule.
func (h *handlers) pauseSet(_ context.Context, r *route.Request) (route.Answer, error) {
	alloc, err := r.Alloc(apierror.NoAllocOnClient)
	if err != nil {
		return route.Answer{}, err
	}
	var want api.AllocPauseRequest
	if err := r.Decode(&want, false); err != nil {
		return route.Answer{}, err
	}
	switch want.ScheduleState {
	case "pause", "run", "scheduled":
	default:
		return route.Answer{}, route.Invalid(`Not a valid task schedule state: give "pause", "run" or "scheduled", not %s`,
			route.Clip(want.ScheduleState))
	}
	if wire.OwnTask(alloc.Snapshot(), want.Task) == nil {
		return route.Answer{}, apierror.New(apierror.NoTask)
	}
	return route.Answer{}, apierror.New(apierror.NoSchedule, want.Task)
}
