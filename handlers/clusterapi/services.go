package clusterapi

import (
	"context"
	"errors"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/registry"
	"taskapi/handlers"
	"taskapi/handlers/apierror"
)

// Services returns a registry as the API serves it.
func Services(all *registry.Registry) handlers.Services { return servicesAPI{all} }

type servicesAPI struct{ registry *registry.Registry }

func (s servicesAPI) Services(ctx context.Context, namespace, name string) ([]*api.ServiceRegistration, uint64, error) {
	found, index, err := s.registry.Services(ctx, namespace, name)
	return found, index, storeError(err)
}

func (s servicesAPI) WaitServices(ctx context.Context, namespace, name string, index uint64) error {
	return storeError(s.registry.Wait(ctx, namespace, name, index))
}

func (s servicesAPI) Deregister(ctx context.Context, namespace, name, id string) (uint64, error) {
	index, err := s.registry.Deregister(ctx, namespace, name, id)
	if errors.Is(err, registry.ErrNotFound) {
		return 0, apierror.New(apierror.NoService).Because(err)
	}
	return index, storeError(err)
}
