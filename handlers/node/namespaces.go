package node

import (
	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/list"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
)

// seesNamespace are the capabilities that let a caller see the namespace in the list; as in Nomad, one is enough.
const seesNamespace = auth.CapabilitySet(
	auth.ReadJob | auth.ReadLogs | auth.ReadFS | auth.AllocLifecycle | auth.AllocExec)

// NamespaceOf returns the namespace of an allocation's job.
func NamespaceOf(current *api.Allocation) *api.Namespace {
	description := "The namespace of the job"
	if current.Namespace == api.DefaultNamespace {
		description = "Default shared namespace" // as in Nomad
	}
	return &api.Namespace{
		Name: current.Namespace, Description: description,
		CreateIndex: current.CreateIndex, ModifyIndex: current.CreateIndex,
	}
}

// NamespaceListing says how namespaces are listed.
func NamespaceListing(*route.Request) list.Listing[*api.Namespace] {
	return list.Listing[*api.Namespace]{
		Order: list.ByID,
		ID:    func(n *api.Namespace) string { return n.Name },
		Stub:  func(n *api.Namespace) any { return wire.NamespaceOf(n) },
	}
}

func namespaces(r *route.Request, current *api.Allocation) ([]*api.Namespace, error) {
	if r.Principal.Capabilities&seesNamespace == 0 {
		return nil, nil
	}
	return []*api.Namespace{NamespaceOf(current)}, nil
}

func namespace(r *route.Request, current *api.Allocation) (any, error) {
	if r.Param("namespace") != current.Namespace {
		return nil, apierror.New(apierror.NoNamespace)
	}
	return wire.NamespaceOf(NamespaceOf(current)), nil
}
