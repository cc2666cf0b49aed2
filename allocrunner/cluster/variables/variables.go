// Package variables keeps Nomad's variables, and the locks on them, in a cluster.Store. It checks paths and sizes, does
// check-and-set, seals the items of a variable for its path, and keeps locks that outlive processes. It promises that
// one of two writers who expect the same index wins; that nobody changes a variable while another holds its lock; that
// items can be read only with the sealer's key, and only at their own path; and that a damaged variable is an error of
// that variable, and of no list. It does not decide who may read what, and knows neither HTTP nor tokens.
package variables

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
)

// AllNamespaces stands for every namespace in a list.
const AllNamespaces = api.AllNamespacesNamespace

// Config holds the parts of a Service. Store and Sealer are required.
type Config struct {
	Store  cluster.Store
	Sealer cluster.Sealer
	Now    func() (Moment, error) // the clock of leases; nil for this machine's
}

// Service gives access to the variables of a store. Any number of processes may have one. Its methods may be called
// from several goroutines; what they return is the caller's. Errors besides those named: *InvalidError, *DamagedError,
// those of cluster.Store, ctx's.
type Service struct {
	store  cluster.Store
	sealer cluster.Sealer
	now    func() (Moment, error)
	others *observer     // of the locks of other machines; nil for a store of this machine alone
	ending chan struct{} // has an element while this process ends a lock whose time is over
	bounds usage         // of all variables, above which it writes no more
	writer string        // the job whose share its writes count against; empty for the operator, who has none
	feed   func() *Feed  // the same for all callers
}

// New returns the variables of a store. It touches nothing.
func New(c Config) *Service {
	if c.Now == nil {
		c.Now = now
	}
	var others *observer
	if _, shared := cluster.As[cluster.Fresher](c.Store); shared {
		others = &observer{seen: map[string]observed{}}
	}
	s := &Service{c.Store, c.Sealer, c.Now, others, make(chan struct{}, 1), usage{MaxVariables, MaxBytes}, "", nil}
	s.feed = sync.OnceValue(s.newFeed)
	return s
}

// OfTask returns a Service for the tasks of a job: their writes leave room for the operator and for other jobs.
func (s *Service) OfTask(namespace, job string) *Service {
	bounds := usage{MaxVariables - reserve.Variables, MaxBytes - reserve.Bytes}
	return &Service{s.store, s.sealer, s.now, s.others, s.ending, bounds, writerOf(namespace, job), s.feed}
}

// writerOf returns a short name for a job, which may have a long one.
func writerOf(namespace, job string) string {
	sum := sha256.Sum256([]byte(namespace + "/" + job)) // no namespace has a slash
	return hex.EncodeToString(sum[:8])
}

// Read returns a variable, nil for none, and the index to wait from: the variable's, or the store's when there is none.
func (s *Service) Read(ctx context.Context, namespace, path string) (*api.Variable, uint64, error) {
	if err := checkNamespace(namespace); err != nil {
		return nil, 0, err
	}
	if CheckPath(path) != nil { // as in Nomad, an impossible path has no variable
		_, index, err := s.store.Get(ctx, usageKey)
		return nil, index, err
	}
	found, err := s.look(ctx, place{namespace, path})
	if err != nil || !found.exists() {
		return nil, found.index, err
	}
	items, err := s.items(found)
	if err != nil {
		return nil, found.entry.ModifyIndex, &DamagedError{Namespace: namespace, Path: path, Err: err}
	}
	return found.variable(items), found.entry.ModifyIndex, nil
}

