package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
	"go.uber.org/goleak"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/memory"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/interfaces"
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
	return &interfaces.ServiceInstance{
		ID: "_nomad-task-" + alloc + "-group-web-" + name + "-http", Name: name, Tags: tags, Address: "127.0.0.1", Port: port,
		Namespace: "default", JobID: "demo", AllocID: alloc, NodeID: "node", Datacenter: "dc1",
	}
}

// flakyStore is a store that can be away. Its zero errors let everything through.
type flakyStore struct {
	cluster.Store

	mu            sync.Mutex // guards the fields below
	failed, reads error
	hang, gap     bool
	commits       int // that the store has applied
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
		lease, err := f.store.Hold(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
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
	if err := p.Register(t.Context(), services); err != nil {
		t.Fatal(err)
	}
}

func TestRegister(t *testing.T) {
	f := newFixture(t)
	register(t, f.one, instance(one, "web", 80, "a", "b"), instance(one, "db", 5432))
	all, index, err := f.registry.Services(t.Context(), "default", "web")
	want := []*api.ServiceRegistration{{
		ID: "_nomad-task-" + one + "-group-web-web-http", ServiceName: "web", Namespace: "default", NodeID: "node", Datacenter: "dc1", JobID: "demo",
		AllocID: one, Tags: []string{"a", "b"}, Address: "127.0.0.1", Port: 80, CreateIndex: index, ModifyIndex: index,
	}}
	if diff := cmp.Diff(want, all); diff != "" || err != nil {
		t.Errorf("web: %v (-want +got)\n%s", err, diff)
	}
	if db, _, err := f.registry.Services(t.Context(), "", "db"); err != nil || len(db) != 1 || db[0].Tags == nil {
		t.Errorf("db in every namespace: %+v, %v, want tags that are not null", db, err)
	}
	register(t, f.two, instance(two, "web", 81))
	f.want(t, "db 5432", "web 80", "web 81")
	if none, _, err := f.registry.Services(t.Context(), "prod", ""); err != nil || len(none) != 0 {
		t.Errorf("in another namespace: %+v, %v", none, err)
	}
	if ids, err := f.one.Registered(t.Context(), one); err != nil || len(ids) != 2 || !strings.HasSuffix(ids[0], "-db-http") {
		t.Errorf("registered of one: %v, %v", ids, err)
	}
	if ids, err := f.one.Registered(t.Context(), two); err != nil || len(ids) != 0 {
		t.Errorf("registered of two, by one's provider: %v, %v", ids, err)
	}
	if err := f.one.Deregister(t.Context(), []string{instance(one, "web", 0).ID, instance(two, "web", 0).ID, "nonsense"}); err != nil {
		t.Error(err)
	}
	f.want(t, "db 5432", "web 81")
	_ = f.leases[one].Close()
	f.want(t, "web 81")
}

// TestUnchanged: what has not changed is not written, also by the process that follows; what has keeps its CreateIndex.
func TestUnchanged(t *testing.T) {
	f := newFixture(t)
	register(t, f.one, instance(one, "web", 80), instance(one, "db", 5432))
	before, _, _ := f.registry.Services(t.Context(), "default", "")
	next := f.registry.Provider(alloc(one), slog.New(slog.DiscardHandler))
	for _, p := range []*registry.Provider{f.one, next} {
		register(t, p, instance(one, "web", 80), instance(one, "db", 5432))
	}
	after, _, _ := f.registry.Services(t.Context(), "default", "")
	if diff := cmp.Diff(before, after); diff != "" || f.store.applied() != 1 {
		t.Errorf("%d commits, want 1 (-want +got)\n%s", f.store.applied(), diff)
	}
	register(t, next, instance(one, "web", 81), instance(one, "db", 5432))
	after, index, _ := f.registry.Services(t.Context(), "default", "")
	if f.store.applied() != 2 || after[1].Port != 81 || after[1].CreateIndex != before[1].CreateIndex || after[1].ModifyIndex != index ||
		!cmp.Equal(after[0], before[0]) {
		t.Errorf("after a change of one: %+v, %+v", after[0], after[1])
	}
	ids, err := next.Registered(t.Context(), one)
	if err != nil || len(ids) != 2 {
		t.Fatal(ids, err)
	}
	last := f.registry.Provider(alloc(one), slog.New(slog.DiscardHandler))
	if err := last.Deregister(t.Context(), ids); err != nil { // which the processes before it have registered
		t.Fatal(err)
	}
	f.want(t)
}

// TestRefused: what can't ever be registered is refused, and the services beside it with it.
func TestRefused(t *testing.T) {
	f := newFixture(t)
	for name, spoil := range map[string]func(*interfaces.ServiceInstance){
		"another allocation's":    func(s *interfaces.ServiceInstance) { s.AllocID = two },
		"another allocation's ID": func(s *interfaces.ServiceInstance) { s.ID = instance(two, "web", 0).ID },
		"an ID that is cut":       func(s *interfaces.ServiceInstance) { s.ID = "_nomad-task-" + one },
		"another namespace":       func(s *interfaces.ServiceInstance) { s.Namespace = "prod" },
		"no name":                 func(s *interfaces.ServiceInstance) { s.Name = "" },
		"a slash in the name":     func(s *interfaces.ServiceInstance) { s.Name = "web/x" },
		"a control character":     func(s *interfaces.ServiceInstance) { s.Name = "web\n" },
		"a long name":             func(s *interfaces.ServiceInstance) { s.Name = strings.Repeat("x", 2000) },
		"huge tags":               func(s *interfaces.ServiceInstance) { s.Tags = []string{strings.Repeat("x", 1<<20)} },
		"a port above all":        func(s *interfaces.ServiceInstance) { s.Port = 65536 },
		"every address":           func(s *interfaces.ServiceInstance) { s.Address = "0.0.0.0" },
		"every IPv6 address":      func(s *interfaces.ServiceInstance) { s.Address = "::" },
	} {
		bad := instance(one, "web", 80)
		spoil(bad)
		if err := f.one.Register(t.Context(), []*interfaces.ServiceInstance{instance(one, "good", 1), bad}); err == nil {
			t.Errorf("%s: no error", name)
		}
		f.want(t)
	}
}

// TestForeign: what is in the store under a key of the allocation and is another's stays as it is, and keeps nothing else from being written.
func TestForeign(t *testing.T) {
	f := newFixture(t)
	key := "services/default/web/" + instance(one, "web", 0).ID
	planted := []byte(`{"ServiceName":"web","Port":666}`)
	if _, err := f.store.Commit(t.Context(), cluster.Txn{Then: []cluster.Operation{{Key: key, Value: planted, Lease: two}}}); err != nil {
		t.Fatal(err)
	}
	err := f.one.Register(t.Context(), []*interfaces.ServiceInstance{instance(one, "web", 80), instance(one, "db", 1), instance(one, "zoo", 2)})
	if err == nil || !strings.Contains(err.Error(), two) {
		t.Errorf("error %v, want one that names the owner", err)
	}
	f.want(t, "db 1", "web 666", "zoo 2")
	_ = f.one.Deregister(t.Context(), []string{instance(one, "web", 0).ID}) // it may refuse that, and must not do it
	f.want(t, "db 1", "web 666", "zoo 2")
}

// TestAway: a store that takes nothing, or hangs, stops nobody; what is wanted in the end is written once it is back.
func TestAway(t *testing.T) {
	for name, away := range map[string]func(*flakyStore){
		"full":          func(s *flakyStore) { s.failed = cluster.ErrFull },
		"not available": func(s *flakyStore) { s.failed, s.reads = cluster.ErrUnavailable, cluster.ErrUnavailable },
		"uncertain":     func(s *flakyStore) { s.failed = errors.Join(cluster.ErrUnavailable, cluster.ErrUncertain) },
		"hanging":       func(s *flakyStore) { s.hang = true },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				stop := run(f.one)
				defer stop()
				register(t, f.one, instance(one, "old", 1), instance(one, "stays", 2))
				f.store.set(away)
				start := time.Now()
				register(t, f.one, instance(one, "web", 80), instance(one, "short", 3))
				if err := f.one.Deregister(t.Context(), []string{instance(one, "old", 0).ID, instance(one, "short", 0).ID}); err != nil {
					t.Error(err)
				}
				register(t, f.one, instance(one, "web", 81))
				if took := time.Since(start); took > 15*time.Second {
					t.Errorf("three calls took %v", took)
				}
				time.Sleep(time.Minute)
				f.store.set(func(s *flakyStore) { s.failed, s.reads, s.hang = nil, nil, false })
				f.want(t, "old 1", "stays 2")
				time.Sleep(15 * time.Second) // no pause is longer
				synctest.Wait()
				f.want(t, "stays 2", "web 81")
				if f.store.applied() != 2 {
					t.Errorf("%d commits, want the first and one for all the rest", f.store.applied())
				}
			})
		})
	}
}

