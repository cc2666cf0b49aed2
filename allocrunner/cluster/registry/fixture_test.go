package registry_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"
	"go.uber.org/goleak"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/memory"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	one = "11111111-aaaa-bbbb-cccc-000000000001"
	two = "22222222-aaaa-bbbb-cccc-000000000002"
)

func alloc(id string) *api.Allocation {
	return &api.Allocation{ID: id, Namespace: "default", JobID: "demo", TaskGroup: "web"}
}

// instance returns a service of the group.
func instance(alloc, name string, port int, tags ...string) *interfaces.ServiceInstance {
	return &interfaces.ServiceInstance{ServiceRegistration: api.ServiceRegistration{
		ID:          "_nomad-task-" + alloc + "-group-web-" + name + "-http",
		ServiceName: name, Tags: tags, Address: "127.0.0.1", Port: port,
		Namespace: "default", JobID: "demo", AllocID: alloc, NodeID: "node", Datacenter: "dc1",
	}}
}

// flakyStore is a store that can fail. Without errors it passes everything on.
type flakyStore struct {
	cluster.Store

	mu            sync.Mutex // guards the fields below
	failed, reads error
	hang, gap     bool
	commits       int // that the store has applied
	lists         int
}

func (s *flakyStore) Commit(ctx context.Context, txn cluster.Txn) (uint64, error) {
	s.mu.Lock()
	failed, hang := s.failed, s.hang
	s.mu.Unlock()
	if hang {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	if failed != nil {
		return 0, failed
	}
	index, err := s.Store.Commit(ctx, txn)
	if err == nil {
		s.set(func(s *flakyStore) { s.commits++ })
	}
	return index, err
}

func (s *flakyStore) List(ctx context.Context, span cluster.Span) (cluster.Page, error) {
	s.mu.Lock()
	failed := s.reads
	s.lists++
	s.mu.Unlock()
	if failed != nil {
		return cluster.Page{}, failed
	}
	return s.Store.List(ctx, span)
}

// Watch forgets what has changed where there is a gap.
func (s *flakyStore) Watch(ctx context.Context, prefix string, after uint64) (cluster.Changes, error) {
	changes, err := s.Store.Watch(ctx, prefix, after)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gap && err == nil {
		changes.Keys, changes.Gap = nil, true
	}
	return changes, err
}

func (s *flakyStore) set(change func(*flakyStore)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *flakyStore) applied() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commits
}

// fixture is a registry with the providers of two allocations, which have their leases.
type fixture struct {
	store    *flakyStore
	registry *registry.Registry
	one, two *registry.Provider
	leases   map[string]cluster.Lease
	log      *bytes.Buffer
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{store: &flakyStore{Store: memory.New()}, leases: map[string]cluster.Lease{}, log: new(bytes.Buffer)}
	f.registry = registry.New(f.store)
	logger := slog.New(slog.NewTextHandler(f.log, nil))
	f.one, f.two = f.registry.Provider(alloc(one), logger), f.registry.Provider(alloc(two), logger)
	for _, id := range []string{one, two} {
		lease := must.Get(f.store.Hold(t.Context(), id))(t)
		f.leases[id] = lease
	}
	return f
}

// run runs a provider's background until the returned function is called.
func run(p *registry.Provider) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// registered returns what is registered in the namespace, as "name port".
func (f *fixture) registered(t *testing.T) []string {
	t.Helper()
	all, index, err := f.registry.Services(t.Context(), "default", "")
	if err != nil || index == 0 {
		t.Fatal(index, err)
	}
	found := []string{}
	for _, s := range all {
		found = append(found, fmt.Sprintf("%s %d", s.ServiceName, s.Port))
	}
	return found
}

func (f *fixture) want(t *testing.T, want ...string) {
	t.Helper()
	if got := f.registered(t); !slices.Equal(got, want) {
		t.Errorf("registered: %q, want %q", got, want)
	}
}

func register(t *testing.T, p *registry.Provider, services ...*interfaces.ServiceInstance) {
	t.Helper()
	must.OK(t, p.Register(t.Context(), services))
}
