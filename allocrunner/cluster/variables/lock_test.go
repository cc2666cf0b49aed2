package variables_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// locked runs a test with a clock of its own. boot makes the clock that of another start of the machine.
func locked(t *testing.T, test func(t *testing.T, f *fixture, boot *string)) {
	sealer := newSealer(t) // a key ring waits for the disk
	synctest.Test(t, func(t *testing.T) {
		boot := "boot 1"
		test(t, newVariables(t).at(sealer, &boot), &boot)
	})
}

// acquire locks the variable "l" with a TTL of 10 seconds and a delay of 5, by an ID or, when that is empty, by a new
// one.
func (f *fixture) acquire(id string, items ...string) (*api.Variable, error) {
	v := variable("l", items...)
	v.Lock = &api.VariableLock{ID: id, TTL: "10s", LockDelay: "5s"}
	got, _, err := f.Acquire(f.ctx(), v)
	return got, err
}

func (f *fixture) mustAcquire(items ...string) string {
	f.tb.Helper()
	v, err := f.acquire("", items...)
	if err != nil || v.LockID() == "" {
		f.tb.Fatalf("acquire: %+v, %v", v, err)
	}
	return v.LockID()
}

func (f *fixture) renew(id string) error {
	_, _, err := f.Renew(f.ctx(), ns, "l", id)
	return err
}

func (f *fixture) release(id string) error {
	_, _, err := f.Release(f.ctx(), ns, "l", id)
	return err
}

// write writes the variable with a lock's ID, empty for none.
func (f *fixture) write(id, value string) error {
	v := variable("l", "k", value)
	if id != "" {
		v.Lock = &api.VariableLock{ID: id}
	}
	_, _, err := f.Put(f.ctx(), v, nil)
	return err
}

func TestLock(t *testing.T) {
	locked(t, func(t *testing.T, f *fixture, _ *string) {
		id := f.mustAcquire("k", "v")
		if v := f.read("l"); v.Lock == nil || *v.Lock != (api.VariableLock{ID: id, TTL: "10s", LockDelay: "5s"}) ||
			v.Items["k"] != "v" {
			t.Errorf("locked: %+v", v)
		}
		_, err := f.acquire("")
		f.wantConflict(err, 0, true)
		_, err = f.acquire("another")
		f.wantConflict(err, 0, true)
		f.wantConflict(f.write("", "w"), 0, true)
		f.wantConflict(f.write("another", "w"), 0, true)
		_, err = f.Delete(t.Context(), ns, "l", nil)
		f.wantConflict(err, 0, true)
		f.wantConflict(f.release("another"), 0, true)
		same.Error(t, variables.ErrLocked, f.renew("another"), "renewed by another")
		same.Error(t, nil, f.write(id, "w"), "the holder can't write")
		if v := f.read("l"); v.Items["k"] != "w" || v.LockID() != id || v.Lock.TTL != "10s" {
			t.Errorf("after the holder wrote: %+v", v)
		}
		if _, err := f.acquire(id, "k", "again"); err != nil || f.read("l").Items["k"] != "again" {
			t.Errorf("acquired again by the holder: %v", err)
		}
		before := f.read("l")
		must.OK(t, f.renew(id))
		same.As(t, before, f.read("l"), "a renewal has changed the variable")
		must.OK(t, f.release(id))
		after := f.read("l")
		if after.Lock != nil || after.Items["k"] != "again" || after.ModifyIndex <= before.ModifyIndex {
			t.Errorf("released: %+v", after)
		}
		same.Error(t, variables.ErrNotLocked, f.release(id), "released twice")
		same.Error(t, variables.ErrNotLocked, f.renew(id), "renewed after its release")
		f.wantConflict(f.write(id, "late"), 0, true) // it does not know yet that it holds nothing
		if f.mustAcquire() == id {
			t.Error("two locks have one ID")
		}
		if v := f.read("l"); v.Items["k"] != "again" {
			t.Errorf("acquired without items: %+v, want those that were there", v)
		}
	})
}