// TestNoLease: without a lease, as where the store was away at the start, the provider holds one, and gives it back.
func TestNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		_ = f.leases[one].Close()
		stop := run(f.one)
		register(t, f.one, instance(one, "web", 80))
		f.want(t, "web 80")
		if !strings.Contains(f.log.String(), "nobody has held the lease") {
			t.Errorf("the log says %q", f.log)
		}
		stop()
		f.want(t)
	})
}

// TestMany: more services than a transaction takes, by number or by bytes, are all written, and removed.
func TestMany(t *testing.T) {
	f := newFixture(t)
	var services []*interfaces.ServiceInstance
	var ids []string
	for i := range 1000 {
		s := instance(one, fmt.Sprintf("s%d", i), i)
		services, ids = append(services, s), append(ids, s.ID)
	}
	register(t, f.one, services...)
	if n := len(f.registered(t)); n != 1000 || f.store.applied() != 8 {
		t.Errorf("%d services by %d commits, want 1000 by 8", n, f.store.applied())
	}
	if err := f.one.Deregister(t.Context(), ids); err != nil {
		t.Fatal(err)
	}
	f.want(t)
	large := strings.Repeat("x", 500<<10)
	services = nil
	for i := range 20 {
		services = append(services, instance(one, fmt.Sprintf("s%d", i), i, large))
	}
	register(t, f.one, services...)
	if n := len(f.registered(t)); n != 20 {
		t.Errorf("%d large services, want 20", n)
	}
}

