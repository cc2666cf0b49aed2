// Package registry keeps registrations of services, Nomad's provider "nomad", in the store that allocations share.
//
// It promises that a registration lasts as long as its allocation's lease, or until somebody removes it; that an
// unchanged registration is not written again; that no allocation changes or removes the registrations of another; and
// that a store which can't be used stops nobody: registrations are written as soon as it can. It resolves no address
// and runs no check. The caller holds the lease.
package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
)

// ErrNotFound: there is no such registration.
var ErrNotFound = errors.New("service registration not found")

// root begins the keys of registrations: services/NAMESPACE/NAME/ID. Neither a namespace nor a name has a slash.
const root = "services/"

func keyOf(namespace, name, id string) string { return prefixOf(namespace, name) + id }

// prefixOf returns the prefix of the keys with a namespace and a name. An empty one stands for all; a name in all
// namespaces has no prefix of its own.
func prefixOf(namespace, name string) string {
	switch {
	case namespace == "":
		return root
	case name == "":
		return root + namespace + "/"
	}
	return root + namespace + "/" + name + "/"
}

// idOf returns the ID in a key of a namespace.
func idOf(key string) string {
	parts := strings.SplitN(key, "/", 4)
	return parts[len(parts)-1]
}

// KeyPrefix returns the prefix of the keys of a namespace's registrations.
func KeyPrefix(namespace string) string { return prefixOf(namespace, "") }

// OfKey returns the namespace and the name of the service whose registration's key in the store has changed; ok is
// false for other keys.
func OfKey(key string) (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(key, root)
	parts := strings.SplitN(rest, "/", 3)
	if !ok || len(parts) != 3 {
		return "", "", false
	}
	return parts[0], parts[1], true
}

// Registry gives access to all registrations in a store. Its methods may be called from several goroutines. Errors
// besides those named: the store's.
type Registry struct {
	store cluster.Store
}

// New returns the registry in a store.
func New(store cluster.Store) *Registry { return &Registry{store} }

// Services returns the registrations with a namespace and a name, ordered by namespace, name and ID, and the store's
// index. An empty namespace or name stands for all. The caller may change what it gets.
func (r *Registry) Services(ctx context.Context, namespace, name string) ([]*api.ServiceRegistration, uint64, error) {
	page, err := r.store.List(ctx, cluster.Span{Prefix: prefixOf(namespace, name), Local: true})
	if err != nil {
		return nil, 0, fmt.Errorf("list services: %w", err)
	}
	found := make([]*api.ServiceRegistration, 0, len(page.Entries))
	for _, entry := range page.Entries {
		// An entry that can't be read is from a later version of this program. It must not hide the others.
		if s, err := decode(entry); err == nil && (name == "" || s.ServiceName == name) {
			found = append(found, s)
		}
	}
	return found, page.Index, nil
}

// Wait returns once one of the registrations that Services returns is made, changed or removed after an index, or when
// ctx ends.
func (r *Registry) Wait(ctx context.Context, namespace, name string, index uint64) error {
	prefix := prefixOf(namespace, name)
	now, err := r.store.List(ctx, cluster.Span{Prefix: prefix, Limit: 1, Local: true})
	if err == nil {
		// A higher index is from a store that was removed since.
		_, err = r.store.Watch(ctx, prefix, min(index, now.Index))
	}
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("wait for services: %w", err)
	}
	return nil
}

// Deregister removes a registration of any allocation, and returns the store's index. The allocation writes it again
// when it registers its services the next time, such as at a restart. Errors: ErrNotFound.
func (r *Registry) Deregister(ctx context.Context, namespace, name, id string) (uint64, error) {
	key := keyOf(namespace, name, id)
	if cluster.CheckName("key", key) != nil {
		return 0, ErrNotFound
	}
	for {
		entry, _, err := r.store.Get(ctx, key)
		switch {
		case err != nil:
			return 0, fmt.Errorf("remove a service: %w", err)
		case entry.ModifyIndex == 0:
			return 0, ErrNotFound
		}
		index, err := r.store.Commit(ctx, cluster.Txn{
			If:   []cluster.Condition{{Key: key, ModifyIndex: entry.ModifyIndex}},
			Then: []cluster.Operation{{Key: key, Delete: true}},
		})
		if cluster.IsConflict(err) {
			continue // somebody has changed it meanwhile
		}
		if err != nil {
			return 0, fmt.Errorf("remove a service: %w", err)
		}
		return index, nil
	}
}

// encode returns the value of a registration's entry. The indexes are the entry's own.
func encode(s *api.ServiceRegistration) []byte {
	stored := *s
	stored.CreateIndex, stored.ModifyIndex = 0, 0
	value, _ := json.Marshal(&stored) // strings and numbers can always be encoded
	return value
}

// decode returns the registration in an entry.
func decode(entry cluster.Entry) (*api.ServiceRegistration, error) {
	s := new(api.ServiceRegistration)
	if err := json.Unmarshal(entry.Value, s); err != nil {
		return nil, fmt.Errorf("%s: %w", entry.Key, err)
	}
	if s.Tags == nil {
		s.Tags = []string{}
	}
	s.CreateIndex, s.ModifyIndex = entry.CreateIndex, entry.ModifyIndex
	return s, nil
}

// Change is a new, a changed or a removed registration. Its value is nil for a registration of a later version of this
// program, which can't be read.
type Change = cluster.Change[*api.ServiceRegistration]

// Feed keeps the latest changes of registrations.
type Feed = cluster.Feed[*api.ServiceRegistration]

// Feed returns a feed of the changes in a namespace, empty for all. In a store of several machines, where each reader
// costs, it is lazy.
func (r *Registry) Feed(ctx context.Context, namespace string) *Feed {
	_, shared := cluster.As[cluster.Fresher](r.store)
	return cluster.NewFeed(ctx, r.store, cluster.FeedConfig[*api.ServiceRegistration]{
		Prefix: prefixOf(namespace, ""), Lazy: shared,
		Decode: func(entry cluster.Entry) *api.ServiceRegistration {
			s, _ := decode(entry)
			return s
		},
	})
}
