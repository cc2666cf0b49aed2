package services

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// ID returns Nomad's ID of a service, by its resolved name and port label. task is empty for a service of the group.
func ID(allocID, group, task, name, port string) string {
	owner := task
	if task == "" {
		owner = "group-" + group
	}
	return fmt.Sprintf("_nomad-task-%s-%s-%s-%s", allocID, owner, name, port)
}

// ID returns Nomad's ID of the service.
func (s Service) ID(alloc *api.Allocation) string {
	return ID(alloc.ID, alloc.TaskGroup, s.Task, s.Name, s.text(s.written.PortLabel))
}

// Owned holds the services of an allocation by their owner: a task, or the group for the empty name.
type Owned map[string][]*interfaces.ServiceInstance

// ResolveAll returns the services of the allocation's group and tasks, for providers. The text of a task's service is
// interpolated with the task's environment, that of a group's service with the allocation's. The error names every
// service that has no address, or the ID of another.
func (r Resolver) ResolveAll(alloc *api.Allocation, datacenter string) (Owned, error) {
	group := alloc.GetTaskGroup()
	if group == nil {
		return nil, fmt.Errorf("the job has no group %q", alloc.TaskGroup)
	}
	owned, seen := Owned{}, map[string]bool{} // seen by ID
	var errs []error
	for task, written := range Of(group) {
		made, err := r.Resolve(task, written).instance(alloc, datacenter)
		if err == nil && seen[made.ID] {
			err = fmt.Errorf("another service has its ID, %s: its name or its port must differ", made.ID)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("service %q: %w", made.ServiceName, err))
		}
		seen[made.ID] = true
		owned[task] = append(owned[task], made)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return owned, nil
}

func (s Service) instance(alloc *api.Allocation, datacenter string) (*interfaces.ServiceInstance, error) {
	host, port, err := s.Address()
	whole := s.whole()
	return &interfaces.ServiceInstance{
		ServiceRegistration: api.ServiceRegistration{
			ID: s.ID(alloc), ServiceName: s.Name, Tags: whole.Tags, Address: host, Port: port,
			Namespace: alloc.Namespace, JobID: alloc.JobID, AllocID: alloc.ID, NodeID: alloc.NodeID, Datacenter: datacenter,
		},
		Task: s.Task, Service: whole, CheckAddresses: s.checkAddresses(whole.Checks),
	}, err
}

// checkAddresses returns the addresses to which checks, as Check returns them, connect. A check without an address has
// an empty one, and is refused later.
func (s Service) checkAddresses(list []api.ServiceCheck) []string {
	addresses := make([]string, len(list))
	for i, c := range list {
		if c.Type == TypeScript {
			continue
		}
		if host, port, err := s.CheckAddress(c); err == nil {
			addresses[i] = net.JoinHostPort(host, strconv.Itoa(port))
		}
	}
	return addresses
}

// whole returns the service's block with its text resolved.
func (s Service) whole() *api.Service {
	whole := *s.written
	whole.Name, whole.PortLabel, whole.Address = s.Name, s.text(whole.PortLabel), s.text(whole.Address)
	whole.Tags, whole.CanaryTags = s.texts(whole.Tags), s.texts(whole.CanaryTags)
	whole.Meta, whole.CanaryMeta = s.textMap(whole.Meta), s.textMap(whole.CanaryMeta)
	whole.TaggedAddresses = s.textMap(whole.TaggedAddresses)
	whole.Checks = slices.Clone(whole.Checks)
	for i, c := range whole.Checks {
		whole.Checks[i] = s.Check(c)
	}
	return &whole
}

func (s Service) texts(list []string) []string {
	list = slices.Clone(list)
	for i, v := range list {
		list[i] = s.text(v)
	}
	return list
}

func (s Service) textMap(m map[string]string) map[string]string {
	if m == nil {
		return nil
	}
	resolved := make(map[string]string, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) { // if two keys become equal, the result is always the same
		resolved[s.text(key)] = s.text(m[key])
	}
	return resolved
}