// TestRemoval: an operator removes one registration, and no other; its allocation's next one writes it again.
func TestRemoval(t *testing.T) {
	f := newFixture(t)
	register(t, f.one, instance(one, "web", 80))
	for _, c := range [][3]string{
		{"prod", "web", instance(one, "web", 0).ID}, {"default", "db", instance(one, "web", 0).ID}, {"default", "web", "x"}, {"", "", ""},
		{"default", "web/x", "y"}, {"default", "\x00", "y"}, {"default", strings.Repeat("x", 2000), "y"},
	} {
		if _, err := f.registry.Deregister(t.Context(), c[0], c[1], c[2]); !errors.Is(err, registry.ErrNotFound) {
			t.Errorf("%q: %v, want ErrNotFound", c, err)
		}
	}
	index, err := f.registry.Deregister(t.Context(), "default", "web", instance(one, "web", 0).ID)
	if _, now, _ := f.registry.Services(t.Context(), "", ""); err != nil || index != now {
		t.Errorf("index %d of %d, %v", index, now, err)
	}
	f.want(t)
	register(t, f.one, instance(one, "web", 80)) // such as at a restart
	f.want(t, "web 80")
}

// TestWait: a wait ends with a change of what it is about, at once with one that has been, and with its context.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		_, before, _ := f.registry.Services(t.Context(), "default", "")
		done := make(chan error, 1)
		go func() { done <- f.registry.Wait(t.Context(), "default", "web", before) }()
		register(t, f.two, instance(two, "web2", 81))
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("it has ended with another service: %v", err)
		default:
		}
		register(t, f.one, instance(one, "web", 80))
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := f.registry.Wait(t.Context(), "", "", before); err != nil { // there has been one
			t.Error(err)
		}
		_, now, _ := f.registry.Services(t.Context(), "default", "")
		for _, index := range []uint64{now, now + 100} { // the second one is of a store that was removed
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := f.registry.Wait(ctx, "default", "web", index); err != nil || ctx.Err() == nil {
				t.Errorf("at index %d: %v, want the end of the context, and no error", index, err)
			}
			cancel()
		}
		go func() { done <- f.registry.Wait(t.Context(), "default", "web", now+100) }()
		synctest.Wait()
		_ = f.leases[one].Close()
		if err := <-done; err != nil {
			t.Errorf("at the end of the lease: %v", err)
		}
		f.store.set(func(s *flakyStore) { s.reads = cluster.ErrUnavailable })
		if err := f.registry.Wait(t.Context(), "default", "web", now); !errors.Is(err, cluster.ErrUnavailable) {
			t.Errorf("with a store that is away: %v", err)
		}
	})
}

