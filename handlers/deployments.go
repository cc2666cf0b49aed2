package handlers

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// deploymentList answers GET /v1/deployments and GET /v1/job/:job/deployments: there are none. An update is applied in place, or by a new
// allocation.
func (a *API) deploymentList(ctx context.Context, r *request) (answer, error) {
	list, err := newList(r, listing[*api.Deployment]{
		order: byCreateIndex, uuid: true,
		id:        func(d *api.Deployment) string { return d.ID },
		namespace: func(d *api.Deployment) string { return d.Namespace },
		created:   func(d *api.Deployment) uint64 { return d.CreateIndex },
	})
	if err != nil {
		return answer{}, err
	}
	current, err := a.withJob(ctx, r)
	if err != nil {
		return answer{}, err
	}
	return list.answer(nil, current.ModifyIndex)
}

// deploymentGet answers GET /v1/deployment/:deployment: whatever its ID, there is none.
func (a *API) deploymentGet(_ context.Context, r *request) (answer, error) {
	if err := checkUUID("deployment ID", r.param("deployment")); err != nil {
		return answer{}, err
	}
	return answer{}, apierror.New(apierror.NoDeployment)
}
