package registry_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// The tests run in bubbles of synctest: on a busy machine a large registration takes longer than an attempt may.

func TestRegister(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		register(t, f.one, instance(one, "web", 80, "a", "b"), instance(one, "db", 5432))
		all, index, err := f.registry.Services(t.Context(), "default", "web")
		want := []*api.ServiceRegistration{{
			ID: "_nomad-task-" + one + "-group-web-web-http", ServiceName: "web", Namespace: "default", NodeID: "node",
			Datacenter: "dc1", JobID: "demo", AllocID: one, Tags: []string{"a", "b"}, Address: "127.0.0.1", Port: 80,
			CreateIndex: index, ModifyIndex: index,
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
		if ids, err := f.one.Registered(t.Context(), one); err != nil || len(ids) != 2 ||
			!strings.HasSuffix(ids[0], "-db-http") {
			t.Errorf("registered of one: %v, %v", ids, err)
		}
		if ids, err := f.one.Registered(t.Context(), two); err != nil || len(ids) != 0 {
			t.Errorf("registered of two, by one's provider: %v, %v", ids, err)
		}
		if err := f.one.Deregister(t.Context(), []string{instance(one, "web", 0).ID, instance(two, "web", 0).ID,
			"nonsense"}); err != nil {
			t.Error(err)
		}
		f.want(t, "db 5432", "web 81")
		_ = f.leases[one].Close()
		f.want(t, "web 81")
	})
}

// TestUnchanged: an unchanged registration is not written again, not even by the next process. A changed one keeps its
// CreateIndex.
func TestUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		if f.store.applied() != 2 || after[1].Port != 81 || after[1].CreateIndex != before[1].CreateIndex ||
			after[1].ModifyIndex != index ||
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
	})
}

// TestOthersCostNothing: a provider that registers and removes its services does not read those of others. A process
// that has not registered them lists them once.
func TestOthersCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		register(t, f.two, instance(two, "web", 80))
		web, db := instance(one, "web", 80), instance(one, "db", 1)
		for range 2 {
			register(t, f.one, web, db)
			must.OK(t, f.one.Deregister(t.Context(), []string{web.ID, db.ID}))
		}
		f.store.set(func(s *flakyStore) {
			same.As(t, 0, s.lists, "lists")
		})
		register(t, f.one, web, db)
		next := f.registry.Provider(alloc(one), slog.New(slog.DiscardHandler))
		ids, err := next.Registered(t.Context(), one)
		if err != nil || len(ids) != 2 {
			t.Fatal(ids, err)
		}
		for _, id := range ids {
			must.OK(t, next.Deregister(t.Context(), []string{id}))
		}
		f.store.set(func(s *flakyStore) {
			same.As(t, 1, s.lists, "lists of the next process")
		})
		f.want(t, "web 80") // two's
	})
}

// TestRefused: an invalid service is refused, together with the valid ones beside it.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		for name, spoil := range map[string]func(*interfaces.ServiceInstance){
			"another allocation's":    func(s *interfaces.ServiceInstance) { s.AllocID = two },
			"another allocation's ID": func(s *interfaces.ServiceInstance) { s.ID = instance(two, "web", 0).ID },
			"an ID that is cut":       func(s *interfaces.ServiceInstance) { s.ID = "_nomad-task-" + one },
			"another namespace":       func(s *interfaces.ServiceInstance) { s.Namespace = "prod" },
			"no name":                 func(s *interfaces.ServiceInstance) { s.ServiceName = "" },
			"a slash in the name":     func(s *interfaces.ServiceInstance) { s.ServiceName = "web/x" },
			"a control character":     func(s *interfaces.ServiceInstance) { s.ServiceName = "web\n" },
			"a long name":             func(s *interfaces.ServiceInstance) { s.ServiceName = strings.Repeat("x", 2000) },
			"huge tags": func(s *interfaces.ServiceInstance) {
				s.Tags = []string{strings.Repeat("x", 1<<20)}
			},
			"a port above all":   func(s *interfaces.ServiceInstance) { s.Port = 65536 },
			"every address":      func(s *interfaces.ServiceInstance) { s.Address = "0.0.0.0" },
			"every IPv6 address": func(s *interfaces.ServiceInstance) { s.Address = "::" },
		} {
			bad := instance(one, "web", 80)
			spoil(bad)
			if err := f.one.Register(t.Context(), []*interfaces.ServiceInstance{instance(one, "good", 1),
				bad}); err == nil {
				t.Errorf("%s: no error", name)
			}
			f.want(t)
		}
	})
}

