package handlers

import (
	"context"
	"fmt"

	"taskapi/handlers/apierror"
)

// hostStats answers GET /v1/client/stats?node_id=, of this machine alone. As Nomad's, which wants node:read, it is no task's to ask.
func (a *API) hostStats(ctx context.Context, r *request) (answer, error) {
	if a.config.Host == nil {
		return answer{}, apierror.New(apierror.NoRoute)
	}
	query, err := r.values()
	if err != nil {
		return answer{}, err
	}
	if err := a.checkNodeID(query.Get("node_id")); err != nil {
		return answer{}, err
	}
	usage, err := a.config.Host(ctx)
	if err != nil {
		return answer{}, fmt.Errorf("measure the machine: %w", err)
	}
	return respond(usage)
}
