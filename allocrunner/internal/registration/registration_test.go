package registration_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
	"pgregory.net/rapid"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/registration"
	"taskapi/allocrunner/internal/services"
)

const allocID = "115ef685-6b9e-3eaf-e74b-6b04f094ebca"

var errAway = errors.New("away")

// provider has what it was told, and its calls.
type provider struct {
	name string

	mu     sync.Mutex // guards the fields below
	has    map[string]*interfaces.ServiceInstance
	calls  []string
	away   bool
	inCall map[string]bool // IDs
	broken error           // of the protocol
	hold   chan struct{}   // calls wait until it is closed, unless it is nil
}

func newProvider(name string) *provider {
	return &provider{name: name, has: map[string]*interfaces.ServiceInstance{}, inCall: map[string]bool{}}
}

func (p *provider) Name() string { return p.name }

func (p *provider) enter(ids []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		if p.inCall[id] {
			p.broken = fmt.Errorf("two calls at once are about %s", id)
		}
		p.inCall[id] = true
	}
	if p.away {
		return errAway
	}
	return nil
}

func (p *provider) leave(ids []string, do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		delete(p.inCall, id)
	}
	do()
}

func (p *provider) Register(ctx context.Context, list []*interfaces.ServiceInstance) error {
	var ids []string
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	err := p.enter(ids)
	if p.hold != nil && err == nil {
		select {
		case <-p.hold:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	p.leave(ids, func() {
		if err != nil {
			return
		}
		for _, s := range list {
			p.calls = append(p.calls, "+"+s.Name)
			p.has[s.ID] = s
		}
	})
	return err
}

func (p *provider) Deregister(_ context.Context, ids []string) error {
	err := p.enter(ids)
	p.leave(ids, func() {
		if err != nil {
			return
		}
		for _, id := range ids {
			if s, ok := p.has[id]; ok {
				p.calls = append(p.calls, "-"+s.Name)
			}
			delete(p.has, id)
		}
	})
	return err
}

func (p *provider) Registered(context.Context, string) ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return nil, errAway
	}
	return slices.Sorted(maps.Keys(p.has)), nil
}

// took returns the calls since the last took.
func (p *provider) took() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	calls := p.calls
	p.calls = nil
	return calls
}

// instance returns a service of a task, with a tag by which it may differ.
func instance(provider, task, name, tag string) *interfaces.ServiceInstance {
	return &interfaces.ServiceInstance{
		ID: services.ID(allocID, "g", task, name, ""), Task: task, Name: name, Tags: []string{tag}, Service: &api.Service{Provider: provider},
	}
}

func owned(list ...*interfaces.ServiceInstance) services.Owned {
	all := services.Owned{}
	for _, s := range list {
		all[s.Task] = append(all[s.Task], s)
	}
	return all
}

