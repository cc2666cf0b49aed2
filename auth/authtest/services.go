package authtest

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/interfaces"
)

var errEnded = errors.New("the allocation has ended")

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
	a := t.alloc
	a.leased.Lock()
	defer a.leased.Unlock()
	err := errEnded
	if a.lease != nil {
		registration := api.ServiceRegistration{
			ID: id, ServiceName: name, Tags: tags, Address: address, Port: port,
			Namespace: t.alloc.claims.Namespace, JobID: t.alloc.claims.JobID, AllocID: t.alloc.id,
			NodeID: agent.NodeID, Datacenter: datacenter,
		}
		err = a.provider.Register(t.server.running, []*interfaces.ServiceInstance{
			{ServiceRegistration: registration, Task: t.name},
		})
	}
	t.server.check(err, "register service %q: ", name)
	return id
}

// DeregisterService ends a registration of the task's allocation, by its ID.
func (t *Task) DeregisterService(id string) {
	t.server.tb.Helper()
	a := t.alloc
	a.leased.Lock()
	defer a.leased.Unlock()
	err := errEnded
	if a.lease != nil {
		var known []string
		known, err = a.provider.Registered(t.server.running, a.lease.Owner())
		if err == nil && !slices.Contains(known, id) {
			err = registry.ErrNotFound
		}
	}
	if err == nil {
		err = a.provider.Deregister(t.server.running, []string{id})
	}
	t.server.check(err, "deregister service %q: ", id)
}
