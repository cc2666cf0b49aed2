package stores

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
)

// testSnapshots: a writer puts the same value into several entries at once. No list has two values.
func testSnapshots(t *testing.T, open opener) {
	a, b := open(), open()
	names := []string{"s/1", "s/2", "s/3", "s/4"}
	done := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		defer close(done)
		for n := range 100 {
			var ops []cluster.Operation
			for _, name := range names {
				ops = append(ops, clustertest.Set(name, fmt.Sprint(n)))
			}
			if _, err := a.Commit(t.Context(), cluster.Txn{Then: ops}); err != nil {
				t.Error(err)
			}
		}
	})
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		page := clustertest.List(t, b, cluster.Span{Prefix: "s/"})
		for _, e := range page.Entries {
			if string(e.Value) != string(page.Entries[0].Value) || e.ModifyIndex != page.Entries[0].ModifyIndex ||
				e.ModifyIndex > page.Index {
				t.Fatalf("at %d: %s beside %s", page.Index, clustertest.Describe(page.Entries[0]),
					clustertest.Describe(e))
			}
		}
	}
	all.Wait()
}

// testModel compares the store, opened several times, with a map, over random transactions.
func testModel(t *testing.T, open opener) {
	stores := []cluster.Store{open(), open()}
	var run int
	rapid.Check(t, func(r *rapid.T) {
		run++
		root := fmt.Sprintf("run%d/", run)
		model := map[string]cluster.Entry{}
		name := rapid.Custom(func(r *rapid.T) string {
			return root + rapid.SampledFrom([]string{"a", "a/1", "a/2", "b", "c"}).Draw(r, "key")
		})
		for range rapid.IntRange(1, 8).Draw(r, "steps") {
			s := rapid.SampledFrom(stores).Draw(r, "store")
			txn := drawTxn(r, name, model)
			before := index(t, s)
			got, err := s.Commit(t.Context(), txn)
			conflict, lost := errors.AsType[*cluster.ConflictError](err)
			if err != nil && !lost {
				r.Fatal(err)
			}
			if want := modelConflict(model, txn); want != nil || lost {
				if want == nil || !lost || clustertest.Describe(conflict.Entry) != clustertest.Describe(*want) {
					r.Fatalf("got %v, want a conflict with %v", err, want)
				}
				continue
			}
			next := modelApply(model, txn, before+1)
			changed := !maps.EqualFunc(model, next, func(a, b cluster.Entry) bool {
				return clustertest.Describe(a) == clustertest.Describe(b)
			})
			if got != before+1 && changed || got != before && !changed {
				r.Fatalf("index %d after %d; changed: %v", got, before, changed)
			}
			model = next
			for _, s := range stores {
				compare(r, t, s, root, model)
			}
		}
	})
}

func drawTxn(r *rapid.T, name *rapid.Generator[string], model map[string]cluster.Entry) (txn cluster.Txn) {
	for range rapid.IntRange(0, 2).Draw(r, "conditions") {
		key := name.Draw(r, "of")
		c := cluster.Condition{Key: key, ModifyIndex: model[key].ModifyIndex}
		if rapid.IntRange(0, 5).Draw(r, "wrong") == 0 {
			c.ModifyIndex++
		}
		txn.If = append(txn.If, c)
	}
	for range rapid.IntRange(0, 4).Draw(r, "operations") {
		op := cluster.Operation{Key: name.Draw(r, "key"), Delete: rapid.Bool().Draw(r, "delete")}
		if !op.Delete {
			op.Value = rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(r, "value")
		}
		txn.Then = append(txn.Then, op)
	}
	return txn
}

func modelConflict(model map[string]cluster.Entry, txn cluster.Txn) *cluster.Entry {
	for _, c := range txn.If {
		if e := model[c.Key]; e.ModifyIndex != c.ModifyIndex {
			e.Key = c.Key
			return &e
		}
	}
	return nil
}

func modelApply(model map[string]cluster.Entry, txn cluster.Txn, index uint64) map[string]cluster.Entry {
	next := maps.Clone(model)
	for _, op := range txn.Then {
		before, was := model[op.Key]
		switch {
		case op.Delete:
			delete(next, op.Key)
		case was:
			next[op.Key] = cluster.Entry{Key: op.Key, Value: op.Value, CreateIndex: before.CreateIndex,
				ModifyIndex: index}
		default:
			next[op.Key] = cluster.Entry{Key: op.Key, Value: op.Value, CreateIndex: index, ModifyIndex: index}
		}
	}
	return next
}

func compare(r *rapid.T, t *testing.T, s cluster.Store, root string, model map[string]cluster.Entry) {
	var got, want []string
	for _, e := range clustertest.List(t, s, cluster.Span{Prefix: root}).Entries {
		got = append(got, clustertest.Describe(e))
		if single := clustertest.Get(t, s, e.Key); clustertest.Describe(single) != clustertest.Describe(e) {
			r.Fatalf("get %s, list %s", clustertest.Describe(single), clustertest.Describe(e))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(model)) {
		want = append(want, clustertest.Describe(model[key]))
	}
	if !slices.Equal(got, want) {
		r.Fatalf("got %q, want %q", got, want)
	}
}

// testLinearizable: several clients work at the same time, each with its own opening.
func testLinearizable(t *testing.T, open opener) {
	var mu sync.Mutex
	var events []event
	var all sync.WaitGroup
	for id := range 6 {
		s := open()
		all.Go(func() {
			work(t.Context(), s, id, 100, func(e event) {
				mu.Lock()
				defer mu.Unlock()
				if e.Err != "" {
					t.Error(e.Err)
				}
				if e.Return != 0 {
					events = append(events, e)
				}
			})
		})
	}
	all.Wait()
	checkLinearizable(t, events)
}
