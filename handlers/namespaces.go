package handlers

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers/apierror"
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

// namespaceList answers GET /v1/namespaces.
func (a *API) namespaceList(ctx context.Context, r *request) (answer, error) {
	list, err := newList(r, listing[*api.Namespace]{order: byID, id: func(n *api.Namespace) string { return n.Name }})
	if err != nil {
		return answer{}, err
	}
	current, err := a.withJob(ctx, r)
	if err != nil {
		return answer{}, err
	}
	if r.Principal.Capabilities&seesNamespace == 0 {
		return list.answer(nil, current.ModifyIndex)
	}
	return list.answer([]*api.Namespace{namespaceOf(current)}, current.ModifyIndex)
}

// namespaceGet answers GET /v1/namespace/:namespace.
func (a *API) namespaceGet(ctx context.Context, r *request) (answer, error) {
	current, err := a.withJob(ctx, r)
	if err != nil {
		return answer{}, err
	}
	if r.param("namespace") != current.Namespace {
		return answer{}, apierror.New(apierror.NoNamespace)
	}
	encoded, err := encode(namespaceOf(current))
	return answer{body: encoded, index: current.ModifyIndex}, err
}
