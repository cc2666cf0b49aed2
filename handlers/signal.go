package handlers

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// Signaler is an allocation whose tasks take signals, as interfaces.AllocRunner sends them.
type Signaler interface {
	Signal(ctx context.Context, task, signal string) error
}

// signal answers PUT /v1/client/allocation/:id/signal: a signal by name, to one task or, without a task, to all.
func (a *API) signal(ctx context.Context, r *request) (answer, error) {
	alloc, err := resource[Signaler](r, apierror.NoAllocOnClient)
	if err != nil {
		return answer{}, err
	}
	var want api.AllocSignalRequest
	if err := r.decode(&want, false); err != nil {
		return answer{}, err
	}
	err = alloc.Signal(ctx, want.Task, want.Signal)
	if err := apierror.Reword(err, apierror.UnknownSignal, apierror.UnknownSignal, clip(want.Signal)); err != nil {
		return answer{}, fmt.Errorf("signal: %w", err)
	}
	return respond(done{})
}
