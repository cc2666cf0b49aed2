package handlers

import (
	"context"
	"fmt"

	"taskapi/handlers/apierror"
)

// Collector is an allocation that can be removed.
type Collector interface {
	// Collect removes an allocation that has ended, with its directory. Errors: interfaces.ErrNotTerminal.
	Collect(ctx context.Context) error
}

// allocGC answers PUT and GET /v1/client/allocation/:id/gc: an allocation that has ended is removed.
func (a *API) allocGC(ctx context.Context, r *request) (answer, error) {
	alloc, err := resource[Collector](r, apierror.NoAllocOnClient)
	if err != nil {
		return answer{}, err
	}
	if err := alloc.Collect(ctx); err != nil {
		return answer{}, fmt.Errorf("collect: %w", err)
	}
	return respond(struct{}{}) // Nomad sends nothing, which the SDK's Allocations.GC takes for an error
}

// nodeGC answers PUT and GET /v1/client/gc: the allocation is removed if it has ended. As in Nomad, one that runs is left alone, and there is
// no body.
func (a *API) nodeGC(ctx context.Context, r *request) (answer, error) {
	query, err := r.values()
	if err != nil {
		return answer{}, err
	}
	if err := a.checkNodeID(query.Get("node_id")); err != nil {
		return answer{}, err
	}
	found, _ := r.visible()
	if alloc, ok := found.(Collector); ok {
		if err := alloc.Collect(ctx); err != nil && apierror.Of(err).Kind != apierror.NotCollectable {
			return answer{}, fmt.Errorf("collect: %w", err)
		}
	}
	return answer{body: newBody(nil, jsonType)}, nil
}

// systemGC answers PUT /v1/system/gc. It forgets the evaluations that are kept for clients; a directory of an allocation that has ended is removed by
// taskapi gc, which alone knows of other allocations.
func (a *API) systemGC(context.Context, *request) (answer, error) {
	a.evaluations.forget()
	return respond(nil)
}
