package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/wake"
)

// providerName is what a job file's provider attribute says.
const providerName = "nomad"

// The times of a provider whose store can't be used.
const (
	// attemptTimeout bounds one attempt to write: a store that hangs must not hold up the start or the stop of a task.
	attemptTimeout = 2 * time.Second
	// The pauses between attempts double from the first up to the last.
	firstPause = 100 * time.Millisecond
	lastPause  = 10 * time.Second
)

// Provider is the interfaces.ServiceProvider of one allocation. What it can't write to the store at once, Run writes
// later.
type Provider struct {
	registry *Registry
	logger   *slog.Logger
	alloc    *api.Allocation // used for its IDs

	work  wake.Signal   // something is left for Run
	write chan struct{} // has an element during an attempt, so that there is one at a time

	mu     sync.Mutex                          // guards the fields below
	wanted map[string]*api.ServiceRegistration // by key: what is still to be written; nil for a registration to remove
	lease  cluster.Lease                       // one that the provider had to begin itself; nil for none

	// mine are the keys of the allocation's services that are in the store or still to be written, as far as this
	// process knows.
	mine map[string]struct{}
}

var _ interfaces.ServiceProvider = (*Provider)(nil)

// Provider returns the provider of an allocation's services. The caller runs Run, and holds the lease with the
// allocation's ID.
func (r *Registry) Provider(alloc *api.Allocation, logger *slog.Logger) *Provider {
	return &Provider{
		registry: r, logger: logger, alloc: alloc,
		work: wake.New(), write: make(chan struct{}, 1),
		wanted: map[string]*api.ServiceRegistration{}, mine: map[string]struct{}{},
	}
}

// Name is what a job file's provider attribute says.
func (*Provider) Name() string { return providerName }

// Register registers services, or changes those whose IDs are registered. All are refused when one of them is invalid.
func (p *Provider) Register(ctx context.Context, services []*interfaces.ServiceInstance) error {
	wanted := map[string]*api.ServiceRegistration{}
	var errs []error
	for _, s := range services {
		registration, err := p.registration(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("service %q: %w", s.ServiceName, err))
			continue
		}
		wanted[keyOf(registration.Namespace, registration.ServiceName, registration.ID)] = registration
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return p.want(ctx, wanted)
}

// Deregister removes services by their IDs. It is no error if one is not registered, or not the allocation's.
func (p *Provider) Deregister(ctx context.Context, ids []string) error {
	wanted := p.mineOf(ids)
	// An earlier process may have registered the rest. To look them up takes time in proportion to all services of the
	// namespace.
	if len(wanted) < len(ids) {
		if _, err := p.keys(ctx); err != nil {
			p.logger.Warn("services that an earlier process has registered may stay until the allocation ends", "error",
				err)
		}
		wanted = p.mineOf(ids)
	}
	return p.want(ctx, wanted)
}

// mineOf returns the keys of services that this process knows, each with nil: to be removed.
func (p *Provider) mineOf(ids []string) map[string]*api.ServiceRegistration {
	p.mu.Lock()
	defer p.mu.Unlock()
	wanted := map[string]*api.ServiceRegistration{}
	for key := range p.mine {
		if slices.Contains(ids, idOf(key)) {
			wanted[key] = nil
		}
	}
	return wanted
}

// Registered returns the IDs of the allocation's services, also of those that an earlier process has registered.
func (p *Provider) Registered(ctx context.Context, allocID string) ([]string, error) {
	if allocID != p.alloc.ID {
		return nil, nil
	}
	keys, err := p.keys(ctx)
	ids := []string{}
	for key := range keys {
		ids = append(ids, idOf(key))
	}
	slices.Sort(ids)
	return ids, err
}

