package handlers

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"
)

// signal is PUT /v1/client/allocation/:id/signal: a signal by name, to one task or, without a task, to all.
func (a *API) signal(ctx context.Context, r *request) (answer, error) {
	alloc, err := r.alloc(unknownToClient)
	if err != nil {
		return answer{}, err
	}
	var want api.AllocSignalRequest
	if err := r.decode(&want, false); err != nil {
		return answer{}, err
	}
	err = unknownTask(alloc.Signal(ctx, want.Task, want.Signal), "Task not found")
	if err := unknownSignal(err, want.Signal); err != nil {
		return answer{}, fmt.Errorf("signal: %w", err)
	}
	return respond(done{})
}

// unknownSignal puts the name into an Invalid; any other error stays.
func unknownSignal(err error, name string) error {
	var known *Error
	if errors.As(err, &known) && known.Kind == Invalid {
		return &Error{Kind: Invalid, Message: "unknown signal " + clip(name), Err: err}
	}
	return err
}
