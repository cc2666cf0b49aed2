// Package fleet has what the machines that share a store show each other: their nodes, and the allocations that run on
// them. A machine's entries end with its leases, so what is listed runs, or did so until a lease's length ago.
//
// It promises that a reader sees all entries of one moment; that an allocation whose state changes is written at once,
// and one that changes otherwise every few seconds; that an entry which was lost is written again; and that a store
// which can't be used stops nothing. It reads only when somebody asks.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
)

// ErrNotFound: no machine has published such an entry.
var ErrNotFound = errors.New("no machine of the cluster has it")

// The prefixes of keys.
const (
	allocsPrefix = "fleet/allocs/" // and the allocation's ID
	nodesPrefix  = "fleet/nodes/"  // and the node's ID
)

// Fleet reads what the machines of a store have published. Its methods may be called from several goroutines. Errors
// besides those named: the store's.
type Fleet struct{ store cluster.Store }

// New returns the fleet of a store. It does no I/O.
func New(store cluster.Store) *Fleet { return &Fleet{store} }

// Allocations returns the allocations of all machines by ID, and the store's index. Their jobs have only the fields
// that a list shows, their events only the latest of each task, and their indexes are the store's. The caller may
// change what it gets.
func (f *Fleet) Allocations(ctx context.Context) ([]*api.Allocation, uint64, error) {
	return list(ctx, f.store, allocsPrefix, func(alloc *api.Allocation, e cluster.Entry) {
		alloc.CreateIndex, alloc.ModifyIndex = e.CreateIndex, e.ModifyIndex
	})
}

// Nodes returns the machines by ID, and the store's index.
func (f *Fleet) Nodes(ctx context.Context) ([]*api.Node, uint64, error) {
	return list(ctx, f.store, nodesPrefix, setNodeIndexes)
}

// Allocation returns one of those that Allocations returns. Errors: ErrNotFound.
func (f *Fleet) Allocation(ctx context.Context, id string) (*api.Allocation, error) {
	return get(ctx, f.store, allocsPrefix+strings.ToLower(id), func(alloc *api.Allocation, e cluster.Entry) {
		alloc.CreateIndex, alloc.ModifyIndex = e.CreateIndex, e.ModifyIndex
	})
}

// Node returns one of those that Nodes returns. Errors: ErrNotFound.
func (f *Fleet) Node(ctx context.Context, id string) (*api.Node, error) {
	return get(ctx, f.store, nodesPrefix+strings.ToLower(id), setNodeIndexes)
}

func setNodeIndexes(n *api.Node, e cluster.Entry) {
	n.CreateIndex, n.ModifyIndex = e.CreateIndex, e.ModifyIndex
}

// WaitAllocations returns once an allocation is published, changed or gone after an index, or when ctx ends.
func (f *Fleet) WaitAllocations(ctx context.Context, index uint64) error {
	return f.wait(ctx, allocsPrefix, index)
}

// WaitNodes does the same for nodes.
func (f *Fleet) WaitNodes(ctx context.Context, index uint64) error {
	return f.wait(ctx, nodesPrefix, index)
}

func (f *Fleet) wait(ctx context.Context, prefix string, index uint64) error {
	now, err := f.store.List(ctx, cluster.Span{Prefix: prefix, Limit: 1})
	if err == nil { // a higher index is from a store that was removed since
		_, err = f.store.Watch(ctx, prefix, min(index, now.Index))
	}
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("wait for a change of the fleet: %w", err)
	}
	return nil
}

// list returns the values below a prefix. An entry that can't be read is from a later version of this program, or
// damaged; it must not hide the others.
func list[T any](
	ctx context.Context, store cluster.Store, prefix string, fill func(*T, cluster.Entry),
) ([]*T, uint64, error) {
	page, err := store.List(ctx, cluster.Span{Prefix: prefix})
	if err != nil {
		return nil, 0, fmt.Errorf("list the fleet: %w", err)
	}
	found := make([]*T, 0, len(page.Entries))
	for _, entry := range page.Entries {
		if v, err := decode(entry, fill); err == nil {
			found = append(found, v)
		}
	}
	return found, page.Index, nil
}

func get[T any](ctx context.Context, store cluster.Store, key string, fill func(*T, cluster.Entry)) (*T, error) {
	if cluster.CheckName("key", key) != nil {
		return nil, ErrNotFound
	}
	entry, _, err := store.Get(ctx, key)
	switch {
	case err != nil:
		return nil, fmt.Errorf("look into the fleet: %w", err)
	case entry.ModifyIndex == 0:
		return nil, ErrNotFound
	}
	return decode(entry, fill)
}

func decode[T any](entry cluster.Entry, fill func(*T, cluster.Entry)) (*T, error) {
	if entry.Damaged {
		return nil, ErrNotFound
	}
	v := new(T)
	if err := json.Unmarshal(entry.Value, v); err != nil {
		return nil, fmt.Errorf("%s: %w", entry.Key, err)
	}
	fill(v, entry)
	return v, nil
}
