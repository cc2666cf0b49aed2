package claim_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/claim"
	"taskapi/allocrunner/cluster/memory"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

var quiet = slog.New(slog.DiscardHandler)

var name = claim.Name{Namespace: "default", Alloc: "job.group[0]"}

// link is a machine's way to the store, which a test cuts or delays.
type link struct {
	cluster.Store
	full   *atomic.Bool // for all machines: the store takes deletions only
	mu     sync.Mutex
	cut    bool               // calls are not answered
	deaf   bool               // commits are made, and not answered
	frozen chan struct{}      // calls wait until it is closed, as in a stopped process; nil for none
	chance *rand.Rand         // of how long a call and its answer take; nil for no time
	wrote  func(value []byte) // is called for each write of the counter; nil for nobody
	order  *sync.Mutex        // of all links: held during such a write
}

// counter is a key to which each holder writes the index of its claim.
const counter = "counter"

func (l *link) set(how func(l *link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	how(l)
}

// pass waits as a call on the link does. A call that was sent before the process was stopped arrives all the same.
func (l *link) pass(ctx context.Context) (deaf bool, err error) {
	l.mu.Lock()
	if l.chance != nil {
		delay := time.Duration(l.chance.IntN(400)) * time.Millisecond
		l.mu.Unlock()
		time.Sleep(delay)
		l.mu.Lock()
	}
	cut, deaf, frozen := l.cut, l.deaf, l.frozen
	l.mu.Unlock()
	switch {
	case frozen != nil:
		<-frozen
	case cut:
		<-ctx.Done()
		return false, fmt.Errorf("%w: cut off", cluster.ErrUnavailable)
	}
	return deaf, nil
}

func (l *link) Commit(ctx context.Context, txn cluster.Txn) (uint64, error) {
	deaf, err := l.pass(ctx)
	if err != nil {
		return 0, err
	}
	if l.full.Load() && slices.ContainsFunc(txn.Then, func(o cluster.Operation) bool { return !o.Delete }) {
		return 0, cluster.ErrFull
	}
	index, err := l.commit(ctx, txn)
	if deaf {
		return 0, fmt.Errorf("%w: %w", cluster.ErrUnavailable, cluster.ErrUncertain)
	}
	_, _ = l.pass(ctx) // the process may be stopped before it reads the answer
	return index, err
}

// commit tells wrote of the writes in the order in which they are made.
func (l *link) commit(ctx context.Context, txn cluster.Txn) (uint64, error) {
	if l.wrote == nil || txn.Then[0].Key != counter {
		return l.Store.Commit(ctx, txn)
	}
	l.order.Lock()
	defer l.order.Unlock()
	index, err := l.Store.Commit(ctx, txn)
	if err == nil {
		l.wrote(txn.Then[0].Value)
	}
	return index, err
}

func (l *link) List(ctx context.Context, span cluster.Span) (cluster.Page, error) {
	if _, err := l.pass(ctx); err != nil {
		return cluster.Page{}, err
	}
	page, err := l.Store.List(ctx, span)
	_, _ = l.pass(ctx)
	return page, err
}

// machine is one that stands by, holds the claim, and stands by again when it has lost it.
type machine struct {
	*link
	id    string
	began time.Time

	mu   sync.Mutex
	held *claim.Claim
	took int
}

func (m *machine) now() time.Duration { return time.Since(m.began) }

func (m *machine) config() claim.Config {
	return claim.Config{Store: m.link, Name: name, Holder: claim.Holder{AllocID: m.id, NodeName: m.id}, Now: m.now}
}

// live runs the machine until ctx ends.
func (m *machine) live(ctx context.Context) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	for {
		c, _, err := claim.Await(ctx, m.config(), claim.Waiting{})
		if err != nil {
			return
		}
		m.mu.Lock()
		m.held, m.took = c, m.took+1
		m.mu.Unlock()
		working, stop := context.WithCancel(ctx)
		tasks.Go(func() { m.work(working, c) })
		c.Run(ctx, quiet)
		stop()
	}
}

