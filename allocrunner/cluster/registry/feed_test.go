package registry_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/memory"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestWait: a wait ends with a change of its services, at once with an earlier change, and with its context.
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
		must.OK(t, <-done)
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
		same.Error(t, nil, <-done, "at the end of the lease")
		f.store.set(func(s *flakyStore) { s.reads = cluster.ErrUnavailable })
		if err := f.registry.Wait(t.Context(), "default", "web", now); !errors.Is(err, cluster.ErrUnavailable) {
			t.Errorf("with a store that is away: %v", err)
		}
	})
}

// TestFeed: every change in the namespace is reported once, also at the end of a lease, and also one that the store
// has forgotten.
func TestFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		register(t, f.one, instance(one, "before", 1))
		ctx, cancel := context.WithCancel(t.Context())
		var following sync.WaitGroup
		feed := f.registry.Feed(ctx, "default")
		following.Go(func() { feed.Run(ctx) })
		number := uint64(0)
		want := func(want ...string) {
			t.Helper()
			synctest.Wait()
			var changes []*registry.Change
			changes, number, _ = feed.Since(number)
			var got []string
			for _, c := range changes {
				got = append(got, fmt.Sprintf("%s %d %t", c.Value().ServiceName, c.Value().Port, c.Gone))
			}
			same.As(t, want, got, "reported")
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
		must.Get(f.registry.Deregister(t.Context(), "default", "web", instance(one, "web", 0).ID))(t)
		want("web 81 true")
		f.store.set(func(s *flakyStore) { s.gap = true })
		register(t, f.one, instance(one, "new", 2))
		want("new 2 false")
		must.OK(t, f.one.Deregister(t.Context(), []string{instance(one, "new", 0).ID}))
		want("new 2 true")
		_ = f.leases[one].Close()
		want("before 1 true")
		cancel()
		following.Wait()
	})
}

// sharedStore is a store of several machines, which counts the watches under way.
type sharedStore struct {
	cluster.Store
	watches atomic.Int32
}

func (*sharedStore) FreshUntil(string) time.Time { return time.Now() }

func (s *sharedStore) Watch(ctx context.Context, prefix string, after uint64) (cluster.Changes, error) {
	s.watches.Add(1)
	defer s.watches.Add(-1)
	return s.Store.Watch(ctx, prefix, after)
}

// TestFeedOnDemand: in a store of several machines a feed follows changes while somebody reads, and then reports also
// those that came since it has begun.
func TestFeedOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &sharedStore{Store: memory.New()}
		put := func(name string) {
			t.Helper()
			value := fmt.Appendf(nil, `{"ID":"i","Namespace":"default","ServiceName":%q}`, name)
			op := cluster.Operation{Key: "services/default/" + name + "/i", Value: value}
			must.Get(store.Commit(t.Context(), cluster.Txn{Then: []cluster.Operation{op}}))(t)
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		feed := registry.New(store).Feed(ctx, "default")
		var running sync.WaitGroup
		running.Go(func() { feed.Run(ctx) })
		number := uint64(0)
		want := func(watches int32, want ...string) {
			t.Helper()
			synctest.Wait()
			var changes []*registry.Change
			changes, number, _ = feed.Since(number)
			var got []string
			for _, c := range changes {
				got = append(got, c.Value().ServiceName)
			}
			if !slices.Equal(got, want) || store.watches.Load() != watches {
				t.Errorf("%q with %d watches, want %q with %d", got, store.watches.Load(), want, watches)
			}
		}
		put("before")
		want(0)
		done, other := feed.Read(t.Context()), feed.Read(t.Context())
		put("one")
		want(1, "one")
		done()
		put("two")
		want(1, "two")
		other()
		put("three")
		want(0)
		done = feed.Read(t.Context())
		want(1, "three")
		cancel()
		running.Wait()
		done()
	})
}

// TestFeedKeeps the latest changes, with their numbers, for a reader who asks late or for what has not come yet.
func TestFeedKeeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		feed := f.registry.Feed(ctx, "default")
		go feed.Run(ctx)
		_, first, more := feed.Since(math.MaxUint64)
		const count = 1000
		for port := range count {
			register(t, f.one, instance(one, "web", port))
			synctest.Wait()
		}
		select {
		case <-more:
		default:
			t.Error("nobody has said that there are changes")
		}
		changes, next, _ := feed.Since(first)
		if next != count || len(changes) < 256 || len(changes) > 512 {
			t.Fatalf("%d changes are kept, and the next is %d", len(changes), next)
		}
		for i, c := range changes {
			if s := c.Value(); s.Port != count-len(changes)+i {
				t.Fatalf("change %d of the last %d has the port %d", i, len(changes), s.Port)
			}
		}
		if changes, next, more := feed.Since(next + 5); len(changes) != 0 || next != count || more == nil {
			t.Errorf("after the last change: %d, next %d", len(changes), next)
		}
	})
}
