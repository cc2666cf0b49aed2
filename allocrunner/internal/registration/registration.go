// Package registration keeps the providers' registrations of an allocation's services in step with its group and tasks.
// Only State.Next decides the effect of an event. Providers are called only for changes, one call at a time.
package registration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/services"
)

// Registrar registers one allocation's services with their providers. Make it with New.
type Registrar struct {
	providers map[string]interfaces.ServiceProvider
	turn      *semaphore.Weighted // held while providers are called

	mu      sync.Mutex // guards the fields below; never held over a call
	desired desired
	known   map[string]known // by ID; changed only by the goroutine that has the turn
	unread  []interfaces.ServiceProvider
	allocID string
	over    bool // no provider is called any more
}

// New returns a Registrar for an allocation. All of its services wait.
func New(allocID string, providers []interfaces.ServiceProvider) *Registrar {
	r := &Registrar{
		allocID: allocID, providers: map[string]interfaces.ServiceProvider{}, turn: semaphore.NewWeighted(1),
		desired: desired{states: map[string]State{}}, known: map[string]known{},
	}
	for _, p := range providers {
		r.providers[p.Name()] = p
	}
	return r
}

// Provider returns the provider of that name.
func (r *Registrar) Provider(name string) (p interfaces.ServiceProvider, ok bool) {
	p, ok = r.providers[name]
	return p, ok
}

// Update replaces the services by those of another version of the job. The next Sync tells the providers.
func (r *Registrar) Update(all services.Owned) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.desired.dropped {
		r.desired.services = all
	}
}

// Adopt makes the next Sync ask the providers for the registrations of an earlier process, so that unwanted services
// are removed.
func (r *Registrar) Adopt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.providers {
		r.unread = append(r.unread, p)
	}
}

// Apply applies an event to an owner's services, and returns their state before and after. The next Sync tells
// the providers.
func (r *Registrar) Apply(task string, e Event) (was, is State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was = r.desired.states[task]
	if is = was.Next(e); r.desired.dropped {
		is = was.Next(Dropped)
	}
	r.desired.states[task] = is
	return was, is
}

// State returns the state of an owner's services.
func (r *Registrar) State(task string) State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.desired.states[task]
}

// Drop closes the services of all owners.
func (r *Registrar) Drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.desired.dropped, r.desired.services = true, nil
}

// Leave ends all calls of providers: the registrations now belong to another process.
func (r *Registrar) Leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
}

// Sync returns when the providers have all changes, including those of Apply and Update during the call. If a provider
// refuses a change, the next Sync tries again. Errors: the providers', ctx's.
func (r *Registrar) Sync(ctx context.Context) error {
	if !r.turn.TryAcquire(1) { // that ctx has ended is no error if nothing is to be done
		if err := r.turn.Acquire(ctx, 1); err != nil {
			return err
		}
	}
	defer r.turn.Release(1)
	failed := r.read(ctx)
	for {
		todo := r.plan()
		errs := []error{failed, r.deregister(ctx, todo.before)} // an error of one provider keeps none from the others
		for name, list := range todo.register {
			errs = append(errs, r.register(ctx, r.providers[name], list))
		}
		failed = errors.Join(append(errs, r.deregister(ctx, todo.after))...)
		if failed != nil || len(todo.before)+len(todo.register)+len(todo.after) == 0 {
			return failed
		}
	}
}

func (r *Registrar) plan() steps {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return steps{}
	}
	return plan(r.providers, r.desired, r.known)
}

// read asks the providers for the registrations of an earlier process.
func (r *Registrar) read(ctx context.Context) error {
	r.mu.Lock()
	unread := r.unread
	r.unread = nil
	r.mu.Unlock()
	var errs []error
	for _, p := range unread {
		ids, err := p.Registered(ctx, r.allocID)
		r.mu.Lock()
		for _, id := range ids {
			if _, newer := r.known[id]; !newer {
				r.known[id] = known{provider: p.Name()}
			}
		}
		if err != nil {
			r.unread = append(r.unread, p)
			errs = append(errs, ofProvider(p, fmt.Errorf("find what an earlier process has registered: %w", err)))
		}
		r.mu.Unlock()
	}
	return errors.Join(errs...)
}

func (r *Registrar) register(ctx context.Context, p interfaces.ServiceProvider, list []known) error {
	// A service that could not be deregistered can't begin another registration.
	list = slices.DeleteFunc(list, func(k known) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		was, isKnown := r.known[k.instance.ID]
		return isKnown && !was.same(k)
	})
	if len(list) == 0 {
		return nil
	}
	instances := make([]*interfaces.ServiceInstance, len(list))
	for i, k := range list {
		instances[i] = k.instance
	}
	err := p.Register(ctx, instances)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range list {
		id := k.instance.ID
		if err != nil {
			k.instance = nil
		}
		r.known[id] = k
	}
	return ofProvider(p, err)
}

func (r *Registrar) deregister(ctx context.Context, by map[string][]string) error {
	var errs []error
	for name, ids := range by {
		slices.Sort(ids)
		err := r.providers[name].Deregister(ctx, ids)
		errs = append(errs, ofProvider(r.providers[name], err))
		if err == nil {
			r.mu.Lock()
			maps.DeleteFunc(r.known, func(id string, _ known) bool { return slices.Contains(ids, id) })
			r.mu.Unlock()
		}
	}
	return errors.Join(errs...)
}

// ofProvider adds the provider's name to an error.
func ofProvider(p interfaces.ServiceProvider, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("provider %q: %w", p.Name(), err)
}
