package list

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
)

// AllocationFlags are those of the routes that list allocations.
var AllocationFlags = []string{"resources", "task_states"}

// AllocationListing says how allocations are listed: resources=true adds the resources, and task_states=false leaves
// the task states out.
func AllocationListing(r *route.Request) Listing[*api.Allocation] {
	resources, taskStates := r.Flag("resources", false), r.Flag("task_states", true)
	return Listing[*api.Allocation]{
		Order:     ByCreateIndex,
		UUID:      true,
		ID:        func(alloc *api.Allocation) string { return alloc.ID },
		Namespace: func(alloc *api.Allocation) string { return alloc.Namespace },
		Created:   func(alloc *api.Allocation) uint64 { return alloc.CreateIndex },
		Stub:      func(alloc *api.Allocation) any { return wire.StubOf(alloc, resources, taskStates) },
	}
}

// OwnAllocation returns a handler that lists the caller's allocation if belongs returns true: the allocation belongs to
// the object that the path names.
func OwnAllocation(belongs func(r *route.Request, current *api.Allocation) (bool, error)) route.Handler {
	return OfJob(AllocationListing, func(r *route.Request, current *api.Allocation) ([]*api.Allocation, error) {
		if ok, err := belongs(r, current); !ok {
			return nil, err
		}
		return []*api.Allocation{current}, nil
	})
}

// OfJob returns a handler that lists the values that belong to the caller's allocation, which has a job.
func OfJob[T any](
	of func(*route.Request) Listing[T], values func(r *route.Request, current *api.Allocation) ([]T, error),
) route.Handler {
	return func(ctx context.Context, r *route.Request) (route.Answer, error) {
		l, err := New(r, of(r))
		if err != nil {
			return route.Answer{}, err
		}
		current, err := r.WithJob(ctx)
		if err != nil {
			return route.Answer{}, err
		}
		found, err := values(r, current)
		if err != nil {
			return route.Answer{}, err
		}
		return l.Answer(found, current.ModifyIndex)
	}
}
