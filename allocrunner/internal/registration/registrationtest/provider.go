// Package registrationtest has a provider of services for tests: it keeps services in memory, and notices calls that
// no provider may get.
package registrationtest

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	"taskapi/allocrunner/interfaces"
)

// Provider is an interfaces.ServiceProvider.
type Provider struct {
	name string
	note func(string)

	mu     sync.Mutex // guards the fields below
	has    map[string]*interfaces.ServiceInstance
	calls  []string
	busy   map[string]bool // IDs that a call is about
	broken error
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
func (p *Provider) Register(_ context.Context, list []*interfaces.ServiceInstance) error {
	var ids []string
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	p.call(ids, func() {
		for _, s := range list {
			p.noteLocked("+" + s.ServiceName)
			p.has[s.ID] = s
		}
	})
	return nil
}

// Deregister ends services.
func (p *Provider) Deregister(_ context.Context, ids []string) error {
	p.call(ids, func() {
		for _, id := range ids {
			if s, ok := p.has[id]; ok {
				p.noteLocked("-" + s.ServiceName)
				delete(p.has, id)
			}
		}
	})
	return nil
}

// Registered returns the IDs that are known of an allocation.
func (p *Provider) Registered(_ context.Context, allocID string) ([]string, error) {
	ids := slices.Collect(maps.Keys(p.Has()))
	return slices.DeleteFunc(ids, func(id string) bool { return !strings.HasPrefix(id, "_nomad-task-"+allocID+"-") }), nil
}

// call does something about IDs, and lets other calls come meanwhile.
func (p *Provider) call(ids []string, do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		if p.busy[id] {
			p.broken = fmt.Errorf("two calls at once are about %s", id)
		}
		p.busy[id] = true
	}
	p.mu.Unlock()
	runtime.Gosched()
	p.mu.Lock()
	for _, id := range ids {
		delete(p.busy, id)
	}
	do()
}

func (p *Provider) noteLocked(call string) {
	p.calls = append(p.calls, call)
	if p.note != nil {
		p.note(call)
	}
}

// Has returns the registered services, by ID.
func (p *Provider) Has() map[string]*interfaces.ServiceInstance {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.has)
}

// Names returns the names of the registered services, sorted.
func (p *Provider) Names() []string {
	names := []string{}
	for _, s := range p.Has() {
		names = append(names, s.ServiceName)
	}
	slices.Sort(names)
	return names
}

// Took returns the calls since the last Took.
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