// List returns the metadata of variables, by namespace and path, and the store's index. It lists those of a namespace,
// or of AllNamespaces, whose paths begin with the prefix and that concern the caller. Nothing is read of others.
func (s *Service) List(
	ctx context.Context, namespace, prefix string, concerns Concerns,
) ([]*api.VariableMetadata, uint64, error) {
	if namespace != AllNamespaces {
		if err := checkNamespace(namespace); err != nil {
			return nil, 0, err
		}
	}
	page, err := s.store.List(ctx, cluster.Span{Prefix: prefixOf(namespace, prefix), Head: maxHeader,
		Only: func(key string) bool {
			at, ok := placeIn(variablePrefix, key)
			return ok && strings.HasPrefix(at.path, prefix) && concerns(at.namespace, at.path)
		}})
	if err != nil {
		return nil, 0, err
	}
	states := make([]state, 0, len(page.Entries))
	locked := map[string]bool{} // by the keys of leases
	for _, entry := range page.Entries {
		at, _ := placeIn(variablePrefix, entry.Key)
		found := newState(at, entry)
		if states = append(states, found); found.Lock != nil {
			locked[at.leaseKey()] = true
		}
	}
	leases, err := s.entries(ctx, leasePrefix, namespace, prefix, locked)
	if err != nil {
		return nil, 0, err
	}
	list := make([]*api.VariableMetadata, 0, len(states))
	for _, found := range states {
		if found, err = s.withLease(found, leases[found.at.leaseKey()]); err != nil {
			return nil, 0, err
		}
		list = append(list, metadataOf(found.variable(nil)))
	}
	return list, page.Index, nil
}

// entries returns the entries with the keys below a root, without the items of variables. There may be thousands, and
// each would be a question to a store of several machines, so entries lists them, unless there is one.
func (s *Service) entries(
	ctx context.Context, root, namespace, prefix string, keys map[string]bool,
) (map[string]cluster.Entry, error) {
	found := make(map[string]cluster.Entry, len(keys))
	switch len(keys) {
	case 0:
	case 1:
		for key := range keys {
			entry, _, err := s.store.Get(ctx, key)
			if err != nil {
				return nil, err
			}
			found[key] = entry
		}
	default:
		page, err := s.store.List(ctx, cluster.Span{Prefix: root + strings.TrimPrefix(prefixOf(namespace, prefix),
			variablePrefix), Head: maxHeader, Only: func(key string) bool { return keys[key] }})
		if err != nil {
			return nil, err
		}
		for _, entry := range page.Entries {
			found[entry.Key] = entry
		}
	}
	return found, nil
}

// look returns the state of a place, with the phase of its lock.
func (s *Service) look(ctx context.Context, at place) (state, error) {
	for {
		entry, index, err := s.store.Get(ctx, at.key())
		if err != nil {
			return state{}, err
		}
		found, err := s.lockOf(ctx, newState(at, entry))
		found.index = index
		if err != nil || found.Lock == nil || found.lease.ID == found.Lock.ID {
			return found, err
		}
		// Between the two reads the lock was released or got another holder; or its lease is damaged.
		if same, _, err := s.store.Get(ctx, at.key()); err != nil || same.ModifyIndex == entry.ModifyIndex {
			return found, err
		}
	}
}

// lockOf returns the state with the phase of its lock.
func (s *Service) lockOf(ctx context.Context, of state) (state, error) {
	if of.Lock == nil {
		return of, nil
	}
	leased, _, err := s.store.Get(ctx, of.at.leaseKey())
	if err != nil {
		return of, err
	}
	return s.withLease(of, leased)
}

// withLease returns the state with the phase of its lock, which has this lease.
func (s *Service) withLease(of state, leased cluster.Entry) (state, error) {
	if of.Lock == nil {
		return of, nil
	}
	now, err := s.clock()
	if err != nil {
		return of, err
	}
	of.leased, of.lease = leased, decodeLease(leased.Value)
	if s.others != nil && of.lease.ID == of.Lock.ID && of.lease.Boot != now.Boot {
		of.lease = s.others.lease(leased, of.lease, now)
	}
	of.phase = of.Lock.phase(of.lease, now)
	return of, nil
}

// items opens the items of a state.
func (s *Service) items(of state) (map[string]string, error) {
	if of.damage != nil {
		return nil, of.damage
	}
	plain, err := s.sealer.Open(of.sealed, of.at.String())
	if err != nil {
		return nil, err
	}
	items := map[string]string{}
	if err := json.Unmarshal(plain, &items); err != nil {
		return nil, fmt.Errorf("its items are damaged: %w", err)
	}
	return items, nil
}

// clock returns the present moment.
func (s *Service) clock() (Moment, error) {
	m, err := s.now()
	if err != nil {
		return m, fmt.Errorf("%w: %w", cluster.ErrUnavailable, err)
	}
	return m, nil
}
