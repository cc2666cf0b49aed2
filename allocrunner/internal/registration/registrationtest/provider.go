// Package registrationtest has a provider of services for tests: it keeps services in memory, and notices calls that
// no provider may get.
package registrationtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"taskapi/allocrunner/interfaces"
)

// ErrAway is what a provider returns that is away.
var ErrAway = errors.New("away")

// Provider is an interfaces.ServiceProvider.
type Provider struct {
	name string
	note func(string)

	mu      sync.Mutex // guards the fields below
	has     map[string]*interfaces.ServiceInstance
	calls   []string
	away    bool
	blocked chan struct{}
	busy    map[string]bool // IDs that a call is about
	broken  error
}

var _ interfaces.ServiceProvider = (*Provider)(nil)

// New returns a provider of that name, which knows no service. note is called with "+NAME" and "-NAME" for each service
// that comes, changes or goes; nil for nobody.
func New(name string, note func(string)) *Provider {
	return &Provider{name: name, note: note, has: map[string]*interfaces.ServiceInstance{}, busy: map[string]bool{}}
}

// Name returns its name.
func (p *Provider) Name() string { return p.name }

// Register makes services known.
func (p *Provider) Register(ctx context.Context, list []*interfaces.ServiceInstance) error {
	var ids []string
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	return p.call(ctx, ids, func() {
		for _, s := range list {
			p.noteLocked("+" + s.Name)
			p.has[s.ID] = s
		}
	})
}

// Deregister ends services.
func (p *Provider) Deregister(ctx context.Context, ids []string) error {
	return p.call(ctx, ids, func() {
		for _, id := range ids {
			if s, ok := p.has[id]; ok {
				p.noteLocked("-" + s.Name)
				delete(p.has, id)
			}
		}
	})
}

// Registered returns the IDs that are known of an allocation.
func (p *Provider) Registered(_ context.Context, allocID string) ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return nil, ErrAway
	}
	var ids []string
	for id := range p.has {
		if strings.HasPrefix(id, "_nomad-task-"+allocID+"-") {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// call does something about IDs, unless the provider is away, when it is not blocked any more.
func (p *Provider) call(ctx context.Context, ids []string, do func()) error {
	p.mu.Lock()
	for _, id := range ids {
		if p.busy[id] {
			p.broken = fmt.Errorf("two calls at once are about %s", id)
		}
		p.busy[id] = true
	}
	blocked := p.blocked
	p.mu.Unlock()
	var err error
	if blocked != nil {
		select {
		case <-blocked:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		delete(p.busy, id)
	}
	if p.away {
		return ErrAway
	}
	if err == nil {
		do()
	}
	return err
}

func (p *Provider) noteLocked(call string) {
	p.calls = append(p.calls, call)
	if p.note != nil {
		p.note(call)
	}
}

// Put makes services known as another process would.
func (p *Provider) Put(list ...*interfaces.ServiceInstance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range list {
		p.has[s.ID] = s
	}
}

// Away has calls fail with ErrAway, or work again.
func (p *Provider) Away(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = away
}

// Block has later calls wait until a channel is closed.
func (p *Provider) Block(until chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocked = until
}

// Has returns what is known, by ID.
func (p *Provider) Has() map[string]*interfaces.ServiceInstance {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.has)
}

// Names returns the names of what is known, sorted.
func (p *Provider) Names() []string {
	names := []string{}
	for _, s := range p.Has() {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	return names
}

// Took returns what was noted since the last Took.
func (p *Provider) Took() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	calls := p.calls
	p.calls = nil
	return calls
}

// Broken returns an error for calls that no provider may get, such as two at once for one service.
func (p *Provider) Broken() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.broken
}
