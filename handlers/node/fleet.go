package node

import (
	"context"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/list"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
)

// Fleet has the machines that share a store, and their allocations.
type Fleet interface {
	// Nodes returns the machines, with the index of the list.
	Nodes(ctx context.Context) ([]*api.Node, uint64, error)
	// WaitNodes returns once the list has changed after an index, or when ctx ends.
	WaitNodes(ctx context.Context, index uint64) error
	// Allocations returns the allocations of all machines.
	Allocations(ctx context.Context) ([]*api.Allocation, uint64, error)
}

// nodes answers GET /v1/nodes.
func (h *handlers) nodes(ctx context.Context, r *route.Request) (route.Answer, error) {
	if h.Fleet == nil || !r.Principal.Operator() {
		return list.OfJob(listing, h.list)(ctx, r)
	}
	l, err := list.New(r, listing(r))
	if err != nil {
		return route.Answer{}, err
	}
	if err := r.AwaitChange(ctx, 0, h.Fleet.WaitNodes); err != nil {
		return route.Answer{}, err
	}
	all, index, err := h.Fleet.Nodes(ctx)
	if err != nil {
		return route.Answer{}, fmt.Errorf("list machines: %w", err)
	}
	var found []*wire.Node
	if alloc, ok := r.Visible(); ok { // this machine is shown as it is now, and before it is published
		own, err := h.Describe(alloc.Snapshot())
		if err != nil {
			return route.Answer{}, err
		}
		found = append(found, own)
	}
	for _, n := range all {
		if h.checkNodeID(n.ID) != nil {
			found = append(found, h.otherNode(n))
		}
	}
	return l.Answer(found, index)
}

// fleet returns a handler that answers the operator about another machine with the value that other returns, and calls
// own in all other cases.
func (h *handlers) fleet(
	own route.Handler, other func(ctx context.Context, n *api.Node) (value any, err error),
) route.Handler {
	return func(ctx context.Context, r *route.Request) (route.Answer, error) {
		id := r.Param("node")
		if h.Fleet == nil || !r.Principal.Operator() || route.CheckUUID("node ID", id) != nil || h.checkNodeID(id) == nil {
			return own(ctx, r)
		}
		if err := r.AwaitChange(ctx, 0, h.Fleet.WaitNodes); err != nil {
			return route.Answer{}, err
		}
		all, index, err := h.Fleet.Nodes(ctx)
		if err != nil {
			return route.Answer{}, fmt.Errorf("find a machine: %w", err)
		}
		for _, n := range all {
			if strings.EqualFold(n.ID, id) {
				value, err := other(ctx, n)
				if err != nil {
					return route.Answer{}, err
				}
				return route.Indexed(value, index)
			}
		}
		return route.Answer{}, apierror.New(apierror.NoNode)
	}
}

// other answers GET /v1/node/:node for another machine.
func (h *handlers) other(_ context.Context, n *api.Node) (any, error) { return h.otherNode(n), nil }

// otherAllocations answers GET /v1/node/:node/allocations for another machine.
func (h *handlers) otherAllocations(ctx context.Context, n *api.Node) (any, error) {
	all, _, err := h.Fleet.Allocations(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the allocations of a machine: %w", err)
	}
	found := []*wire.Allocation{}
	for _, alloc := range all {
		if alloc.NodeID == n.ID {
			found = append(found, wire.AllocationOf(alloc, ""))
		}
	}
	return found, nil
}

// otherNode returns another machine as Nomad's API has it.
func (h *handlers) otherNode(n *api.Node) *wire.Node { return wire.NodeOf(whole(n), n.ModifyIndex, "") }

// whole returns a machine's description with all fields that a client expects.
func whole(n *api.Node) *api.Node {
	if n.Attributes == nil {
		n.Attributes = map[string]string{}
	}
	if n.NodeResources == nil {
		n.NodeResources = &api.NodeResources{}
	}
	if n.ReservedResources == nil {
		n.ReservedResources = &api.NodeReservedResources{}
	}
	return n
}
