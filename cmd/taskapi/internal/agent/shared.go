package agent

import (
	"context"
	"time"

	"taskapi/allocrunner"
	"taskapi/allocrunner/claims"
	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/identity"
)

// leaseTimeout bounds how long the start of an allocation waits for the shared store.
const leaseTimeout = 2 * time.Second

// hold takes the lease of the allocation in the shared store. If the store is unavailable, the allocation starts
// all the same, and the provider takes the lease later.
func (s *wiring) hold() {
	ctx, cancel := context.WithTimeout(context.Background(), leaseTimeout)
	defer cancel()
	var err error
	if s.lease, err = s.cfg.Cluster.Hold(ctx, s.cfg.ID); err != nil {
		s.logger.Warn("the store that this machine's allocations share is unavailable: services and variables follow later",
			"error", err)
	}
}

// leases returns the lease that hold has taken, and the claims.
func (s *wiring) leases() []interfaces.Lease {
	if s.lease == nil {
		return []interfaces.Lease{s.claims}
	}
	return []interfaces.Lease{s.lease, s.claims}
}

// ClaimsOf returns the claims of a data directory's allocations.
func ClaimsOf(dir datadir.Dir) claims.Table {
	return claims.Table{Dir: dir.Claims(), Runs: func(id string) bool { return allocrunner.TasksRunning(dir.Alloc(id)) }}
}

// claimHooks returns the hooks that take things for the allocation alone, and that which ends its claims.
func (s *wiring) claimHooks() []interfaces.RunnerHook {
	s.claims = claims.NewHook(ClaimsOf(s.cfg.Dir), s.cfg.ID)
	return []interfaces.RunnerHook{s.claims}
}

// OpenVariables returns the variables of a store, sealed by the ring's seal key.
func OpenVariables(store cluster.Store, ring *identity.Keyring) (*variables.Service, error) {
	sealer, err := ring.Sealer("variables")
	if err != nil {
		return nil, err
	}
	return variables.New(variables.Config{Store: store, Sealer: sealer}), nil
}