// work writes to the counter, as a task does that does not know whether its machine still holds the claim.
func (m *machine) work(ctx context.Context, c *claim.Claim) {
	for ctx.Err() == nil {
		_, _ = c.Fenced().Commit(ctx, cluster.Txn{Then: []cluster.Operation{
			{Key: counter, Value: fmt.Append(nil, c.Saved().Index)}}})
		time.Sleep(701 * time.Millisecond)
	}
}

// runs reports whether the machine may run the allocation now.
func (m *machine) runs() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held == nil {
		return false
	}
	end, _ := m.held.Until()
	return end > m.now()
}

// cluster of machines that share a store.
func machines(n int) []*machine {
	store, full := memory.New(), new(atomic.Bool)
	var all []*machine
	for i := range n {
		l := &link{Store: store.Open(), full: full}
		all = append(all, &machine{link: l, id: fmt.Sprint("m", i), began: time.Now()})
	}
	return all
}

// TestAtMostOne: whatever happens to machines and their network, no two may run the allocation at one time, and it is
// run again soon after all is well.
func TestAtMostOne(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			chance := rand.New(rand.NewPCG(seed, 0))
			all := machines(3)
			var order sync.Mutex // guards the next two
			var latest, writes uint64
			wrote := func(value []byte) {
				writes++
				index, err := strconv.ParseUint(string(value), 10, 64)
				if err != nil || index < latest {
					t.Errorf("seed %d: holder %s wrote after holder %d", seed, value, latest)
				}
				latest = index
			}
			ctx, cancel := context.WithCancel(t.Context())
			var living sync.WaitGroup
			for i, m := range all {
				m.wrote, m.order = wrote, &order
				m.chance = rand.New(rand.NewPCG(seed, uint64(i)))
				living.Go(func() { m.live(ctx) })
			}
			check := func() {
				running := 0
				for _, m := range all {
					if m.runs() {
						running++
					}
				}
				if running > 1 {
					t.Errorf("seed %d: %d machines run the allocation at %v", seed, running, all[0].now())
				}
			}
			for range 300 {
				all[0].full.Store(seed%2 == 1 && chance.IntN(2) == 0)
				m := all[chance.IntN(len(all))]
				m.set(func(l *link) {
					switch chance.IntN(6) {
					case 0:
						l.cut = true
					case 1:
						l.deaf = true
					case 2:
						if l.frozen == nil {
							l.frozen = make(chan struct{})
						}
					default:
						heal(l)
					}
				})
				for range chance.IntN(100) {
					time.Sleep(97 * time.Millisecond)
					check()
				}
			}
			all[0].full.Store(false)
			for _, m := range all {
				m.set(heal)
			}
			time.Sleep(claim.TTL + 5*time.Second)
			one, took := 0, 0
			for _, m := range all {
				if m.runs() {
					one++
				}
				took += m.took
			}
			order.Lock()
			if one != 1 || took < 3 || writes < 100 {
				t.Errorf("seed %d: %d machines run the allocation in the end, after %d takeovers and %d writes", seed, one, took,
					writes)
			}
			order.Unlock()
			cancel()
			living.Wait()
		})
	}
}

func heal(l *link) {
	l.cut, l.deaf = false, false
	if l.frozen != nil {
		close(l.frozen)
		l.frozen = nil
	}
}

