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
	m.seen(index)
	return slices.DeleteFunc(all, func(alloc *api.Allocation) bool { return alloc.NodeID == m.self.alloc.NodeID }), nil
}

// seen notes the index of the other machines' list.
func (m *Machine) seen(index uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if index > m.fleetIndex {
		m.fleetIndex = index
	}
}

// watchFleet makes the machine's index grow when another machine's allocations change, until ctx ends. Nobody watches
// while no query waits.
func (m *Machine) watchFleet(ctx context.Context) {
	m.mu.Lock()
	index := m.fleetIndex
	m.mu.Unlock()
	if m.fleet == nil || m.fleet.WaitAllocations(ctx, index) != nil || ctx.Err() != nil {
		return
	}
	m.grow()
}

// elsewhere says where another machine runs an allocation, empty when it does not know.
func (m *Machine) elsewhere(ctx context.Context, id string) string {
	alloc, err := m.fleet.Allocation(ctx, id)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s runs on the machine %s, node %s", alloc.Name, alloc.NodeName, alloc.NodeID)
}
