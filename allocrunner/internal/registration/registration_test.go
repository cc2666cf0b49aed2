package registration_test

import (
	"context"
	"errors"
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
	"taskapi/internal/must"
	"taskapi/internal/same"
)

const allocID = "115ef685-6b9e-3eaf-e74b-6b04f094ebca"

// instance returns a service of a task, with a tag by which it may differ.
func instance(provider, task, name, tag string) *interfaces.ServiceInstance {
	return &interfaces.ServiceInstance{
		ServiceRegistration: api.ServiceRegistration{
			ID: services.ID(allocID, "g", task, name, ""), ServiceName: name, Tags: []string{tag},
		},
		Task: task, Service: &api.Service{Provider: provider},
	}
}

func owned(list ...*interfaces.ServiceInstance) services.Owned {
	all := services.Owned{}
	for _, s := range list {
		all[s.Task] = append(all[s.Task], s)
	}
	return all
}

// called checks which calls a Sync makes of a provider.
func called(t *testing.T, r *registration.Registrar, p *provider, want ...string) {
	t.Helper()
	must.OK(t, r.Sync(t.Context()))
	got := p.Took()
	same.As(t, want, got, "called with")
}

func TestALife(t *testing.T) {
	t.Parallel()
	nomad, consul := newProvider("nomad"), newProvider("consul")
	r := registration.New(allocID, []interfaces.ServiceProvider{nomad, consul})
	v1 := owned(instance("nomad", "", "web", "1"), instance("nomad", "main", "db", "1"))
	r.Update(v1)
	called(t, r, nomad)
	r.Apply("", registration.Began)
	called(t, r, nomad, "+web")
	r.Apply("main", registration.Started)
	called(t, r, nomad, "+db")
	r.Update(owned(instance("nomad", "", "web", "1"), instance("nomad", "main", "db", "1")))
	called(t, r, nomad) // nothing has changed
	r.Update(owned(instance("nomad", "", "web", "2"), instance("nomad", "main", "db", "1")))
	called(t, r, nomad, "+web")
	r.Apply("", registration.Renewed)
	called(t, r, nomad, "-web", "+web")
	r.Apply("main", registration.Ended)
	r.Apply("main", registration.Started) // before any call
	called(t, r, nomad, "-db", "+db")
	r.Update(owned(instance("nomad", "", "web2", "2"), instance("nomad", "main", "db", "1")))
	called(t, r, nomad, "+web2", "-web") // the old one leaves when the new one has come
	r.Update(owned(instance("consul", "", "web2", "2"), instance("nomad", "main", "db", "1")))
	called(t, r, nomad, "-web2")
	same.As(t, []string{"+web2"}, consul.Took(), "the other provider was called with")
	r.Update(owned(instance("nowhere", "", "web2", "2"), instance("nomad", "main", "db", "1")))
	called(t, r, nomad)
	same.As(t, []string{"-web2"}, consul.Took(), "the other provider was called with")
	r.Drop()
	called(t, r, nomad, "-db")
	r.Update(v1)
	r.Apply("main", registration.Started)
	r.Apply("", registration.Began)
	called(t, r, nomad)
}

// TestResumed: what an earlier process has registered stays without an interruption where it is wanted still, and goes
// where it is not.
func TestResumed(t *testing.T) {
	t.Parallel()
	p := newProvider("nomad")
	must.OK(t, p.Register(t.Context(), []*interfaces.ServiceInstance{
		instance("nomad", "", "web", "1"), instance("nomad", "", "gone", "1"), instance("nomad", "main", "db", "1"),
		instance("nomad", "dead", "x", "1"),
	}))
	p.Took()
	r := registration.New(allocID, []interfaces.ServiceProvider{p})
	r.Adopt()
	r.Update(owned(instance("nomad", "", "web", "2"), instance("nomad", "main", "db", "1"),
		instance("nomad", "dead", "x", "1")))
	r.Apply("", registration.Found)
	r.Apply("", registration.Began)
	r.Apply("main", registration.Found)
	p.setAway(true)
	if err := r.Sync(t.Context()); !errors.Is(err, errAway) {
		t.Fatal(err)
	}
	p.setAway(false)
	must.OK(t, r.Sync(t.Context()))
	got := p.Took()
	slices.Sort(got)
	if want := []string{"+web", "-gone", "-x"}; !slices.Equal(got, want) {
		t.Errorf("called with %q, want %q", got, want)
	}
	r.Apply("main", registration.Began)
	called(t, r, p, "+db")
	r.Apply("main", registration.Ended)
	called(t, r, p, "-db")
	r.Leave()
	r.Drop()
	called(t, r, p)
	if len(p.Has()) != 1 {
		t.Errorf("left %v, want what another process is to have", p.Names())
	}
}

