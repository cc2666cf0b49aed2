package registry_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/registry"
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

// TestFollow: every change in the namespace is reported once, also at the end of a lease, and also one that the store
// has forgotten.
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