// told checks what providers were told by a Sync.
func told(t *testing.T, r *registration.Registrar, p *provider, want ...string) {
	t.Helper()
	if err := r.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := p.took()
	if !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

func TestALife(t *testing.T) {
	t.Parallel()
	nomad, consul := newProvider("nomad"), newProvider("consul")
	r := registration.New(allocID, []interfaces.ServiceProvider{nomad, consul})
	v1 := owned(instance("nomad", "", "web", "1"), instance("nomad", "main", "db", "1"))
	r.Update(v1)
	told(t, r, nomad)
	r.Apply("", registration.Began)
	told(t, r, nomad, "+web")
	r.Apply("main", registration.Started)
	told(t, r, nomad, "+db")
	r.Update(owned(instance("nomad", "", "web", "1"), instance("nomad", "main", "db", "1")))
	told(t, r, nomad) // nothing has changed
	r.Update(owned(instance("nomad", "", "web", "2"), instance("nomad", "main", "db", "1")))
	told(t, r, nomad, "+web")
	r.Apply("", registration.Renewed)
	told(t, r, nomad, "-web", "+web")
	r.Apply("main", registration.Ended)
	r.Apply("main", registration.Started) // before anybody was told
	told(t, r, nomad, "-db", "+db")
	r.Update(owned(instance("nomad", "", "web2", "2"), instance("nomad", "main", "db", "1")))
	told(t, r, nomad, "+web2", "-web") // the old one leaves when the new one has come
	r.Update(owned(instance("consul", "", "web2", "2"), instance("nomad", "main", "db", "1")))
	told(t, r, nomad, "-web2")
	if got := consul.took(); !slices.Equal(got, []string{"+web2"}) {
		t.Errorf("the other provider was told %q", got)
	}
	r.Update(owned(instance("nowhere", "", "web2", "2"), instance("nomad", "main", "db", "1")))
	told(t, r, nomad)
	if got := consul.took(); !slices.Equal(got, []string{"-web2"}) {
		t.Errorf("the other provider was told %q", got)
	}
	r.Drop()
	told(t, r, nomad, "-db")
	r.Update(v1)
	r.Apply("main", registration.Started)
	r.Apply("", registration.Began)
	told(t, r, nomad)
}

// TestResumed: what an earlier process has registered stays without an interruption where it is wanted still, and goes where it is not.
func TestResumed(t *testing.T) {
	t.Parallel()
	p := newProvider("nomad")
	for _, s := range []*interfaces.ServiceInstance{
		instance("nomad", "", "web", "1"), instance("nomad", "", "gone", "1"), instance("nomad", "main", "db", "1"), instance("nomad", "dead", "x", "1"),
	} {
		p.has[s.ID] = s
	}
	r := registration.New(allocID, []interfaces.ServiceProvider{p})
	r.Adopt()
	r.Update(owned(instance("nomad", "", "web", "2"), instance("nomad", "main", "db", "1"), instance("nomad", "dead", "x", "1")))
	r.Apply("", registration.Found)
	r.Apply("", registration.Began)
	r.Apply("main", registration.Found)
	p.away = true
	if err := r.Sync(t.Context()); !errors.Is(err, errAway) {
		t.Fatal(err)
	}
	p.away = false
	if err := r.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := p.took()
	slices.Sort(got)
	if want := []string{"+web", "-gone", "-x"}; !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
	r.Apply("main", registration.Began)
	told(t, r, p, "+db")
	r.Apply("main", registration.Ended)
	told(t, r, p, "-db")
	r.Leave()
	r.Drop()
	told(t, r, p)
	if len(p.has) != 1 {
		t.Errorf("left %v, want what another process is to have", p.has)
	}
}

// TestARefusalIsMadeUpFor by the next Sync, and a service that may be known all the same leaves.
func TestARefusalIsMadeUpFor(t *testing.T) {
	t.Parallel()
	p, other := newProvider("nomad"), newProvider("consul")
	r := registration.New(allocID, []interfaces.ServiceProvider{p, other})
	r.Update(owned(instance("nomad", "", "web", "1"), instance("consul", "", "there", "1")))
	r.Apply("", registration.Began)
	p.away = true
	if err := r.Sync(t.Context()); !errors.Is(err, errAway) {
		t.Fatal(err)
	}
	if got := other.took(); !slices.Equal(got, []string{"+there"}) {
		t.Errorf("the other provider was told %q", got)
	}
	p.away = false
	told(t, r, p, "+web")
	p.away = true
	r.Apply("", registration.Renewed)
	if err := r.Sync(t.Context()); !errors.Is(err, errAway) {
		t.Fatal(err)
	}
	p.away = false
	told(t, r, p, "-web", "+web")
}

// TestAWaitForAProviderEnds with its context, and what it came for is done by whoever has the turn.
func TestAWaitForAProviderEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newProvider("nomad")
		p.hold = make(chan struct{})
		r := registration.New(allocID, []interfaces.ServiceProvider{p})
		r.Update(owned(instance("nomad", "", "web", "1")))
		r.Apply("", registration.Began)
		var first sync.WaitGroup
		first.Go(func() {
			if err := r.Sync(t.Context()); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		r.Apply("", registration.Dropped)
		ctx, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		if err := r.Sync(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		close(p.hold)
		first.Wait()
		if got := p.took(); !slices.Equal(got, []string{"+web", "-web"}) {
			t.Errorf("told %q", got)
		}
	})
}

// TestAnyOrderOfEvents, several at once, with a provider that is away at times: what is known in the end is what is to be known, and a provider
// never has two calls at once for one ID.
func TestAnyOrderOfEvents(t *testing.T) {
	t.Parallel()
	owners := []string{"", "a", "b"}
	rapid.Check(t, func(t *rapid.T) {
		nomad, consul := newProvider("nomad"), newProvider("consul")
		r := registration.New(allocID, []interfaces.ServiceProvider{nomad, consul})
		version := services.Owned{}
		lives := map[string]registration.Life{}
		draw := func() services.Owned {
			var list []*interfaces.ServiceInstance
			for _, task := range owners {
				for _, name := range []string{"x", "y"} {
					if rapid.Bool().Draw(t, "has") {
						provider := rapid.SampledFrom([]string{"nomad", "consul"}).Draw(t, "provider")
						list = append(list, instance(provider, task, name, rapid.SampledFrom([]string{"1", "2"}).Draw(t, "tag")))
					}
				}
			}
			return owned(list...)
		}
		var syncs sync.WaitGroup
		dropped := false
		t.Repeat(map[string]func(*rapid.T){
			"update": func(t *rapid.T) {
				next := draw()
				if !dropped {
					version = next
				}
				r.Update(next)
			},
			"event": func(t *rapid.T) {
				task := rapid.SampledFrom(owners).Draw(t, "task")
				e := registration.Event(rapid.IntRange(int(registration.Began), int(registration.Dropped)).Draw(t, "event"))
				_, lives[task] = r.Apply(task, e)
			},
			"away": func(t *rapid.T) {
				nomad.mu.Lock()
				defer nomad.mu.Unlock()
				nomad.away = rapid.Bool().Draw(t, "away")
			},
			"sync": func(*rapid.T) { syncs.Go(func() { _ = r.Sync(context.Background()) }) },
			"drop": func(t *rapid.T) {
				if rapid.IntRange(0, 20).Draw(t, "really") == 0 {
					r.Drop()
					version, dropped = services.Owned{}, true
				}
			},
		})
		syncs.Wait()
		nomad.away = false
		if err := r.Sync(context.Background()); err != nil {
			t.Fatal(err)
		}
		for _, p := range []*provider{nomad, consul} {
			want := map[string]*interfaces.ServiceInstance{}
			for task, list := range version {
				for _, s := range list {
					if lives[task].Phase == registration.Registered && s.Service.Provider == p.name {
						want[s.ID] = s
					}
				}
			}
			if !reflect.DeepEqual(want, p.has) {
				t.Fatalf("provider %s has %v, want %v", p.name, p.has, want)
			}
			if p.broken != nil {
				t.Fatal(p.broken)
			}
		}
		nomad.took()
		if err := r.Sync(context.Background()); err != nil || len(nomad.took()) > 0 {
			t.Fatalf("told again what it knows, or %v", err)
		}
	})
}