// TestTakeover: a claim that nobody has had is taken after TTL, as is that of a machine that is gone. A claim that was
// released is taken at once.
func TestTakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := machines(2)
		began := time.Now()
		first, before, err := claim.Await(t.Context(), all[0].config(), claim.Waiting{})
		if waited := time.Since(began); err != nil || before.AllocID != "" || waited < claim.TTL {
			t.Fatalf("%+v after %v: %v", before, waited, err)
		}
		began = time.Now()
		shown := 0
		waits := func(h claim.Holder) {
			shown++
			if h.NodeName != "m0" {
				t.Errorf("waits for %+v", h)
			}
		}
		second, before, err := claim.Await(t.Context(), all[1].config(), claim.Waiting{Holder: waits})
		if waited := time.Since(began); err != nil || before.AllocID != "m0" || waited < claim.TTL || shown != 1 {
			t.Fatalf("%+v after %v, shown %d times: %v", before, waited, shown, err)
		}
		same.Error(t, nil, first.Release(t.Context(), false), "release of a claim that is lost")
		must.OK(t, second.Release(t.Context(), false))
		began = time.Now()
		third, _, err := claim.Await(t.Context(), all[0].config(), claim.Waiting{})
		if waited := time.Since(began); err != nil || waited > 0 {
			t.Fatalf("after %v: %v", waited, err)
		}
		ended := make(chan error, 1)
		go func() {
			_, _, err := claim.Await(t.Context(), all[1].config(), claim.Waiting{})
			ended <- err
		}()
		synctest.Wait()
		must.OK(t, third.Release(t.Context(), true))
		same.Error(t, claim.ErrComplete, <-ended, "a standby of a complete allocation")
		if _, _, err := claim.Await(t.Context(), all[1].config(), claim.Waiting{}); err != nil {
			t.Errorf("a later run of a complete allocation: %v", err)
		}
	})
}

// TestCompleteMeanwhile: a machine that waits for a claim that nobody has had does not run an allocation that another
// machine has run to its end meanwhile, even if it has not seen that machine.
func TestCompleteMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := machines(2)
		ended := make(chan error, 1)
		go func() {
			_, _, err := claim.Await(t.Context(), all[1].config(), claim.Waiting{})
			ended <- err
		}()
		synctest.Wait()
		all[1].set(func(l *link) { l.frozen = make(chan struct{}) })
		first, _, err := claim.Await(t.Context(), all[0].config(), claim.Waiting{})
		must.OK(t, err)
		must.OK(t, first.Release(t.Context(), true))
		all[1].set(heal)
		same.Error(t, claim.ErrComplete, <-ended, "the second machine")
	})
}

// TestFullStore: the machine that holds the claim keeps it while the store is full. If that machine dies meanwhile,
// another takes the claim when the store has room again, and has seen no renewal for TTL.
func TestFullStore(t *testing.T) {
	tests := map[string]struct {
		dies, wait time.Duration // after the store is full; dies is 0 for a machine that lives
		late       bool          // the second machine begins to stand by while the store is full
	}{
		"the holder lives":                             {wait: time.Hour},
		"the holder lives, and a machine comes":        {wait: time.Hour, late: true},
		"the holder dies long before there is room":    {dies: time.Minute, wait: time.Hour},
		"the holder dies shortly before there is room": {dies: time.Minute, wait: 61 * time.Second},
		"the holder dies, and a machine comes":         {dies: time.Minute, wait: time.Hour, late: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := machines(2)
				ctx, cancel := context.WithCancel(t.Context())
				var living sync.WaitGroup
				begin := func(m *machine) {
					living.Go(func() { m.live(ctx) })
					time.Sleep(claim.TTL + time.Second)
				}
				begin(all[0])
				if !test.late {
					begin(all[1])
				}
				all[0].full.Store(true)
				if test.late {
					begin(all[1])
				}
				began, room := time.Now(), time.Time{}
				for elapsed := time.Duration(0); elapsed < test.wait+2*claim.TTL; elapsed = time.Since(began) {
					if test.dies > 0 && elapsed > test.dies {
						all[0].set(func(l *link) { l.cut = true })
					}
					if elapsed > test.wait && room.IsZero() {
						room = time.Now()
						all[0].full.Store(false)
					}
					time.Sleep(100 * time.Millisecond)
					one, other := all[0].runs(), all[1].runs()
					if one && other || test.dies == 0 && !one {
						t.Fatalf("at %v the first machine runs the allocation: %v, and the second: %v", elapsed, one, other)
					}
					if other && (room.IsZero() || time.Since(room) < claim.TTL) {
						t.Fatalf("at %v the second machine has the claim; there was room at %v", elapsed, room.Sub(began))
					}
				}
				if all[1].runs() == (test.dies == 0) {
					t.Error("the wrong machine runs the allocation in the end")
				}
				all[0].set(heal)
				cancel()
				living.Wait()
			})
		})
	}
}