func TestLockOfNothing(t *testing.T) {
	locked(t, func(t *testing.T, f *fixture, _ *string) {
		same.Error(t, variables.ErrNotFound, f.renew("x"), "renew")
		same.Error(t, variables.ErrNotFound, f.release("x"), "release")
		f.wantInvalid(f.renew(""), "missing lock ID")
		f.wantInvalid(f.release(""), "missing lock information")
		f.wantConflict(f.write("x", "v"), 0, true)
		if f.read("l") != nil {
			t.Error("a variable was made for a lock that nobody has")
		}
		f.mustAcquire()
		if v := f.read("l"); v == nil || len(v.Items) != 0 {
			t.Errorf("a variable that was made for its lock: %+v", v)
		}
	})
}

// TestLockBounds has a row for each rule of a lock's times.
func TestLockBounds(t *testing.T) {
	f := newVariables(t)
	for _, c := range []struct{ ttl, delay, want string }{ // want is TTL and delay, or an error
		{"", "", "15s 15s"}, {"0s", "0", "15s 15s"}, {"10s", "1s", "10s 1s"}, {"24h", "24h", "24h0m0s 24h0m0s"},
		{"", "24h0m1s", "LockDelay must be at most 24 hours, not 24h0m1s"}, {"", "2562047h",
			"LockDelay must be at most 24 hours, not 2562047h"},
		{"9.999s", "", "TTL must be between 10 seconds and 24 hours"}, {"24h0m1s", "", "TTL must be between"},
		{"-1s", "", "must be positive"}, {"", "-1ns", "must be positive"}, {"soon", "", "invalid duration"}, {"", "1",
			"missing unit"},
	} {
		v := variable("p")
		v.Lock = &api.VariableLock{TTL: c.ttl, LockDelay: c.delay}
		got, _, err := f.Acquire(t.Context(), v)
		if err != nil {
			f.wantInvalid(err, c.want)
			continue
		}
		same.As(t, c.want, got.Lock.TTL+" "+got.Lock.LockDelay, c.ttl, " and ", c.delay)
		if _, _, err := f.Release(t.Context(), ns, "p", got.Lock.ID); err != nil {
			t.Fatal(err)
		}
	}
	got, _, err := f.Acquire(t.Context(), variable("p"))
	if err != nil || got.Lock.TTL != "15s" || got.Lock.LockDelay != "15s" {
		t.Errorf("without a word on its lock: %+v, %v", got, err)
	}
}

// TestLockExpires: a lock that nobody renews is held for twice its TTL, can't be acquired during its delay, and is then
// free. Its holder, perhaps suspended for all that time, can change nothing any more.
func TestLockExpires(t *testing.T) {
	locked(t, func(t *testing.T, f *fixture, _ *string) {
		id := f.mustAcquire("k", "v")
		time.Sleep(19 * time.Second)
		if err := f.renew(id); err != nil {
			t.Fatalf("renewed late, within what Nomad grants: %v", err)
		}
		time.Sleep(20*time.Second - 1)
		_, err := f.acquire("")
		f.wantConflict(err, 0, true)
		time.Sleep(time.Nanosecond) // the delay begins
		same.Error(t, variables.ErrLocked, f.renew(id), "renewed during the delay")
		_, err = f.acquire(id)
		f.wantConflict(err, 0, true)
		_, err = f.acquire("")
		f.wantConflict(err, 0, true)
		f.wantConflict(f.write("", "w"), 0, true)
		same.Error(t, nil, f.write(id, "in time"), "nobody else can have it")
		time.Sleep(5*time.Second - 1)
		_, err = f.acquire("")
		f.wantConflict(err, 0, true)
		if v := f.read("l"); v.LockID() != id {
			t.Errorf("during the delay: %+v", v)
		}
		time.Sleep(time.Nanosecond)
		if v := f.read("l"); v.Lock != nil {
			t.Errorf("after the delay: %+v", v)
		}
		same.Error(t, variables.ErrNotLocked, f.release(id), "released after its end")
		f.wantConflict(f.write(id, "late"), 0, true)
		same.Error(t, nil, f.write("", "free"), "written after its end")
		next := f.mustAcquire()
		f.wantConflict(f.write(id, "late"), 0, true)
		must.OK(t, f.write(next, "next"))
	})
}

