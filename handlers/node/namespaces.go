package node

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/list"
	"taskapi/handlers/internal/route"
)

// seesNamespace are the capabilities of which a caller needs one to see the namespace in the list of them, as in Nomad.
const seesNamespace = auth.CapabilitySet(auth.ReadJob | auth.ReadLogs | auth.ReadFS | auth.AllocLifecycle | auth.AllocExec)

// namespaceOf returns the namespace of the caller's job, the only one that it sees.
func namespaceOf(current *api.Allocation) *api.Namespace {
	return &api.Namespace{
		Name: current.Namespace, Description: "The namespace of the job",
		CreateIndex: current.CreateIndex, ModifyIndex: current.CreateIndex,
	}
}

// namespaces answers GET /v1/namespaces.
func (h *handlers) namespaces(ctx context.Context, r *route.Request) (route.Answer, error) {
	l, err := list.New(r, list.Listing[*api.Namespace]{Order: list.ByID, ID: func(n *api.Namespace) string { return n.Name }})
	if err != nil {
		return route.Answer{}, err
	}
	current, err := r.WithJob(ctx)
	if err != nil {
		return route.Answer{}, err
	}
	if r.Principal.Capabilities&seesNamespace == 0 {
		return l.Answer(nil, current.ModifyIndex)
	}
	return l.Answer([]*api.Namespace{namespaceOf(current)}, current.ModifyIndex)
}

// namespace answers GET /v1/namespace/:namespace.
func (h *handlers) namespace(ctx context.Context, r *route.Request) (route.Answer, error) {
	current, err := r.WithJob(ctx)
	if err != nil {
		return route.Answer{}, err
	}
	if r.Param("namespace") != current.Namespace {
		return route.Answer{}, apierror.New(apierror.NoNamespace)
	}
	return route.Indexed(namespaceOf(current), current.ModifyIndex)
}
