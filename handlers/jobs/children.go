package jobs

import (
	"context"
	"fmt"
	"io"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/evaluations"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
)

// maxDispatch is the ceiling of a dispatch's body, far above that of a payload in it, whose error has better words.
const maxDispatch = 256 << 10

type wireDispatched struct {
	DispatchedJobID string
	EvalID          string
	EvalCreateIndex uint64
	JobCreateIndex  uint64
	wire.Meta
}

// dispatch answers PUT /v1/job/:job/dispatch: a child of the caller's parameterized job begins. With the
// idempotency_token of an earlier child, the answer names that one, and no evaluation.
func (h *handlers) dispatch(ctx context.Context, r *route.Request, want *api.JobDispatchRequest) (route.Answer, error) {
	if want.JobID != "" && want.JobID != r.Param("job") {
		return route.Answer{}, apierror.New(apierror.JobMismatch)
	}
	parent, current, err := parentOf(ctx, r)
	if err != nil {
		return route.Answer{}, err
	}
	child, err := parent.Dispatch(ctx, interfaces.Dispatch{
		Payload: want.Payload, Meta: want.Meta, IDPrefix: want.IdPrefixTemplate, Priority: want.Priority,
		Token: r.Query().Get("idempotency_token"),
	})
	if err != nil {
		return route.Answer{}, fmt.Errorf("dispatch: %w", ofUpdate(err))
	}
	answer := wireDispatched{
		DispatchedJobID: child.JobID, JobCreateIndex: current.ModifyIndex, Meta: wire.Meta{Index: current.ModifyIndex},
	}
	if !child.Known {
		answer.EvalID = h.Evaluations.AddChild(evaluations.TriggerRegister, current, child.JobID)
		answer.EvalCreateIndex = current.ModifyIndex
	}
	return route.Indexed(answer, current.ModifyIndex)
}

// dispatchPayload answers PUT /v1/job/:job/dispatch/payload.
func (h *handlers) dispatchPayload(ctx context.Context, r *route.Request) (route.Answer, error) {
	if err := r.ReserveBody(0); err != nil {
		return route.Answer{}, err
	}
	payload, err := io.ReadAll(r.Body)
	if err != nil {
		return route.Answer{}, err
	}
	return h.dispatch(ctx, r, &api.JobDispatchRequest{Payload: payload})
}

type wireForced struct {
	EvalID          string
	EvalCreateIndex uint64
	wire.Meta
}

// force answers PUT /v1/job/:job/periodic/force: a child of the caller's periodic job begins.
func (h *handlers) force(ctx context.Context, r *route.Request) (route.Answer, error) {
	parent, current, err := parentOf(ctx, r)
	if err != nil {
		return route.Answer{}, err
	}
	child, err := parent.Force(ctx)
	if err != nil {
		return route.Answer{}, fmt.Errorf("periodic force: %w", ofUpdate(err))
	}
	return route.Indexed(wireForced{
		EvalID:          h.Evaluations.AddChild(evaluations.TriggerPeriodic, current, child.JobID),
		EvalCreateIndex: current.ModifyIndex, Meta: wire.Meta{Index: current.ModifyIndex},
	}, current.ModifyIndex)
}

// parentOf returns the caller's allocation as one that starts children. Errors: the path names another job.
func parentOf(ctx context.Context, r *route.Request) (interfaces.Parent, *api.Allocation, error) {
	current, err := r.OwnJob(ctx)
	if err != nil {
		return nil, nil, err
	}
	found, _ := r.Visible()
	parent, ok := found.(interfaces.Parent)
	if !ok {
		return nil, nil, apierror.New(apierror.NoRoute)
	}
	return parent, current, nil
}
