package variables_test

import (
	"testing"
	"testing/synctest"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/internal/must"
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
		if err := a.renew(id); err == nil {
			t.Error("the first machine renews what it has lost")
		}
		if err := c.write("", "w"); err == nil {
			t.Error("a machine writes without the lock")
		}
	})
}
