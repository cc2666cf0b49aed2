package handlers

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"
)

// done is Nomad's answer to an action on a client: an index that is always 0.
type done struct{ Index uint64 }

// restart is PUT /v1/client/allocation/:id/restart: one task by name, all tasks through their life cycle anew, or, with neither,
// those that run. The answer comes when the old processes are gone.
func (a *API) restart(ctx context.Context, r *request) (answer, error) {
	alloc, err := r.alloc(unknownToClient)
	if err != nil {
		return answer{}, err
	}
	var want api.AllocationRestartRequest
	if err := r.decode(&want, true); err != nil {
		return answer{}, err
	}
	switch {
	case want.AllTasks && want.TaskName != "":
		err = invalid("task name cannot be set when restarting all tasks")
	case want.AllTasks:
		err = alloc.RestartAll(ctx)
	case want.TaskName != "":
		err = unknownTask(alloc.RestartTask(ctx, want.TaskName), "Could not find task runner for task: "+want.TaskName)
	default:
		err = alloc.RestartRunning(ctx)
	}
	if err != nil {
		return answer{}, fmt.Errorf("restart: %w", err)
	}
	return respond(done{})
}

// unknownTask puts the words that belong to an action into a NotFound; any other error stays.
func unknownTask(err error, words string) error {
	var known *Error
	if errors.As(err, &known) && known.Kind == NotFound {
		return &Error{Kind: NotFound, Message: words, Err: err}
	}
	return err
}
