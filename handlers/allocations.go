package handlers

import (
	"context"
	"encoding/json"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// allocationGet answers GET /v1/allocation/:id.
func (a *API) allocationGet(ctx context.Context, r *request) (answer, error) {
	alloc, err := r.alloc(apierror.NoAlloc)
	if err != nil {
		return answer{}, err
	}
	current, err := r.snapshot(ctx, alloc)
	if err != nil {
		return answer{}, err
	}
	keyID := a.keyID()
	encoded, err := a.allocation[r.viewOf()].get(cacheKey{shown: current, extra: keyID}, func() any {
		return wireAllocationOf(current, keyID)
	})
	return answer{body: encoded, index: current.ModifyIndex}, err
}

// EncodeAllocation returns the allocation as GET /v1/allocation/:id?pretty answers it, without the signing key: for allocations whose
// agent has exited.
func EncodeAllocation(a *api.Allocation) ([]byte, error) {
	return json.MarshalIndent(wireAllocationOf(a, ""), "", prettyIndent)
}

func (a *API) keyID() string {
	if a.config.SigningKeyID == nil {
		return ""
	}
	return a.config.SigningKeyID()
}

// allocationList answers GET /v1/allocations: the caller's own.
func (a *API) allocationList(ctx context.Context, r *request) (answer, error) {
	list, err := newAllocList(r)
	if err != nil {
		return answer{}, err
	}
	alloc, ok := r.visible()
	if !ok {
		return list.answer(nil, 0)
	}
	current, err := r.snapshot(ctx, alloc)
	if err != nil {
		return answer{}, err
	}
	return list.answer([]*api.Allocation{current}, current.ModifyIndex)
}

// newAllocList returns a request for a list of allocations: resources=true adds the resources, task_states=false leaves the task states out.
func newAllocList(r *request) (*list[*api.Allocation], error) {
	resources, err := r.flag("resources", false)
	if err != nil {
		return nil, err
	}
	taskStates, err := r.flag("task_states", true)
	if err != nil {
		return nil, err
	}
	return newList(r, listing[*api.Allocation]{
		order:     byCreateIndex,
		uuid:      true,
		id:        func(alloc *api.Allocation) string { return alloc.ID },
		namespace: func(alloc *api.Allocation) string { return alloc.Namespace },
		created:   func(alloc *api.Allocation) uint64 { return alloc.CreateIndex },
		stub:      func(alloc *api.Allocation) any { return wireStubOf(alloc, resources, taskStates) },
	})
}

// jobAllocations answers GET /v1/job/:job/allocations.
func (a *API) jobAllocations(ctx context.Context, r *request) (answer, error) {
	list, err := newAllocList(r)
	if err != nil {
		return answer{}, err
	}
	current, err := a.withJob(ctx, r)
	if err != nil {
		return answer{}, err
	}
	if r.param("job") != current.JobID {
		return list.answer(nil, current.ModifyIndex)
	}
	return list.answer([]*api.Allocation{current}, current.ModifyIndex)
}
