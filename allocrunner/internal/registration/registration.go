// Package registration keeps what providers know of an allocation's services in step with the lives of its group and tasks. It promises that
// what an event means is decided in one place, Life.Next; that providers are called for what has changed and nothing else; and that calls come
// one at a time, however events do.
package registration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/services"
)

// Registrar registers one allocation's services with their providers. Make it with New.
type Registrar struct {
	providers map[string]interfaces.ServiceProvider
	turn      chan struct{} // holds one value while providers are called

	mu      sync.Mutex // guards the fields below; never held over a call
	state   state
	known   map[string]known // by ID; who has the turn changes it
	unread  []interfaces.ServiceProvider
	allocID string
	over    bool // no provider is called any more
}

// New returns a Registrar of an allocation, all of whose services wait.
func New(allocID string, providers []interfaces.ServiceProvider) *Registrar {
	r := &Registrar{
		allocID: allocID, providers: map[string]interfaces.ServiceProvider{}, turn: make(chan struct{}, 1),
		state: state{lives: map[string]Life{}}, known: map[string]known{},
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

func (r *Registrar) has(provider string) bool { return r.providers[provider] != nil }

// Update has the services of another version of the job replace those that there were. Providers learn of it with the next Sync.
func (r *Registrar) Update(all services.Owned) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.state.dropped {
		r.state.services = all
	}
}

// Adopt has the next Sync find out what an earlier process has registered, so that what is no longer wanted goes.
func (r *Registrar) Adopt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.providers {
		r.unread = append(r.unread, p)
	}
}

// Apply advances the life of an owner's services, and returns it as it was and as it is. Providers learn of it with the next Sync.
func (r *Registrar) Apply(task string, e Event) (was, is Life) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was = r.state.lives[task]
	if is = was.Next(e); r.state.dropped {
		is = was.Next(Dropped)
	}
	r.state.lives[task] = is
	return was, is
}

// Life returns the life of an owner's services.
func (r *Registrar) Life(task string) Life {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.lives[task]
}

// Drop closes the lives of all owners.
func (r *Registrar) Drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.dropped, r.state.services = true, nil
}

// Leave has no provider learn of anything more: what is registered is another process's.
func (r *Registrar) Leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
}

// Sync returns when providers know what is to be known, also by calls of Apply and Update that came meanwhile. What a provider refuses stays
// to be done by the next Sync. Errors: providers', ctx's.
func (r *Registrar) Sync(ctx context.Context) error {
	select {
	case r.turn <- struct{}{}: // also when ctx has ended: where nothing is to be done, that is no error
	default:
		select {
		case r.turn <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer func() { <-r.turn }()
	failed := r.read(ctx)
	for {
		todo := r.plan()
		if failed = errors.Join(failed, r.perform(ctx, todo)); failed != nil || todo.empty() {
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
	return plan(r.has, r.state, r.known)
}

// read finds out what an earlier process has registered.
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

// perform takes the steps, each with every provider whatever others answer. What one refuses it may know all the same.
func (r *Registrar) perform(ctx context.Context, todo steps) error {
	errs := []error{r.deregister(ctx, todo.before)}
	for name, list := range todo.register {
		errs = append(errs, r.register(ctx, r.providers[name], list))
	}
	return errors.Join(append(errs, r.deregister(ctx, todo.after))...)
}

func (r *Registrar) register(ctx context.Context, p interfaces.ServiceProvider, list []known) error {
	list = slices.DeleteFunc(list, func(k known) bool { // one that could not leave can't begin again
		was, isKnown := r.get(k.instance.ID)
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
			r.forget(ids)
		}
	}
	return errors.Join(errs...)
}

func (r *Registrar) get(id string) (k known, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, ok = r.known[id]
	return k, ok
}

func (r *Registrar) forget(ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		delete(r.known, id)
	}
}

func ofProvider(p interfaces.ServiceProvider, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("provider %q: %w", p.Name(), err)
}
