package handlers

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// A task's schedule, by which Nomad Enterprise starts and stops it, is refused in job files here. So no task is ever paused, nor can be: the
// answers are those for a task without a schedule.

// pauseGet answers GET /v1/client/allocation/:id/pause: the state of a task that runs by no schedule is the empty one. Without a task
// it is that of all.
func (a *API) pauseGet(_ context.Context, r *request) (answer, error) {
	alloc, err := r.alloc(apierror.NoAllocOnClient)
	if err != nil {
		return answer{}, err
	}
	query, err := r.values()
	if err != nil {
		return answer{}, err
	}
	if task := query.Get("task"); task != "" && taskOf(alloc.Snapshot(), task) == nil {
		return answer{}, apierror.New(apierror.NoTask)
	}
	return respond(api.AllocGetPauseResponse{})
}

// pauseSet answers PUT /v1/client/allocation/:id/pause: what is wrong with the request, or that the task has no schedule.
func (a *API) pauseSet(_ context.Context, r *request) (answer, error) {
	alloc, err := r.alloc(apierror.NoAllocOnClient)
	if err != nil {
		return answer{}, err
	}
	var want api.AllocPauseRequest
	if err := r.decode(&want, false); err != nil {
		return answer{}, err
	}
	switch want.ScheduleState {
	case "pause", "run", "scheduled":
	default:
		return answer{}, invalid(`Not a valid task schedule state: give "pause", "run" or "scheduled", not %s`, clip(want.ScheduleState))
	}
	if taskOf(alloc.Snapshot(), want.Task) == nil {
		return answer{}, apierror.New(apierror.NoTask)
	}
	return answer{}, apierror.New(apierror.NoSchedule, want.Task)
}