// keys returns the keys of the allocation's services: those that this process knows, and those in the store, which it
// remembers. With an error it returns only those that it knows.
func (p *Provider) keys(ctx context.Context) (map[string]struct{}, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	var page cluster.Page
	var err error
	if keys, held := p.leased(); held {
		for _, key := range keys {
			page.Entries = append(page.Entries, cluster.Entry{Key: key, Lease: p.alloc.ID})
		}
	} else {
		page, err = p.registry.store.List(ctx, cluster.Span{Prefix: prefixOf(p.alloc.Namespace, "")})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		return maps.Clone(p.mine), fmt.Errorf("list the allocation's services: %w", err)
	}
	for _, entry := range page.Entries {
		if _, leaving := p.wanted[entry.Key]; p.owns(entry) && !leaving {
			p.mine[entry.Key] = struct{}{}
		}
	}
	return maps.Clone(p.mine), nil
}

// leased returns the keys of the allocation's entries, if the store knows them without a look at all services.
func (p *Provider) leased() (keys []string, held bool) {
	if s, ok := cluster.As[interface{ Leased(string) ([]string, bool) }](p.registry.store); ok {
		return s.Leased(p.alloc.ID)
	}
	return nil, false
}

// idPrefix begins the IDs of the allocation's services, and of no others.
func (p *Provider) idPrefix() string { return "_nomad-task-" + p.alloc.ID + "-" }

// owns reports whether an entry is the allocation's.
func (p *Provider) owns(entry cluster.Entry) bool {
	return entry.Lease == p.alloc.ID && strings.HasPrefix(idOf(entry.Key), p.idPrefix())
}

// registration returns an instance as it is stored. An error means that the instance is invalid.
func (p *Provider) registration(s *interfaces.ServiceInstance) (*api.ServiceRegistration, error) {
	switch {
	case s.AllocID != p.alloc.ID || s.Namespace != p.alloc.Namespace || !strings.HasPrefix(s.ID, p.idPrefix()):
		return nil, fmt.Errorf(
			"its ID %q, of allocation %q in namespace %q, is not one of allocation %s in namespace %q",
			s.ID, s.AllocID, s.Namespace, p.alloc.ID, p.alloc.Namespace)
	case s.ServiceName == "" || strings.Contains(s.ServiceName, "/"):
		return nil, fmt.Errorf("its name %q must have letters, and no slash", s.ServiceName)
	case s.Port < 0 || s.Port > 65535:
		return nil, fmt.Errorf("its port %d must be between 0 and 65535", s.Port)
	}
	if address, err := netip.ParseAddr(s.Address); err == nil && address.IsUnspecified() {
		return nil, fmt.Errorf("its address %s is that of no machine: give one of this machine, by the setting host_ip or "+
			"the service's address", s.Address)
	}
	registration := new(s.ServiceRegistration)
	registration.Tags = append([]string{}, s.Tags...)
	operation := p.operation(keyOf(s.Namespace, s.ServiceName, s.ID), registration)
	if err := (cluster.Txn{Then: []cluster.Operation{operation}}).Check(); err != nil {
		return nil, err
	}
	return registration, nil
}

func (p *Provider) operation(key string, registration *api.ServiceRegistration) cluster.Operation {
	if registration == nil {
		return cluster.Operation{Key: key, Delete: true}
	}
	return cluster.Operation{Key: key, Value: encode(registration), Lease: p.alloc.ID}
}

// want writes registrations, and removes those that are nil. What the store does not take now, Run writes as soon as it
// does. Errors: a key that belongs to another allocation.
func (p *Provider) want(ctx context.Context, wanted map[string]*api.ServiceRegistration) error {
	if len(wanted) == 0 {
		return nil
	}
	p.mu.Lock()
	for key, registration := range wanted {
		p.wanted[key] = registration
		p.mine[key] = struct{}{}
		if registration == nil {
			delete(p.mine, key)
		}
	}
	p.mu.Unlock()
	refused, err := p.attempt(ctx)
	if err != nil {
		p.logger.Warn("some services are not registered yet; taskapi tries again", "error", err)
		p.work.Send()
	}
	return refused
}

// Run writes what the store did not take, until ctx ends. The registrations that are left then end with the
// allocation's lease.
func (p *Provider) Run(ctx context.Context) {
	defer p.endLease()
	for {
		select {
		case <-p.work:
		case <-ctx.Done():
			return
		}
		for pauses := (wake.Backoff{First: firstPause, Last: lastPause}); pauses.Sleep(ctx) == nil; {
			refused, err := p.attempt(ctx)
			if refused != nil {
				p.logger.Error("services can't be registered", "error", refused)
			}
			if err == nil {
				p.logger.Info("all services are registered")
				break
			}
			p.logger.Debug("services are not registered yet", "error", err)
		}
	}
}