// TestTamperedClaim: somebody without the machines' key deletes a claim, or restores the values by which it was
// released before. No machine that stands by, or begins to, runs the allocation before the holder has learned of that.
func TestTamperedClaim(t *testing.T) {
	const prefix = "claims/default/job.group[0]/"
	remove := cluster.Operation{Key: prefix + "renewal", Delete: true}
	tests := map[string]func(holder, renewal []byte) []cluster.Operation{
		"the holder is deleted": func(_, _ []byte) []cluster.Operation {
			return []cluster.Operation{{Key: prefix + "holder", Delete: true}}
		},
		"all is deleted": func(_, _ []byte) []cluster.Operation {
			return []cluster.Operation{{Key: prefix + "holder", Delete: true}, remove}
		},
		"half of an earlier release is restored": func(holder, _ []byte) []cluster.Operation {
			return []cluster.Operation{{Key: prefix + "holder", Value: holder}, remove}
		},
		"an earlier release is restored": func(holder, renewal []byte) []cluster.Operation {
			return []cluster.Operation{{Key: prefix + "holder", Value: holder}, {Key: prefix + "renewal", Value: renewal}}
		},
	}
	type when int
	const (
		standsBy when = iota // the second machine has seen the claim
		begins               // it has not
		missed               // it has seen the claim that was released, and not the next one
	)
	for name, operations := range tests {
		for what, second := range map[string]when{"stands by": standsBy, "begins": begins, "was stopped": missed} {
			t.Run(name+", the second machine "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					all := machines(2)
					ctx, cancel := context.WithCancel(t.Context())
					var living sync.WaitGroup
					live := func(m *machine) {
						living.Go(func() { m.live(ctx) })
						time.Sleep(time.Second)
					}
					early, _, err := claim.Await(ctx, all[0].config(), claim.Waiting{})
					must.OK(t, err)
					if second == missed {
						live(all[1])
						all[1].set(func(l *link) { l.frozen = make(chan struct{}) })
					}
					must.OK(t, early.Release(ctx, false))
					holder, _, err := all[0].Get(ctx, prefix+"holder")
					renewal, _, getErr := all[0].Get(ctx, prefix+"renewal")
					must.OK(t, errors.Join(err, getErr))
					live(all[0])
					if second == standsBy {
						live(all[1])
					}
					time.Sleep(4 * time.Second)
					if !all[0].runs() || all[1].runs() {
						t.Error("the first machine does not hold the claim")
					}
					tampered := cluster.Txn{Then: operations(holder.Value, renewal.Value)}
					must.Get(all[0].Store.Commit(ctx, tampered))(t)
					switch second {
					case begins:
						living.Go(func() { all[1].live(ctx) })
					case missed:
						all[1].set(heal)
					}
					for range int(3 * claim.TTL / time.Second * 10) {
						time.Sleep(100 * time.Millisecond)
						if all[0].runs() && all[1].runs() {
							t.Errorf("both machines run the allocation at %v", all[0].now())
							break
						}
					}
					if all[0].runs() == all[1].runs() {
						t.Error("no machine runs the allocation in the end")
					}
					cancel()
					living.Wait()
				})
			})
		}
	}
}

