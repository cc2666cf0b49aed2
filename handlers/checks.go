package handlers

import (
	"context"

	"taskapi/handlers/apierror"
)

// clientChecks is GET /v1/client/allocation/:id/checks, and the hottest of all: its encoding is kept until a result changes.
func (a *API) clientChecks(_ context.Context, r *request) (answer, error) {
	alloc, err := r.alloc(apierror.NoAllocOnClient)
	if err != nil {
		return answer{}, err
	}
	return a.checkResults(r, alloc)
}

// allocationChecks is GET /v1/allocation/:id/checks, the same under another name.
func (a *API) allocationChecks(_ context.Context, r *request) (answer, error) {
	alloc, err := r.alloc(apierror.NoAlloc)
	if err != nil {
		return answer{}, err
	}
	return a.checkResults(r, alloc)
}

func (a *API) checkResults(r *request, alloc Alloc) (answer, error) {
	results, version := alloc.Checks()
	key := cacheKey{alloc: r.Principal.Claims.AllocationID, version: version}
	encoded, err := a.checks.get(key, func() any { return wireChecksOf(results) })
	return answer{body: encoded}, err
}