// TestReleaseHasNoDelay: a released lock can be acquired at once, since its holder has stopped.
func TestReleaseHasNoDelay(t *testing.T) {
	locked(t, func(t *testing.T, f *fixture, _ *string) {
		must.OK(t, f.release(f.mustAcquire()))
		late := f.mustAcquire()
		time.Sleep(21 * time.Second)
		same.Error(t, nil, f.release(late), "released during the delay")
		f.mustAcquire()
	})
}

// TestUnlock: a lock can be broken while it is held and during its delay. Its holder then has lost it.
func TestUnlock(t *testing.T) {
	locked(t, func(t *testing.T, f *fixture, _ *string) {
		for _, wait := range []time.Duration{0, 21 * time.Second} {
			id := f.mustAcquire("k", "v")
			time.Sleep(wait)
			same.Error(t, nil, f.Unlock(t.Context(), ns, "l"), "after ", wait)
			same.Error(t, variables.ErrNotLocked, same.Err2(f.Renew(t.Context(), ns, "l", id)), "its holder renews it")
			if v := f.read("l"); v == nil || v.Lock != nil || v.Items["k"] != "v" {
				t.Errorf("after that: %+v, want the items without a lock", v)
			}
		}
		same.Error(t, variables.ErrNotLocked, f.Unlock(t.Context(), ns, "l"), "without a lock")
		same.Error(t, variables.ErrNotFound, f.Unlock(t.Context(), ns, "none"), "without a variable")
	})
}

// TestLockAfterReboot: the whole time of a lock from an earlier start of the machine begins when a write is first
// refused for it, or when its holder renews it. Setting a clock makes no difference, since none is read that can be
// set.
func TestLockAfterReboot(t *testing.T) {
	locked(t, func(t *testing.T, f *fixture, boot *string) {
		id := f.mustAcquire("k", "v")
		*boot = "boot 2"
		time.Sleep(time.Hour) // nobody has looked
		if v := f.read("l"); v.LockID() != id {
			t.Errorf("read: %+v", v)
		}
		_, err := f.acquire("")
		f.wantConflict(err, 0, true)
		time.Sleep(25*time.Second - 1)
		_, err = f.acquire("")
		f.wantConflict(err, 0, true)
		time.Sleep(time.Nanosecond)
		next := f.mustAcquire()

		*boot = "boot 3"
		same.Error(t, nil, f.renew(next), "renewed after a reboot")
		time.Sleep(25 * time.Second)
		f.mustAcquire()
	})
}

// TestLeaseDamage: when a lock's lease can't be read or is gone, the lock's time starts again. Nobody is locked out for
// good.
func TestLeaseDamage(t *testing.T) {
	for name, value := range map[string]string{"no JSON": "x", "another's": `{"id":"x","boot":"boot 1"}`,
		"of later": `{"id":"ID","boot":"boot 1","since_ns":9000000000000}`} {
		t.Run(name, func(t *testing.T) {
			locked(t, func(t *testing.T, f *fixture, _ *string) {
				must.Get(f.acquire("ID"))(t)
				time.Sleep(time.Minute)
				f.plant("locks/default/l", []byte(value))
				_, err := f.acquire("")
				f.wantConflict(err, 0, true)
				time.Sleep(25 * time.Second)
				f.mustAcquire()
			})
		})
	}
}

// TestMachineClock: the machine's clock goes on, and is the same one for everybody since the start of the machine.
func TestMachineClock(t *testing.T) {
	first, err := variables.Now()
	if err != nil || first.Boot == "" || first.Since <= 0 {
		t.Fatalf("now is %+v, %v", first, err)
	}
	if second, err := variables.Now(); err != nil || second.Boot != first.Boot || second.Since < first.Since {
		t.Errorf("after %+v comes %+v, %v", first, second, err)
	}
}

// hooked is a store that calls a function, before, ahead of the next Commit.
type hooked struct {
	cluster.Store
	before func()
}