// TestARefusalIsMadeUpFor by the next Sync, and a service that may be known all the same leaves.
func TestARefusalIsMadeUpFor(t *testing.T) {
	t.Parallel()
	p, other := newProvider("nomad"), newProvider("consul")
	r := registration.New(allocID, []interfaces.ServiceProvider{p, other})
	r.Update(owned(instance("nomad", "", "web", "1"), instance("consul", "", "there", "1")))
	r.Apply("", registration.Began)
	p.setAway(true)
	if err := r.Sync(t.Context()); !errors.Is(err, errAway) {
		t.Fatal(err)
	}
	same.As(t, []string{"+there"}, other.Took(), "the other provider was called with")
	p.setAway(false)
	called(t, r, p, "+web")
	p.setAway(true)
	r.Apply("", registration.Renewed)
	if err := r.Sync(t.Context()); !errors.Is(err, errAway) {
		t.Fatal(err)
	}
	p.setAway(false)
	called(t, r, p, "-web", "+web")
}

// TestAWaitForAProviderEnds with its context, and what it came for is done by the one that has the turn.
func TestAWaitForAProviderEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newProvider("nomad")
		hold := make(chan struct{})
		p.until = hold
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
		same.Error(t, context.DeadlineExceeded, r.Sync(ctx))
		close(hold)
		first.Wait()
		same.As(t, []string{"+web", "-web"}, p.Took(), "called with")
	})
}

// TestAnyOrderOfEvents, several at once, with a provider that is away at times: what is known in the end is what is to
// be known, and a provider never has two calls at once for one ID.
func TestAnyOrderOfEvents(t *testing.T) {
	t.Parallel()
	owners := []string{"", "a", "b"}
	rapid.Check(t, func(t *rapid.T) {
		nomad, consul := newProvider("nomad"), newProvider("consul")
		r := registration.New(allocID, []interfaces.ServiceProvider{nomad, consul})
		version := services.Owned{}
		states := map[string]registration.State{}
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
				_, states[task] = r.Apply(task, e)
			},
			"away": func(t *rapid.T) {
				nomad.setAway(rapid.Bool().Draw(t, "away"))
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
		nomad.setAway(false)
		must.OK(t, r.Sync(context.Background()))
		for _, p := range []*provider{nomad, consul} {
			want := map[string]*interfaces.ServiceInstance{}
			for task, list := range version {
				for _, s := range list {
					if states[task].Phase == registration.Registered && s.Service.Provider == p.Name() {
						want[s.ID] = s
					}
				}
			}
			if !reflect.DeepEqual(want, p.Has()) {
				t.Fatalf("provider %s has %v, want %v", p.Name(), p.Names(), want)
			}
			must.OK(t, p.Broken())
		}
		nomad.Took()
		if err := r.Sync(context.Background()); err != nil || len(nomad.Took()) > 0 {
			t.Fatalf("called with what it has, or %v", err)
		}
	})
}

// TestNothingToDoIsNoError, also when the allocation has ended meanwhile: a task without services ends like any other.
func TestNothingToDoIsNoError(t *testing.T) {
	r := registration.New(allocID, nil)
	ended, end := context.WithCancel(t.Context())
	end()
	for range 100 { // a choice between the two would be right half of the time
		must.OK(t, r.Sync(ended))
	}
}