// TestForeign: an entry that belongs to another owner, under a key of the allocation, stays as it is. All else is
// written.
func TestForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		key := "services/default/web/" + instance(one, "web", 0).ID
		planted := []byte(`{"ServiceName":"web","Port":666}`)
		txn := cluster.Txn{Then: []cluster.Operation{{Key: key, Value: planted, Lease: two}}}
		must.Get(f.store.Commit(t.Context(), txn))(t)
		err := f.one.Register(t.Context(), []*interfaces.ServiceInstance{instance(one, "web", 80),
			instance(one, "db", 1), instance(one, "zoo", 2)})
		same.Says(t, nil, two, err)
		f.want(t, "db 1", "web 666", "zoo 2")
		// It may return an error or not, but must not remove the entry.
		_ = f.one.Deregister(t.Context(), []string{instance(one, "web", 0).ID})
		f.want(t, "db 1", "web 666", "zoo 2")
	})
}

// TestAway: a store that fails or hangs stops nobody. The latest registrations are written once it works again.
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
				if err := f.one.Deregister(t.Context(), []string{instance(one, "old", 0).ID,
					instance(one, "short", 0).ID}); err != nil {
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

// TestNoLease: when nobody holds the lease, such as when the store failed at the start, the provider holds one, and
// closes it at its end.
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

// TestMany: more services than fit in a transaction, by number or by bytes, are all written, and all removed.
func TestMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var services []*interfaces.ServiceInstance
		var ids []string
		for i := range 300 {
			s := instance(one, fmt.Sprintf("s%d", i), i)
			services, ids = append(services, s), append(ids, s.ID)
		}
		register(t, f.one, services...)
		if n := len(f.registered(t)); n != 300 || f.store.applied() != 3 {
			t.Errorf("%d services by %d commits, want 300 by 3", n, f.store.applied())
		}
		must.OK(t, f.one.Deregister(t.Context(), ids))
		f.want(t)
		large := strings.Repeat("x", 500<<10)
		services = nil
		for i := range 10 {
			services = append(services, instance(one, fmt.Sprintf("s%d", i), i, large))
		}
		register(t, f.one, services...)
		same.As(t, 10, len(f.registered(t)), "large services")
	})
}

// TestRemoval: an operator removes one registration and no other. The allocation writes it again when it registers
// next.
func TestRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		register(t, f.one, instance(one, "web", 80))
		for _, c := range [][3]string{
			{"prod", "web", instance(one, "web", 0).ID}, {"default", "db", instance(one, "web", 0).ID}, {"default",
				"web", "x"}, {"", "", ""},
			{"default", "web/x", "y"}, {"default", "\x00", "y"}, {"default", strings.Repeat("x", 2000), "y"},
		} {
			same.Error(t, registry.ErrNotFound, same.Err(f.registry.Deregister(t.Context(), c[0], c[1], c[2])), c)
		}
		index, err := f.registry.Deregister(t.Context(), "default", "web", instance(one, "web", 0).ID)
		if _, now, _ := f.registry.Services(t.Context(), "", ""); err != nil || index != now {
			t.Errorf("index %d of %d, %v", index, now, err)
		}
		f.want(t)
		register(t, f.one, instance(one, "web", 80)) // such as at a restart
		f.want(t, "web 80")
	})
}

// TestUnreadable: an entry that can't be read hides no other.
func TestUnreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		register(t, f.one, instance(one, "web", 80))
		txn := cluster.Txn{Then: []cluster.Operation{{Key: "services/default/web/x", Value: []byte("{")}}}
		must.Get(f.store.Commit(t.Context(), txn))(t)
		f.want(t, "web 80")
	})
}

// TestAtOnce: providers that write at once lose nothing.
func TestAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var writers sync.WaitGroup
		for id, p := range map[string]*registry.Provider{one: f.one, two: f.two} {
			for n := range 20 {
				writers.Go(func() {
					one := instance(id, fmt.Sprintf("s%02d", n), n)
					if err := p.Register(t.Context(), []*interfaces.ServiceInstance{one}); err != nil {
						t.Error(err)
					}
				})
			}
		}
		writers.Wait()
		same.As(t, 40, len(f.registered(t)), "services")
	})
}
