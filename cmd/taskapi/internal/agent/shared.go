package agent

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/identity"
)

// leaseTimeout bounds how long the start of an allocation waits for the shared store.
const leaseTimeout = 2 * time.Second

// share joins the allocation to the services that allocations share. If the store is unavailable, the allocation starts
// all the same, and the provider takes the lease later.
func (s *wiring) share(alloc *api.Allocation) {
	s.registry = registry.New(s.cfg.Cluster)
	s.provider = s.registry.Provider(alloc, s.logger)
	ctx, cancel := context.WithTimeout(context.Background(), leaseTimeout)
	defer cancel()
	var err error
	if s.lease, err = s.cfg.Cluster.Hold(ctx, alloc.ID); err != nil {
		s.logger.Warn("what this machine's allocations have in common is away: services and variables follow later",
			"error", err)
	}
}

// OpenVariables returns the variables of a store, sealed by the ring's seal key.
func OpenVariables(store cluster.Store, ring *identity.Keyring) (*variables.Service, error) {
	sealer, err := ring.Sealer("variables")
	if err != nil {
		return nil, err
	}
	return variables.New(variables.Config{Store: store, Sealer: sealer}), nil
}
