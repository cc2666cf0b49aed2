package agent

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/interfaces"
)

// sharing is an allocation's part in what allocations have in common.
type sharing struct {
	registry *registry.Registry
	provider *registry.Provider
	lease    cluster.Lease // nil where the store was away as it was to begin
}

// leaseTimeout bounds how long the start of an allocation waits for the store.
const leaseTimeout = 2 * time.Second

// share joins the allocation to what allocations have in common. A store that is away keeps it from nothing: the provider of its services
// begins the lease that it needs.
func (s *wiring) share(alloc *api.Allocation) *sharing {
	all := registry.New(s.cfg.Cluster)
	shared := &sharing{registry: all, provider: all.Provider(alloc, s.logger)}
	ctx, cancel := context.WithTimeout(context.Background(), leaseTimeout)
	defer cancel()
	var err error
	if shared.lease, err = s.cfg.Cluster.Hold(ctx, alloc.ID); err != nil {
		s.logger.Warn("what this machine's allocations have in common is away: services and variables follow later", "error", err)
	}
	return shared
}

// leases returns what is to outlive this process while tasks run.
func (s *sharing) leases() []interfaces.Lease {
	if s.lease == nil {
		return nil
	}
	return []interfaces.Lease{s.lease}
}

// close ends this process's hold of the lease.
func (s *sharing) close() error {
	if s == nil || s.lease == nil {
		return nil
	}
	return s.lease.Close()
}

// announceServices makes events of what happens to the services in the allocation's namespace, until ctx ends. It returns once it knows what
// there is by now; what is to run is the returned function.
func (s *wiring) announceServices(ctx context.Context, namespace string) (run func()) {
	follower := s.shared.registry.Follow(ctx, namespace)
	return func() {
		follower.Run(ctx, s.events.PutServices)
	}
}
