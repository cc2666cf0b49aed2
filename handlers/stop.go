package handlers

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// Stopper is an allocation that can be stopped.
type Stopper interface {
	Alloc
	// Stop begins to stop the allocation, with its shutdown_delay or without, and does not wait for the end. It is no error when the
	// allocation is stopping or has ended. Errors: Conflict.
	Stop(ctx context.Context, noShutdownDelay bool) error
	// Kill makes a stop that is under way, or starts one, skip every delay: processes get SIGKILL at once.
	Kill()
}

// stopped is Nomad's answer to a stop.
type stopped struct {
	EvalID string
	Index  uint64
}

// stop answers PUT /v1/allocation/:id/stop: the allocation begins to stop, if it has not begun, and the answer does not wait. With no_shutdown_delay every shutdown_delay is skipped, also one under way; with now,
// which Nomad does not have, every delay is, and processes get SIGKILL. Index is the allocation's ModifyIndex after the request.
func (a *API) stop(ctx context.Context, r *request) (answer, error) {
	alloc, err := resource[Stopper](r, apierror.NoAllocation)
	if err != nil {
		return answer{}, err
	}
	hurry, err := r.flag("no_shutdown_delay", false)
	if err != nil {
		return answer{}, err
	}
	now, err := r.flag("now", false)
	if err != nil {
		return answer{}, err
	}
	if now { // before a stop sends the kill_signal
		alloc.Kill()
	}
	if err := alloc.Stop(ctx, hurry); err != nil {
		return answer{}, fmt.Errorf("stop: %w", err)
	}
	current := alloc.Snapshot()
	made := a.evaluations.add(triggerStop, current, api.DesiredUpdates{Stop: 1})
	encoded, err := encode(stopped{EvalID: made, Index: current.ModifyIndex})
	return answer{body: encoded, index: current.ModifyIndex}, err
}
