package variables_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// sharedStore is a store of several machines.
type sharedStore struct{ cluster.Store }

func (sharedStore) FreshUntil(string) time.Time { return time.Now() }

// TestLocksOfSeveralMachines: a lock lives while its holder renews it. When the holder's machine dies, the lock ends
// for each of the others, however many look at it, and not before its time.
func TestLocksOfSeveralMachines(t *testing.T) {
	sealer := newSealer(t) // a key ring waits for the disk
	synctest.Test(t, func(t *testing.T) {
		first := newVariables(t)
		first.store = sharedStore{first.store}
		var machines []*fixture
		for _, boot := range []string{"a", "b", "c"} {
			machines = append(machines, first.at(sealer, &boot))
			time.Sleep(time.Hour) // each has a clock of its own
		}
		a, b, c := machines[0], machines[1], machines[2]
		id := a.mustAcquire("k", "v")
		for range 10 {
			for _, other := range []*fixture{b, c} {
				if _, err := other.acquire(""); err == nil {
					t.Fatal("another machine has the lock")
				}
			}
			time.Sleep(9 * time.Second)
			must.OK(t, a.renew(id))
		}
		died := time.Now() // from here on, a renews no more
		var got string
		for got == "" {
			for _, other := range []*fixture{b, c} {
				if v, err := other.acquire(""); err == nil {
					got = v.LockID()
					break
				}
			}
			time.Sleep(time.Second)
		}
		// twice the TTL, and the delay
		if waited := time.Since(died); waited < 25*time.Second || waited > 28*time.Second {
			t.Errorf("another machine got the lock after %v", waited)
		}
		same.Fails(t, a.renew(id), "the first machine renews what it has lost")
		same.Fails(t, c.write("", "w"), "a machine writes without the lock")
	})
}

// countingStore counts the reads of a store.
type countingStore struct {
	cluster.Store
	reads int
}

func (s *countingStore) Get(ctx context.Context, key string) (cluster.Entry, uint64, error) {
	s.reads++
	return s.Store.Get(ctx, key)
}

func (s *countingStore) List(ctx context.Context, span cluster.Span) (cluster.Page, error) {
	s.reads++
	return s.Store.List(ctx, span)
}

// TestManyLocksAreFewReads: each read may be a question to other machines, so that a list of many locked variables, and
// the wait for a change of them, need few.
func TestManyLocksAreFewReads(t *testing.T) {
	f := newVariables(t)
	store := &countingStore{Store: f.store}
	f.Service = variables.New(variables.Config{Store: store, Sealer: newSealer(t)})
	before := f.put("first", "k", "v").ModifyIndex
	const locks = 50
	for i := range locks {
		_, _, err := f.Acquire(f.ctx(), variable(fmt.Sprintf("locked/%d", i), "k", "v"))
		must.OK(t, err)
	}
	store.reads = 0
	list, _, err := f.List(f.ctx(), ns, "locked/", variables.Everything)
	must.OK(t, err)
	if len(list) != locks || list[0].Lock == nil || store.reads > 5 {
		t.Errorf("a list of %d took %d reads", len(list), store.reads)
	}
	store.reads = 0
	must.OK(t, f.Await(f.ctx(), ns, "locked/", before, variables.Everything))
	if store.reads > 5 {
		t.Errorf("a wait took %d reads", store.reads)
	}
}
