package stores

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// watched is what a Watch has returned.
type watched struct {
	cluster.Changes
	err error
}

// watch begins a Watch.
func watch(t testing.TB, s cluster.Store, prefix string, after uint64) <-chan watched {
	got := make(chan watched, 1)
	go func() {
		changes, err := s.Watch(t.Context(), prefix, after)
		got <- watched{changes, err}
	}()
	return got
}

func wantChanges(t testing.TB, got watched, index uint64, keys ...string) {
	t.Helper()
	if got.err != nil || got.Gap || got.Index < index || !slices.Equal(got.Keys, keys) {
		t.Errorf("got %+v, want %q at %d", got, keys, index)
	}
}

func testWatch(t *testing.T, open opener) {
	a, b := open(), open()
	i := index(t, a)
	one := watch(t, b, "a/", i)
	other := clustertest.Put(t, a, "b/1", "v")
	j := clustertest.Put(t, a, "a/1", "v")
	wantChanges(t, <-one, j, "a/1")
	wantChanges(t, <-watch(t, a, "", other), j, "a/1")
	wantChanges(t, <-watch(t, b, "a", i), j, "a/1")

	two := watch(t, b, "a/", j)
	// which wakes nobody
	clustertest.Commit(t, a, clustertest.Txn(clustertest.Delete("none"), clustertest.Delete("a/none")))
	k := clustertest.Commit(t, a, clustertest.Txn(clustertest.Delete("a/1"), clustertest.Set("b/1", "w")))
	wantChanges(t, <-two, k, "a/1")

	clustertest.Put(t, b, "a/2", "v")
	clustertest.Put(t, b, "a/3", "v")
	l := clustertest.Put(t, b, "a/2", "w")
	wantChanges(t, <-watch(t, a, "a/", k), l, "a/3", "a/2")
	wantChanges(t, <-watch(t, a, "a/2", i), l, "a/2")
	wantChanges(t, <-watch(t, open(), "", l-1), l, "a/2")
}

