package authtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/interfaces"
)

// services are an allocation's services in the registry. They last until the end of the allocation, and of its lease.
type services struct {
	provider *registry.Provider

	mu    sync.Mutex    // held during a registration, so that no service outlasts the lease; guards the field below
	lease cluster.Lease // nil after the end
}

func (s *Server) newServices(ctx context.Context, alloc *api.Allocation) (*services, error) {
	lease, err := s.cluster.Hold(ctx, alloc.ID)
	if err != nil {
		return nil, err
	}
	provider := s.registry.Provider(alloc, discard)
	s.background.Go(func() { provider.Run(s.running) })
	return &services{provider: provider, lease: lease}, nil
}

var errEnded = errors.New("the allocation has ended")

// end ends the lease, and the services with it.
func (s *services) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease != nil {
		_ = s.lease.Close() // in memory nothing can fail
		s.lease = nil
	}
}

// RegisterService registers a service of the task, like a service block in its job with provider = "nomad", and returns
// the registration's ID. The service lasts until DeregisterService or the end of the allocation. A service with the
// same name, address and port replaces it.
func (t *Task) RegisterService(name, address string, port int, tags ...string) (id string) {
	t.server.tb.Helper()
	owner := t.name
	if owner == "" {
		owner = "group-" + t.alloc.claims.TaskGroup
	}
	id = fmt.Sprintf("_nomad-task-%s-%s-%s-%s", t.alloc.id, owner, name, net.JoinHostPort(address, strconv.Itoa(port)))
	s := t.alloc.services
	s.mu.Lock()
	defer s.mu.Unlock()
	err := errEnded
	if s.lease != nil {
		err = s.provider.Register(t.server.running, []*interfaces.ServiceInstance{{
			ID: id, Task: t.name, Name: name, Tags: tags, Address: address, Port: port,
			Namespace: t.alloc.claims.Namespace, JobID: t.alloc.claims.JobID, AllocID: t.alloc.id,
			NodeID: agent.NodeID, Datacenter: datacenter,
		}})
	}
	t.server.check(err, "register service %q: ", name)
	return id
}

// DeregisterService ends a registration of the task's allocation, by its ID.
func (t *Task) DeregisterService(id string) {
	t.server.tb.Helper()
	s := t.alloc.services
	s.mu.Lock()
	defer s.mu.Unlock()
	err := errEnded
	if s.lease != nil {
		var known []string
		known, err = s.provider.Registered(t.server.running, s.lease.Owner())
		if err == nil && !slices.Contains(known, id) {
			err = registry.ErrNotFound
		}
	}
	if err == nil {
		err = s.provider.Deregister(t.server.running, []string{id})
	}
	t.server.check(err, "deregister service %q: ", id)
}