// TestFence: a process whose claim was taken writes nothing, learns of it, and its tenure ends.
func TestFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := machines(2)
		first, _, err := claim.Await(t.Context(), all[0].config(), claim.Waiting{})
		must.OK(t, err)
		put := func(s cluster.Store, value string) error {
			_, err := s.Commit(t.Context(), cluster.Txn{Then: []cluster.Operation{{Key: "k", Value: []byte(value)}}})
			return err
		}
		must.OK(t, put(first.Fenced(), "first"))
		second, _, err := claim.Await(t.Context(), all[1].config(), claim.Waiting{})
		must.OK(t, err)
		must.OK(t, put(second.Fenced(), "second"))
		if err := put(first.Fenced(), "first"); !errors.Is(err, claim.ErrLost) || !errors.Is(err, cluster.ErrUnavailable) {
			t.Errorf("a write after the loss: %v", err)
		}
		<-first.Lost()
		if end, _ := first.Until(); end >= 0 {
			t.Errorf("a lost claim lasts until %v", end)
		}
		conflict := cluster.Txn{If: []cluster.Condition{{Key: "k"}}}
		if _, err := second.Fenced().Commit(t.Context(), conflict); !cluster.IsConflict(err) {
			t.Errorf("a conflict of the caller's own: %v", err)
		}
		if e, _, err := all[0].Get(t.Context(), "k"); err != nil || string(e.Value) != "second" {
			t.Errorf("%q, %v", e.Value, err)
		}
	})
}

// TestResume: another process of the machine holds the claim on, unless it was lost meanwhile.
func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := machines(2)
		first, _, err := claim.Await(t.Context(), all[0].config(), claim.Waiting{})
		must.OK(t, err)
		time.Sleep(8 * time.Second)
		again := claim.Resume(all[0].link, first.Saved())
		end, changed := again.Until()
		same.As(t, 0, end, "its end before it is renewed")
		ctx, cancel := context.WithCancel(t.Context())
		go again.Run(ctx, quiet)
		<-changed
		if end, _ := again.Until(); end <= 0 {
			t.Errorf("lasts until %v after it is renewed", end)
		}
		cancel()
		if _, _, err := claim.Await(t.Context(), all[1].config(), claim.Waiting{}); err != nil {
			t.Fatal(err)
		}
		late := claim.Resume(all[0].link, first.Saved())
		late.Run(t.Context(), quiet)
		<-late.Lost()
	})
}

