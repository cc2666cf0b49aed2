package handlers

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// Restarter is an allocation whose tasks can be restarted, as interfaces.AllocRunner restarts them.
type Restarter interface {
	RestartTask(ctx context.Context, task string) error
	RestartRunning(ctx context.Context) error
	RestartAll(ctx context.Context) error
}

// done is Nomad's answer to an action on a client: an index that is always 0.
type done struct{ Index uint64 }

// restart answers PUT /v1/client/allocation/:id/restart: one task by name, all tasks from the beginning of their life cycle, or, with neither,
// those that run. The answer comes when the old processes are gone.
func (a *API) restart(ctx context.Context, r *request) (answer, error) {
	alloc, err := resource[Restarter](r, apierror.NoAllocOnClient)
	if err != nil {
		return answer{}, err
	}
	var want api.AllocationRestartRequest
	if err := r.decode(&want, true); err != nil {
		return answer{}, err
	}
	switch {
	case want.AllTasks && want.TaskName != "":
		err = apierror.New(apierror.TaskAndAllTasks)
	case want.AllTasks:
		err = alloc.RestartAll(ctx)
	case want.TaskName != "":
		err = apierror.Reword(alloc.RestartTask(ctx, want.TaskName), apierror.NoTask, apierror.NoTaskRunner, want.TaskName)
	default:
		err = alloc.RestartRunning(ctx)
	}
	if err != nil {
		return answer{}, fmt.Errorf("restart: %w", err)
	}
	return respond(done{})
}
