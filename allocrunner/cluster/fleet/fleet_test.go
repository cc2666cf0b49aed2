package fleet_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/fleet"
	"taskapi/allocrunner/cluster/memory"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// source is an allocation whose versions a test makes.
type source struct {
	mu      sync.Mutex
	now     *api.Allocation
	changed chan struct{}
}

func newSource(id string) *source {
	return &source{changed: make(chan struct{}), now: &api.Allocation{
		ID: id, Namespace: "default", Name: "job.group[0]", ClientStatus: "pending", ModifyIndex: 1,
		Job: &api.Job{ID: new("job"), Meta: map[string]string{"secret": "of the job"}},
	}}
}

func (s *source) Alloc() *api.Allocation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *source) Wait(ctx context.Context, index uint64) *api.Allocation {
	for {
		s.mu.Lock()
		now, changed := s.now, s.changed
		s.mu.Unlock()
		if now.ModifyIndex > index {
			return now
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return now
		}
	}
}

func (s *source) change(edit func(*api.Allocation)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := *s.now
	edit(&next)
	next.ModifyIndex++
	s.now = &next
	close(s.changed)
	s.changed = make(chan struct{})
}

// counted counts the commits of a store, and can be away.
type counted struct {
	cluster.Store
	mu      sync.Mutex
	commits int
	away    bool
}

func (c *counted) Commit(ctx context.Context, txn cluster.Txn) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away {
		return 0, fmt.Errorf("%w: a test", cluster.ErrUnavailable)
	}
	c.commits++
	return c.Store.Commit(ctx, txn)
}

func (c *counted) set(away bool) (commits int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = away
	return c.commits
}

// machine publishes an allocation on a node, until end is called.
func machine(store cluster.Store, node string, alloc *source) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	p := &fleet.Publisher{Store: store, Logger: slog.New(slog.DiscardHandler), Alloc: alloc,
		Node: func() *api.Node {
			return &api.Node{ID: node, Name: "name of " + node, Attributes: map[string]string{
				"os.name": "linux", "unique.storage.bytesfree": time.Now().String()}}
		}}
	var work sync.WaitGroup
	work.Go(func() { p.Run(ctx) })
	return func() {
		cancel()
		work.Wait()
	}
}

func statuses(t *testing.T, f *fleet.Fleet) (found map[string]string, index uint64) {
	t.Helper()
	all, index, err := f.Allocations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found = map[string]string{}
	for _, a := range all {
		found[a.ID] = a.ClientStatus
		if a.ModifyIndex == 0 || a.ModifyIndex > index || a.Job.Meta != nil {
			t.Errorf("%+v at index %d", a, index)
		}
	}
	return found, index
}

// TestMachinesSeeEachOther: two machines publish, a change of state is seen by who waits for it, and a machine that
// ends leaves nothing.
func TestMachinesSeeEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		one, other := newSource("a1"), newSource("a2")
		endOne, endOther := machine(store.Open(), "n1", one), machine(store.Open(), "n2", other)
		defer endOne()
		synctest.Wait()
		f := fleet.New(store)
		found, index := statuses(t, f)
		if fmt.Sprint(found) != "map[a1:pending a2:pending]" {
			t.Fatal(found)
		}
		waited := make(chan error, 1)
		go func() { waited <- f.WaitAllocations(t.Context(), index) }()
		one.change(func(a *api.Allocation) { a.ClientStatus = "running" })
		must.OK(t, <-waited)
		if found, _ := statuses(t, f); fmt.Sprint(found) != "map[a1:running a2:pending]" {
			t.Error(found)
		}
		if nodes, _, err := f.Nodes(t.Context()); err != nil || len(nodes) != 2 || nodes[0].Name != "name of n1" {
			t.Error(nodes, err)
		}
		if n, err := f.Node(t.Context(), "N2"); err != nil || n.Attributes["os.name"] != "linux" {
			t.Error(n, err)
		}
		endOther()
		synctest.Wait()
		same.Error(t, fleet.ErrNotFound, same.Err(f.Allocation(t.Context(), "a2")))
		if nodes, _, _ := f.Nodes(t.Context()); len(nodes) != 1 {
			t.Error(nodes)
		}
		for _, id := range []string{"", "a\x00", "A1/"} {
			same.Error(t, fleet.ErrNotFound, same.Err(f.Allocation(t.Context(), id)), id)
		}
	})
}

// TestLittleTraffic: many changes that leave the state as it is are few writes, and none when nothing changes.
func TestLittleTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &counted{Store: memory.New()}
		alloc := newSource("a1")
		defer machine(store, "n1", alloc)()
		synctest.Wait()
		before := store.set(false)
		for range 600 {
			alloc.change(func(a *api.Allocation) { a.ModifyTime++ })
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		if n := store.set(false) - before; n < 10 || n > 13 {
			t.Errorf("%d writes in a minute", n)
		}
		all, _, _ := fleet.New(store).Allocations(t.Context())
		if len(all) != 1 || all[0].ModifyTime != 600 {
			t.Errorf("%+v", all)
		}
		before = store.set(false)
		time.Sleep(time.Hour)
		same.As(t, 0, store.set(false)-before, "writes in an idle hour")
	})
}

// TestAway: the latest state is written when the store is back, and a machine stays as long as one of its allocations.
func TestAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &counted{Store: memory.New()}
		alloc := newSource("a1")
		defer machine(store, "n1", alloc)()
		endOther := machine(store, "n1", newSource("a2"))
		synctest.Wait()
		store.set(true)
		alloc.change(func(a *api.Allocation) { a.ClientStatus = "running" })
		time.Sleep(time.Hour)
		alloc.change(func(a *api.Allocation) { a.ClientStatus = "failed" })
		store.set(false)
		time.Sleep(time.Minute)
		f := fleet.New(store)
		if found, _ := statuses(t, f); found["a1"] != "failed" || len(found) != 2 {
			t.Error(found)
		}
		endOther()
		nodes, _, _ := f.Nodes(t.Context())
		if found, _ := statuses(t, f); len(nodes) != 1 || nodes[0].Name != "name of n1" || len(found) != 1 {
			t.Error(nodes, found)
		}
	})
}

// TestForeignEntries: an entry that is no allocation hides no other.
func TestForeignEntries(t *testing.T) {
	store := memory.New()
	_, err := store.Commit(t.Context(), cluster.Txn{Then: []cluster.Operation{
		{Key: "fleet/allocs/a1", Value: []byte("[")}, {Key: "fleet/allocs/a2", Value: []byte(`{"ID":"a2","Job":{}}`)}}})
	if err != nil {
		t.Fatal(err)
	}
	if found, _ := statuses(t, fleet.New(store)); len(found) != 1 {
		t.Error(found)
	}
	same.Fails(t, same.Err(fleet.New(store).Allocation(t.Context(), "a1")), "an entry that is no JSON was read")
}
