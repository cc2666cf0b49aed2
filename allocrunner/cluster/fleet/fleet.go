// Package fleet publishes the nodes and allocations of machines that share a store, and reads those of other machines.
// An allocation's entries end with its lease. So a listed allocation runs, or ran until a lease's length ago. Each
// allocation has an entry for its machine, so a machine is listed as long as any of its allocations.
//
// The package promises that a reader sees all entries of one moment; that a change of an allocation's state is written
// at once, and other changes every few seconds; and that nothing stops when the store can't be used. It reads the store
// only for a caller.
package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
)

// ErrNotFound means that no machine has published such an entry.
var ErrNotFound = errors.New("no machine of the cluster has it")

// The prefixes of keys.
const (
	allocsPrefix = "fleet/allocs/" // and the allocation's ID
	nodesPrefix  = "fleet/nodes/"  // and the node's ID, a slash, and the ID of an allocation there
)

// Fleet reads the entries that the machines of a store have published. Its methods may be called from several
// goroutines. Besides the named errors, its methods return the store's.
type Fleet struct{ store cluster.Store }

// New returns the fleet of a store. It does no I/O.
func New(store cluster.Store) *Fleet { return &Fleet{store} }

// Allocations returns the allocations of all machines by ID, and the store's index. A job has only the fields that a
// list shows, a task has only its latest event, and the indexes are the store's. The caller may change the allocations.
func (f *Fleet) Allocations(ctx context.Context) ([]*api.Allocation, uint64, error) {
	return list(ctx, f.store, allocsPrefix, setAllocIndexes)
}

// Nodes returns the machines by ID, and the store's index.
func (f *Fleet) Nodes(ctx context.Context) ([]*api.Node, uint64, error) {
	return f.nodes(ctx, nodesPrefix)
}

// nodes returns the machines below a prefix by ID, each as its latest allocation has published it.
func (f *Fleet) nodes(ctx context.Context, prefix string) (found []*api.Node, index uint64, err error) {
	all, index, err := list(ctx, f.store, prefix, func(n *api.Node, e cluster.Entry) {
		n.CreateIndex, n.ModifyIndex = e.CreateIndex, e.ModifyIndex
	})
	for _, n := range all {
		last := len(found) - 1
		switch {
		case last < 0 || found[last].ID != n.ID:
			found = append(found, n)
		case n.ModifyIndex > found[last].ModifyIndex:
			n.CreateIndex = min(n.CreateIndex, found[last].CreateIndex)
			found[last] = n
		default:
			found[last].CreateIndex = min(n.CreateIndex, found[last].CreateIndex)
		}
	}
	return found, index, err
}

// Allocation returns an allocation as Allocations does. Errors: ErrNotFound.
func (f *Fleet) Allocation(ctx context.Context, id string) (*api.Allocation, error) {
	key := allocsPrefix + strings.ToLower(id)
	if cluster.CheckName("key", key) != nil {
		return nil, ErrNotFound
	}
	entry, _, err := f.store.Get(ctx, key)
	switch {
	case err != nil:
		return nil, fmt.Errorf("look into the fleet: %w", err)
	case entry.ModifyIndex == 0:
		return nil, ErrNotFound
	}
	return decode(entry, setAllocIndexes)
}

// Node returns a machine as Nodes does. Errors: ErrNotFound.
func (f *Fleet) Node(ctx context.Context, id string) (*api.Node, error) {
	prefix := nodesPrefix + strings.ToLower(id) + "/"
	if id == "" || strings.Contains(id, "/") || cluster.CheckName("key", prefix) != nil {
		return nil, ErrNotFound
	}
	found, _, err := f.nodes(ctx, prefix)
	if err != nil || len(found) == 0 {
		return nil, cmp.Or(err, ErrNotFound)
	}
	return found[0], nil
}

func setAllocIndexes(alloc *api.Allocation, e cluster.Entry) {
	alloc.CreateIndex, alloc.ModifyIndex = e.CreateIndex, e.ModifyIndex
}

// WaitAllocations returns once an allocation is published, changed or gone after an index, or when ctx ends.
func (f *Fleet) WaitAllocations(ctx context.Context, index uint64) error {
	return f.wait(ctx, allocsPrefix, index)
}

// WaitNodes returns once a machine's entry is published, changed or gone after an index, or when ctx ends.
func (f *Fleet) WaitNodes(ctx context.Context, index uint64) error {
	return f.wait(ctx, nodesPrefix, index)
}

func (f *Fleet) wait(ctx context.Context, prefix string, index uint64) error {
	now, err := f.store.List(ctx, cluster.Span{Prefix: prefix, Limit: 1})
	if err == nil { // a higher index came from a store that was removed since
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
