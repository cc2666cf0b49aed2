package registry

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
)

// Change is a registration that is new or changed. With Gone it was removed, and Service is its last version.
type Change struct {
	Service *api.ServiceRegistration
	Gone    bool
}

// Follower reports what happens to the registrations in a namespace.
type Follower struct {
	store  cluster.Store
	prefix string
	index  uint64                   // up to which changes are known
	known  map[string]cluster.Entry // by key: as they were last reported
}

// Follow returns a follower that reports changes from now on. If the store can't be read now, the follower first
// reports every registration once it can.
func (r *Registry) Follow(ctx context.Context, namespace string) *Follower {
	f := &Follower{store: r.store, prefix: prefixOf(namespace, ""), known: map[string]cluster.Entry{}}
	if page, err := f.store.List(ctx, cluster.Span{Prefix: f.prefix}); err == nil {
		f.diff(page)
	}
	return f
}

// Run calls put with changes, in their order, until ctx ends.
func (f *Follower) Run(ctx context.Context, put func([]Change)) {
	for ctx.Err() == nil {
		changes, err := f.next(ctx)
		if len(changes) > 0 {
			put(changes)
		}
		if err != nil {
			select {
			case <-time.After(lastPause):
			case <-ctx.Done():
			}
		}
	}
}

// next waits for changes.
func (f *Follower) next(ctx context.Context) ([]Change, error) {
	since, err := f.store.Watch(ctx, f.prefix, f.index)
	if err != nil {
		return nil, err
	}
	if since.Gap {
		page, err := f.store.List(ctx, cluster.Span{Prefix: f.prefix})
		if err != nil {
			return nil, err
		}
		return f.diff(page), nil
	}
	var changes []Change
	for _, key := range since.Keys {
		entry, _, err := f.store.Get(ctx, key)
		if err != nil { // the changes before it are reported now, the others once they can be read
			return changes, err
		}
		changes = append(changes, f.note(entry)...)
	}
	f.index = since.Index
	return changes, nil
}

// diff returns the changes between what is known and a page.
func (f *Follower) diff(page cluster.Page) (changes []Change) {
	there := map[string]bool{}
	for _, entry := range page.Entries {
		there[entry.Key] = true
		changes = append(changes, f.note(entry)...)
	}
	for key := range f.known {
		if !there[key] {
			changes = append(changes, f.note(cluster.Entry{Key: key})...)
		}
	}
	f.index = page.Index
	return changes
}

// note remembers an entry, and returns the change, if it differs from what was known.
func (f *Follower) note(entry cluster.Entry) []Change {
	before, known := f.known[entry.Key]
	if entry.ModifyIndex == 0 {
		delete(f.known, entry.Key)
		if s, err := decode(before); known && err == nil {
			return []Change{{Service: s, Gone: true}}
		}
		return nil
	}
	f.known[entry.Key] = entry
	if known && before.ModifyIndex == entry.ModifyIndex {
		return nil
	}
	if s, err := decode(entry); err == nil {
		return []Change{{Service: s}}
	}
	return nil
}