// attempt writes what is wanted and differs from the store. refused tells of keys that belong to others: they are not
// tried again. err says why something is still to be written.
func (p *Provider) attempt(ctx context.Context) (refused, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	select {
	case p.write <- struct{}{}:
		defer func() { <-p.write }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p.mu.Lock()
	wanted := maps.Clone(p.wanted)
	p.mu.Unlock()
	for keys := slices.Sorted(maps.Keys(wanted)); len(keys) > 0; {
		rest, err := p.commit(ctx, keys, wanted)
		foreign, isForeign := errors.AsType[*foreignError](err)
		switch {
		case err == nil:
			p.forget(keys[:len(keys)-len(rest)], wanted)
			keys = rest
		case isForeign: // the others can be written
			refused = errors.Join(refused, err)
			p.forget([]string{foreign.key}, wanted)
			keys = slices.DeleteFunc(keys, func(key string) bool { return key == foreign.key })
		case cluster.IsConflict(err): // somebody has changed the store: it is read again
		case errors.Is(err, cluster.ErrLeaseEnded):
			if err := p.beginLease(ctx); err != nil {
				return refused, err
			}
		default:
			return refused, err
		}
	}
	return refused, nil
}

// forget removes what has been written from what is wanted, unless another version is wanted by now.
func (p *Provider) forget(keys []string, written map[string]*api.ServiceRegistration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range keys {
		if now, ok := p.wanted[key]; ok && now == written[key] {
			delete(p.wanted, key)
		}
	}
}

// foreignError: a key that the allocation wants belongs to another owner.
type foreignError struct{ key, owner string }

func (e *foreignError) Error() string {
	return fmt.Sprintf("%s is registered for %q, not for this allocation", e.key, e.owner)
}

// commit writes the first keys, as many as one transaction takes, and returns the rest.
func (p *Provider) commit(
	ctx context.Context, keys []string, wanted map[string]*api.ServiceRegistration,
) (rest []string, err error) {
	var txn cluster.Txn
	size := 0
	for i, key := range keys {
		operation := p.operation(key, wanted[key])
		if size += len(operation.Value); len(txn.Then) == cluster.MaxOperations || size > cluster.MaxTxnBytes {
			rest = keys[i:]
			break
		}
		entry, _, err := p.registry.store.Get(ctx, key)
		switch {
		case err != nil:
			return nil, err
		case entry.ModifyIndex > 0 && !p.owns(entry):
			return nil, &foreignError{key, entry.Lease}
		case operation.Delete && entry.ModifyIndex == 0,
			!operation.Delete && entry.ModifyIndex > 0 && bytes.Equal(entry.Value, operation.Value):
			continue
		}
		txn.If = append(txn.If, cluster.Condition{Key: key, ModifyIndex: entry.ModifyIndex})
		txn.Then = append(txn.Then, operation)
	}
	if len(txn.Then) > 0 {
		_, err = p.registry.store.Commit(ctx, txn)
	}
	return rest, err
}

// beginLease holds the allocation's lease when nobody does, such as when the store could not be used as the allocation
// began. The keeper does not hold this lease, so the services last only as long as this process.
func (p *Provider) beginLease(ctx context.Context) error {
	lease, err := p.registry.store.Hold(ctx, p.alloc.ID)
	if err != nil {
		return fmt.Errorf("hold the lease of the allocation's services: %w", err)
	}
	p.logger.Warn("nobody has held the lease of the allocation's services: they last as long as this process")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lease != nil {
		_ = p.lease.Close() // it has ended
	}
	p.lease = lease
	return nil
}

// endLease ends the lease that beginLease has begun.
func (p *Provider) endLease() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lease != nil {
		_ = p.lease.Close() // it ends with the process at the latest
		p.lease = nil
	}
}