// testWatchMany: many watches wait for changes that come at the same time, from several openings of the store. Each
// sees every change of its prefix.
func testWatchMany(t *testing.T, open opener) {
	const watchers, changes = 20, 20
	a, b := open(), open()
	var all sync.WaitGroup
	begin := index(t, a)
	for n := range watchers {
		all.Go(func() {
			prefix := fmt.Sprintf("w/%02d/", n)
			seen := map[string]bool{}
			for after := begin; len(seen) < changes; {
				got, err := b.Watch(t.Context(), prefix, after)
				if err != nil || got.Gap || got.Index <= after || len(got.Keys) == 0 {
					t.Errorf("%s after %d: %+v, %v", prefix, after, got, err)
					return
				}
				for _, key := range got.Keys {
					seen[key] = true
				}
				after = got.Index
			}
		})
	}
	writers := []cluster.Store{a, b, open()}
	for n := range changes {
		all.Go(func() {
			for w := range watchers {
				key := fmt.Sprintf("w/%02d/%d", w, n)
				if _, err := writers[n%len(writers)].Commit(t.Context(),
					clustertest.Txn(clustertest.Set(key, "v"))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// testGap: a caller that comes back after many changes gets all of them, or a gap.
func testGap(t *testing.T, open opener) {
	a := open()
	begin := index(t, a)
	const most = 8 << 10 // twice as many as a store of this machine remembers
	for n := 0; n < most; n += cluster.MaxOperations {
		var ops []cluster.Operation
		for i := range cluster.MaxOperations {
			ops = append(ops, clustertest.Set(fmt.Sprintf("k/%03d", i), fmt.Sprint(n)))
		}
		clustertest.Commit(t, a, cluster.Txn{Then: ops})
	}
	clustertest.Put(t, a, "early", "v")
	for _, s := range []cluster.Store{a, open()} {
		got := <-watch(t, s, "k/", begin)
		if got.err != nil || !got.Gap && len(got.Keys) != cluster.MaxOperations || got.Index != index(t, a) {
			t.Errorf("got %+v", got)
		}
		wantChanges(t, <-watch(t, s, "", index(t, a)-1), index(t, a), "early")
	}
}

func testLeases(t *testing.T, open opener) {
	a, b := open(), open()
	_, err := a.Commit(t.Context(), clustertest.Txn(clustertest.Set("before", "v"),
		clustertest.Leased("k", "v", "nobody")))
	wantErr(t, "a lease that nobody holds", err, cluster.ErrLeaseEnded)
	wantEntry(t, b, "before", "", 0, 0)

	lease := clustertest.Hold(t, a, "alloc")
	if lease.Owner() != "alloc" {
		t.Errorf("the owner is %q", lease.Owner())
	}
	i := clustertest.Commit(t, a, clustertest.Txn(clustertest.Leased("s/1", "v", "alloc"),
		clustertest.Leased("s/2", "v", "alloc"), clustertest.Set("s/3", "v"),
		clustertest.Leased("s/4", "v", "alloc")))
	if e := clustertest.Get(t, b, "s/1"); e.Lease != "alloc" {
		t.Errorf("got %s", clustertest.Describe(e))
	}
	second := clustertest.Hold(t, b, "alloc") // by another process, which writes with it too
	clustertest.Commit(t, b, clustertest.Txn(clustertest.Set("s/4", "its own now")))
	clustertest.Commit(t, b, clustertest.Txn(clustertest.Leased("s/5", "v", "alloc")))
	if got := keys(clustertest.List(t, a, cluster.Span{}).Entries); !slices.Equal(got,
		[]string{"s/1", "s/2", "s/3", "s/4", "s/5"}) {
		t.Errorf("got %q: a lease's own entries are nobody's", got)
	}
	i = max(i, index(t, a))
	lease.Close()
	lease.Close()
	wantEntry(t, b, "s/2", "v", clustertest.Get(t, a, "s/2").CreateIndex, clustertest.Get(t, a, "s/2").ModifyIndex)
	if clustertest.Get(t, a, "s/2").ModifyIndex == 0 {
		t.Error("the lease ended with the first of its two holders")
	}

	gone := watch(t, a, "s/", i)
	second.Close()
	for _, s := range []cluster.Store{a, b, open()} {
		for _, key := range []string{"s/1", "s/2", "s/5"} {
			wantEntry(t, s, key, "", 0, 0)
		}
		if got := keys(clustertest.List(t, s, cluster.Span{Prefix: "s"}).Entries); !slices.Equal(got,
			[]string{"s/3", "s/4"}) {
			t.Errorf("after the end of the lease: %q", got)
		}
	}
	got := <-gone
	slices.Sort(got.Keys)
	wantChanges(t, got, i+1, "s/1", "s/2", "s/5")
	_, err = a.Commit(t.Context(), clustertest.Txn(clustertest.Leased("s/1", "v", "alloc")))
	wantErr(t, "a lease that has ended", err, cluster.ErrLeaseEnded)
}

// testLeaseAgain: the next lease of an owner does not bring back the entries of the one before, and no condition sees
// them.
func testLeaseAgain(t *testing.T, open opener) {
	a, b := open(), open()
	for round := range 5 {
		lease := clustertest.Hold(t, a, "alloc")
		wantEntry(t, a, "old", "", 0, 0)
		i := clustertest.Commit(t, a, cluster.Txn{If: []cluster.Condition{{Key: "k"}}, Then: []cluster.Operation{
			clustertest.Leased("k", fmt.Sprint(round), "alloc"), clustertest.Leased("old", "v", "alloc")}})
		wantEntry(t, b, "k", fmt.Sprint(round), i, i)
		lease.Close()
		if round%2 == 0 {
			clustertest.Put(t, b, "k", "free", cluster.Condition{Key: "k"})
			clustertest.Hold(t, b, "alloc").Close()
			clustertest.Commit(t, b, clustertest.Txn(clustertest.Delete("k")))
		}
	}
	clustertest.Hold(t, b, "alloc")
	if got := keys(clustertest.List(t, a, cluster.Span{}).Entries); len(got) > 0 {
		t.Errorf("got %q", got)
	}
}

// testLeaseOutlives: a lease lives on when its holder's store is closed.
func testLeaseOutlives(t *testing.T, open opener) {
	a, b := open(), open()
	lease := clustertest.Hold(t, a, "alloc")
	i := clustertest.Commit(t, a, clustertest.Txn(clustertest.Leased("k", "v", "alloc")))
	must.OK(t, a.Close())
	wantEntry(t, b, "k", "v", i, i)
	gone := watch(t, b, "k", i)
	lease.Close()
	wantEntry(t, b, "k", "", 0, 0)
	wantChanges(t, <-gone, i+1, "k")
	same.Fails(t, same.Err(a.Hold(context.Background(), "alloc")), "a closed store has given a lease")
}

// testFeed: a feed of the heads of values has what other processes change while somebody reads, and, for the next
// reader, what they changed meanwhile.
func testFeed(t *testing.T, open opener) {
	a, b := open(), open()
	long := strings.Repeat("v", 1<<16)
	clustertest.Put(t, a, "k/before", "0"+long)
	feed := cluster.NewFeed(t.Context(), b, cluster.FeedConfig[string]{
		Prefix: "k/", Lazy: true, Head: 2, Keep: func(value []byte) []byte { return value[:1:1] },
		Decode: func(e cluster.Entry) string { return fmt.Sprintf("%s=%s", e.Key, e.Value) },
	})
	next := uint64(0)
	want := func(gone bool, want string) {
		t.Helper()
		changes, after, more := feed.Since(next)
		for len(changes) == 0 {
			<-more
			changes, after, more = feed.Since(next)
		}
		if next = after; len(changes) != 1 || changes[0].Value() != want || changes[0].Gone != gone {
			t.Errorf("%d changes, the first %q, gone: %t; want %q", len(changes), changes[0].Value(), changes[0].Gone, want)
		}
	}
	done := feed.Read(t.Context())
	_, next, _ = feed.Since(math.MaxUint64)
	clustertest.Put(t, a, "k/1", "1"+long)
	want(false, "k/1=1")
	clustertest.Put(t, a, "other", long)
	clustertest.Put(t, a, "k/1", "2"+long)
	want(false, "k/1=2")
	clustertest.Commit(t, b, clustertest.Txn(clustertest.Delete("k/before")))
	want(true, "k/before=0")
	done()
	clustertest.Put(t, a, "k/2", "3"+long)
	done = feed.Read(t.Context())
	want(false, "k/2=3")
	done()
}
