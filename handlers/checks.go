package handlers

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// Checker is an allocation with checks.
type Checker interface {
	// Checks returns the latest result of every check by ID, and a version that differs whenever the results do.
	Checks() (results api.AllocCheckStatuses, version uint64)
}

// clientChecks answers GET /v1/client/allocation/:id/checks, the most frequent request: its encoding is kept until a result changes.
func (a *API) clientChecks(_ context.Context, r *request) (answer, error) {
	return a.checkResults(r, apierror.NoAllocOnClient)
}

// allocationChecks answers GET /v1/allocation/:id/checks, the same results.
func (a *API) allocationChecks(_ context.Context, r *request) (answer, error) {
	return a.checkResults(r, apierror.NoAlloc)
}

func (a *API) checkResults(r *request, unknown apierror.Kind) (answer, error) {
	alloc, err := resource[Checker](r, unknown)
	if err != nil {
		return answer{}, err
	}
	results, version := alloc.Checks()
	key := cacheKey{alloc: r.param("alloc"), version: version}
	encoded, err := a.checks.get(key, func() any { return wireChecksOf(results) })
	return answer{body: encoded}, err
}