// TestFollow: every change in the namespace is reported once, those at the end of a lease and those that a store
// no longer knows of, too.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		register(t, f.one, instance(one, "before", 1))
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var got []string // guarded by mu
		var following sync.WaitGroup
		follower := f.registry.Follow(ctx, "default")
		following.Go(func() {
			follower.Run(ctx, func(changes []registry.Change) {
				mu.Lock()
				defer mu.Unlock()
				for _, c := range changes {
					got = append(got, fmt.Sprintf("%s %d %t", c.Service.ServiceName, c.Service.Port, c.Gone))
				}
			})
		})
		want := func(want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(got, want) {
				t.Errorf("reported %q, want %q", got, want)
			}
			got = nil
		}
		want()
		register(t, f.one, instance(one, "web", 80))
		want("web 80 false")
		register(t, f.one, instance(one, "web", 80))
		want()
		register(t, f.one, instance(one, "web", 81))
		want("web 81 false")
		prod := alloc(two)
		prod.Namespace = "prod"
		elsewhere := instance(two, "db", 1)
		elsewhere.Namespace = "prod"
		register(t, f.registry.Provider(prod, slog.New(slog.DiscardHandler)), elsewhere)
		want()
		if _, err := f.registry.Deregister(t.Context(), "default", "web", instance(one, "web", 0).ID); err != nil {
			t.Fatal(err)
		}
		want("web 81 true")
		f.store.set(func(s *flakyStore) { s.gap = true })
		register(t, f.one, instance(one, "new", 2))
		want("new 2 false")
		if err := f.one.Deregister(t.Context(), []string{instance(one, "new", 0).ID}); err != nil {
			t.Fatal(err)
		}
		want("new 2 true")
		_ = f.leases[one].Close()
		want("before 1 true")
		cancel()
		following.Wait()
	})
}

// TestUnreadable: an entry that can't be read hides no other.
func TestUnreadable(t *testing.T) {
	f := newFixture(t)
	register(t, f.one, instance(one, "web", 80))
	if _, err := f.store.Commit(t.Context(), cluster.Txn{Then: []cluster.Operation{{Key: "services/default/web/x", Value: []byte("{")}}}); err != nil {
		t.Fatal(err)
	}
	f.want(t, "web 80")
}

// TestAtOnce: providers that write at once lose nothing.
func TestAtOnce(t *testing.T) {
	f := newFixture(t)
	var writers sync.WaitGroup
	for id, p := range map[string]*registry.Provider{one: f.one, two: f.two} {
		for n := range 20 {
			writers.Go(func() {
				if err := p.Register(t.Context(), []*interfaces.ServiceInstance{instance(id, fmt.Sprintf("s%02d", n), n)}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	writers.Wait()
	if n := len(f.registered(t)); n != 40 {
		t.Errorf("%d services, want 40", n)
	}
}
