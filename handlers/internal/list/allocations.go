package list

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
)

// Allocations returns a request for a list of allocations: resources=true adds the resources, and task_states=false
// leaves the task states out.
func Allocations(r *route.Request) (*List[*api.Allocation], error) {
	resources, err := r.Flag("resources", false)
	if err != nil {
		return nil, err
	}
	taskStates, err := r.Flag("task_states", true)
	if err != nil {
		return nil, err
	}
	return New(r, Listing[*api.Allocation]{
		Order:     ByCreateIndex,
		UUID:      true,
		ID:        func(alloc *api.Allocation) string { return alloc.ID },
		Namespace: func(alloc *api.Allocation) string { return alloc.Namespace },
		Created:   func(alloc *api.Allocation) uint64 { return alloc.CreateIndex },
		Stub:      func(alloc *api.Allocation) any { return wire.StubOf(alloc, resources, taskStates) },
	})
}

// OwnAllocation returns a handler that lists the caller's allocation where belongs reports that it belongs to what the
// path names.
func OwnAllocation(belongs func(r *route.Request, current *api.Allocation) (bool, error)) route.Handler {
	return func(ctx context.Context, r *route.Request) (route.Answer, error) {
		l, err := Allocations(r)
		if err != nil {
			return route.Answer{}, err
		}
		current, err := r.WithJob(ctx)
		if err != nil {
			return route.Answer{}, err
		}
		found := []*api.Allocation{current}
		if ok, err := belongs(r, current); err != nil {
			return route.Answer{}, err
		} else if !ok {
			found = nil
		}
		return l.Answer(found, current.ModifyIndex)
	}
}
