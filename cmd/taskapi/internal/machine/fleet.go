package machine

import (
	"context"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// Elsewhere returns the allocations of the other machines of a cluster.
func (m *Machine) Elsewhere(ctx context.Context) ([]*api.Allocation, error) {
	if m.fleet == nil {
		return nil, nil
	}
	all, index, err := m.fleet.Allocations(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.fleetIndex = max(m.fleetIndex, index)
	m.mu.Unlock()
	return slices.DeleteFunc(all, func(alloc *api.Allocation) bool { return alloc.NodeID == m.self.alloc.NodeID }), nil
}

// watchFleet makes the machine's index grow when another machine's allocations change, until ctx ends. Nobody watches
// while no query waits.
func (m *Machine) watchFleet(ctx context.Context) {
	m.mu.Lock()
	index := m.fleetIndex
	m.mu.Unlock()
	if m.fleet.WaitAllocations(ctx, index) == nil && ctx.Err() == nil {
		m.grow()
	}
}

// elsewhere says on which machine an allocation runs; empty when the cluster does not know the allocation.
func (m *Machine) elsewhere(ctx context.Context, id string) string {
	alloc, err := m.fleet.Allocation(ctx, id)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s runs on the machine %s, node %s", alloc.Name, alloc.NodeName, alloc.NodeID)
}