func (h *hooked) Commit(ctx context.Context, txn cluster.Txn) (uint64, error) {
	if do := h.before; do != nil {
		h.before = nil
		do()
	}
	return h.Store.Commit(ctx, txn)
}

// TestLateRenewal: a renewal that was decided in time keeps the lock, though it is written after another caller has
// found the lock free.
func TestLateRenewal(t *testing.T) {
	locked(t, func(t *testing.T, f *fixture, _ *string) {
		id := f.mustAcquire("k", "v")
		store := &hooked{Store: f.store}
		other := &fixture{variables.New(variables.Config{Store: store, Sealer: noSealer{}, Now: f.now}), t, store,
			f.now}
		time.Sleep(time.Minute)
		late := must.Get(json.Marshal(map[string]any{"id": id, "boot": "boot 1", "since_ns": time.Minute}))(t)
		for name, write := range map[string]func() error{
			"acquire": func() error { _, err := other.acquire(""); return err },
			"put":     func() error { return other.write("", "w") },
			"delete":  func() error { _, err := other.Delete(t.Context(), ns, "l", nil); return err },
		} {
			f.plant("locks/default/l", []byte(`{"id":"`+id+`","boot":"boot 1","since_ns":1}`)) // whose time is over
			store.before = func() { f.plant("locks/default/l", late) }
			if err := write(); store.before != nil {
				t.Errorf("%s did not find the lock free: %v", name, err)
			} else {
				f.wantConflict(err, 0, true)
			}
		}
	})
}

// noSealer does not seal, and needs no key.
type noSealer struct{}

func (noSealer) Seal(items []byte, _ string) ([]byte, error) { return items, nil }
func (noSealer) Open(items []byte, _ string) ([]byte, error) { return items, nil }

// slow is a store that lets others run before each Commit.
type slow struct{ cluster.Store }

func (s slow) Commit(ctx context.Context, txn cluster.Txn) (uint64, error) {
	runtime.Gosched()
	return s.Store.Commit(ctx, txn)
}

// TestNobodyLosesAStep: several processes count in a variable by its index, and in another one under a lock. No step is
// lost, and no two of them have the lock at once. The tests of package stores kill such processes.
func TestNobodyLosesAStep(t *testing.T) {
	f := newVariables(t)
	const writers, steps = 4, 25
	var writing sync.WaitGroup
	var holders atomic.Int32
	for range writers {
		s := variables.New(variables.Config{Store: slow{f.store}, Sealer: noSealer{}})
		step := func(path string, checked bool) error {
			v, _, err := s.Read(t.Context(), ns, path)
			if err != nil {
				return err
			}
			var index uint64
			count := 0
			if v != nil {
				index = v.ModifyIndex
				count, _ = strconv.Atoi(v.Items["k"])
			}
			check := &index
			if !checked {
				check = nil
			}
			_, _, err = s.Put(t.Context(), variable(path, "k", strconv.Itoa(count+1)), check)
			return err
		}
		locked := func() error {
			lock := variable("lock")
			lock.Lock = &api.VariableLock{TTL: "1h"}
			held, _, err := s.Acquire(t.Context(), lock)
			if err != nil {
				return err
			}
			same.As(t, 1, holders.Add(1), "holders of the lock")
			err = step("locked", false)
			holders.Add(-1)
			_, _, releaseErr := s.Release(t.Context(), ns, "lock", held.LockID())
			return errors.Join(err, releaseErr)
		}
		for _, count := range []func() error{func() error { return step("checked", true) }, locked} {
			writing.Go(func() {
				for done := 0; done < steps && !t.Failed(); {
					if err := count(); err == nil {
						done++
					} else if _, conflict := errors.AsType[*variables.ConflictError](err); !conflict {
						t.Error(err)
					}
				}
			})
		}
	}
	writing.Wait()
	for _, path := range []string{"checked", "locked"} {
		v, _, err := variables.New(variables.Config{Store: f.store, Sealer: noSealer{}}).Read(t.Context(), ns, path)
		if err != nil || v.Items["k"] != strconv.Itoa(writers*steps) {
			t.Errorf("%s counts to %+v, %v; want %d", path, v, err, writers*steps)
		}
	}
}

