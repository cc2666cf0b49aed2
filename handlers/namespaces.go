package handlers

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// namespaceOf returns the namespace of the caller's job, the only one that it sees.
func namespaceOf(current *api.Allocation) *api.Namespace {
	return &api.Namespace{
		Name: current.Namespace, Description: "The namespace of the job", Capabilities: &api.NamespaceCapabilities{}, Meta: map[string]string{},
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