// TestAgain: a claim that was copied to another machine is taken again there only when the first machine, which has the
// same claim, renews it no more. Then the first one has lost it, even if it comes back.
func TestAgain(t *testing.T) {
	start := func(t *testing.T) (all []*machine, first, copied *claim.Claim, kept *claim.Saved) {
		all, kept = machines(2), new(claim.Saved)
		first, _, err := claim.Await(t.Context(), all[0].config(), claim.Waiting{})
		must.OK(t, err)
		copied = claim.Again(all[1].link, first.Saved(), func(s claim.Saved) error { *kept = s; return nil })
		if _, err := copied.Fenced().Commit(t.Context(), cluster.Txn{
			Then: []cluster.Operation{{Key: "k"}}}); !errors.Is(err, cluster.ErrUnavailable) || errors.Is(err, claim.ErrLost) {
			t.Errorf("a write with a claim that another machine may have: %v", err)
		}
		return all, first, copied, kept
	}
	t.Run("renewed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, first, copied, kept := start(t)
			ctx, cancel := context.WithCancel(t.Context())
			go first.Run(ctx, quiet)
			copied.Run(ctx, quiet)
			<-copied.Lost()
			if err := copied.Release(ctx, false); err != nil || kept.Index != 0 {
				t.Error(err, kept)
			}
			time.Sleep(claim.TTL)
			if end, _ := first.Until(); end <= 0 {
				t.Errorf("the first machine has its claim until %v", end)
			}
			cancel()
			synctest.Wait()
		})
	})
	t.Run("renewed while the store is full", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			all, first, copied, kept := start(t)
			all[0].full.Store(true)
			ctx, cancel := context.WithCancel(t.Context())
			go first.Run(ctx, quiet)
			time.Sleep(claim.TTL)
			go copied.Run(ctx, quiet)
			time.Sleep(2 * claim.TTL)
			all[0].full.Store(false)
			<-copied.Lost()
			if end, _ := first.Until(); end <= all[0].now() || kept.Index != 0 {
				t.Errorf("at %v the first machine has its claim until %v; kept %+v", all[0].now(), end, kept)
			}
			cancel()
			synctest.Wait()
		})
	})
	t.Run("not renewed while the store is full", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			all, first, copied, _ := start(t)
			all[0].full.Store(true)
			ctx, cancel := context.WithCancel(t.Context())
			dying, dies := context.WithTimeout(ctx, claim.TTL)
			defer dies()
			first.Run(dying, quiet)
			go copied.Run(ctx, quiet)
			time.Sleep(2 * claim.TTL)
			if end, _ := copied.Until(); end != 0 {
				t.Errorf("the copy has the claim until %v while the store is full", end)
			}
			all[0].full.Store(false)
			time.Sleep(claim.TTL + 5*time.Second)
			if end, _ := copied.Until(); end <= all[1].now() {
				t.Errorf("at %v the copy has the claim until %v", all[1].now(), end)
			}
			cancel()
			synctest.Wait()
		})
	})
	t.Run("released before it is known", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, first, copied, _ := start(t)
			must.OK(t, copied.Release(t.Context(), false))
			must.OK(t, first.Release(t.Context(), false))
		})
	})
	t.Run("not renewed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			all, first, copied, kept := start(t)
			all[0].set(func(l *link) { l.cut = true })
			ctx, cancel := context.WithCancel(t.Context())
			go first.Run(ctx, quiet)
			go copied.Run(ctx, quiet)
			for end := time.Duration(0); end <= 0; {
				_, changed := copied.Until()
				<-changed
				end, _ = copied.Until()
			}
			if until, _ := first.Until(); until > all[0].now() {
				t.Errorf("at %v both have the claim, the first until %v", all[0].now(), until)
			}
			if kept.Index == first.Saved().Index || kept.Index != copied.Saved().Index {
				t.Errorf("kept %+v of %+v", kept, copied.Saved())
			}
			all[0].set(func(l *link) { l.cut = false })
			<-first.Lost()
			cancel()
			synctest.Wait()
		})
	})
}

// TestALateRenewalIsLogged: when the store is away for longer than the claim is held, the log says once why tasks die.
// It says once that the store is full.
func TestALateRenewalIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		l := &link{Store: memory.New(), full: new(atomic.Bool)}
		c, _, err := claim.Await(t.Context(), claim.Config{Store: l, Name: name,
			Holder: claim.Holder{AllocID: "a", NodeName: "a"},
			Now:    func() time.Duration { return time.Since(began) + time.Second }}, claim.Waiting{})
		must.OK(t, err)
		var log bytes.Buffer
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.Run(ctx, slog.New(slog.NewTextHandler(&log, nil)))
		}()
		for range 2 {
			synctest.Wait()
			l.set(func(l *link) { l.cut = true })
			time.Sleep(2 * claim.Held)
			l.set(func(l *link) { l.cut = false })
			time.Sleep(claim.Held)
		}
		l.full.Store(true)
		time.Sleep(2 * claim.Held)
		end()
		<-ended
		if n := strings.Count(log.String(), "the store is full: "); n != 1 {
			t.Errorf("%d times the log says that the store is full:\n%s", n, &log)
		}
		if n := strings.Count(log.String(), "the tasks are killed: "); n != 2 {
			t.Errorf("%d of 2 times the log says that the tasks are killed:\n%s", n, &log)
		}
	})
}