// TestAwaitLockEnd: callers that wait are woken when a lock expires, at that moment, by a change with an index. No
// other process is needed.
func TestAwaitLockEnd(t *testing.T) {
	locked(t, func(t *testing.T, f *fixture, boot *string) {
		begun, woken := time.Now(), make(chan string)
		await := func(after uint64) {
			go func() {
				err := f.Await(t.Context(), ns, "", after, func(_, path string) bool { return path == "l" })
				woken <- fmt.Sprint(time.Since(begun), " ", err)
			}()
		}
		id := f.mustAcquire("k", "v")
		before := f.read("l")
		for range 500 {
			await(before.ModifyIndex)
		}
		time.Sleep(10 * time.Second)
		if err := f.renew(id); err != nil { // which they don't learn of
			t.Fatal(err)
		}
		for range 500 {
			if got := <-woken; got != "35s <nil>" {
				t.Fatalf("woken after %s", got)
			}
		}
		after := f.read("l")
		// one of the renewal
		if after.Lock != nil || after.Items["k"] != "v" || after.ModifyIndex != before.ModifyIndex+2 {
			t.Errorf("after the end: %+v, of before %+v", after, before)
		}
		f.wantConflict(f.write(id, "late"), 0, true)

		f.mustAcquire() // one that has ended while nobody waited
		after = f.read("l")
		time.Sleep(25 * time.Second)
		await(after.ModifyIndex)
		if got := <-woken; got != "1m0s <nil>" || f.read("l").ModifyIndex <= after.ModifyIndex {
			t.Errorf("one that had ended: %s, %+v", got, f.read("l"))
		}

		f.mustAcquire() // one of an earlier start of the machine
		*boot = "boot 2"
		await(f.read("l").ModifyIndex)
		if got := <-woken; got != "1m25s <nil>" || f.read("l").Lock != nil {
			t.Errorf("one of an earlier start: %s, %+v", got, f.read("l"))
		}
	})
}

// refusing is a store that refuses a number of writes.
type refusing struct {
	cluster.Store
	tries int
}

func (r *refusing) Commit(ctx context.Context, txn cluster.Txn) (uint64, error) {
	if r.tries--; r.tries >= 0 {
		return 0, cluster.ErrUnavailable
	}
	return r.Store.Commit(ctx, txn)
}

// TestAwaitLockEndOnFullDisk: a caller waits on while the end of a lock can't be written, and pauses between attempts.
func TestAwaitLockEndOnFullDisk(t *testing.T) {
	locked(t, func(t *testing.T, f *fixture, _ *string) {
		f.mustAcquire("k", "v")
		before, begun := f.read("l"), time.Now()
		kept := variables.New(variables.Config{Store: &refusing{f.store, 3}, Sealer: noSealer{}, Now: f.now})
		must.OK(t, kept.Await(t.Context(), ns, "l", before.ModifyIndex, variables.Everything))
		if took := time.Since(begun); took != 55*time.Second || f.read("l").Lock != nil {
			t.Errorf("woken after %v: %+v", took, f.read("l"))
		}
	})
}

// TestAwaitLateRenewal: a renewal that is written just after the lock was found free keeps the lock, which then ends
// later.
func TestAwaitLateRenewal(t *testing.T) {
	locked(t, func(t *testing.T, f *fixture, _ *string) {
		id := f.mustAcquire("k", "v")
		before, begun, store := f.read("l"), time.Now(), &hooked{Store: f.store}
		late := must.Get(json.Marshal(map[string]any{"id": id, "boot": "boot 1", "since_ns": 25 * time.Second}))(t)
		store.before = func() { f.plant("locks/default/l", late) }
		kept := variables.New(variables.Config{Store: store, Sealer: noSealer{}, Now: f.now})
		must.OK(t, kept.Await(t.Context(), ns, "l", before.ModifyIndex, variables.Everything))
		if took := time.Since(begun); took != 50*time.Second || f.read("l").Lock != nil {
			t.Errorf("woken after %v: %+v", took, f.read("l"))
		}
	})
}
