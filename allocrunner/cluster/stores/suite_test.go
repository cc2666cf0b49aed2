package stores

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/disk"
	"taskapi/allocrunner/cluster/etcd/etcdtest"
	"taskapi/allocrunner/cluster/memory"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// Kind names a kind of store.
type Kind string

const (
	Disk   Kind = "disk"
	Memory Kind = "memory" // for programs that need no files: no place of a machine has it
	// etcdKind stands for the store in etcd, of which each test has a server of its own: a store whose revision other
	// writers change has gaps between its indexes.
	etcdKind Kind = "etcd"
)

// kinds are those that need no server.
var kinds = []Kind{Disk, Memory}

// Open opens a store that keeps its files, if it has any, in a directory.
func Open(kind Kind, dir string) cluster.Store {
	if kind == Memory {
		return memory.New()
	}
	return disk.New(dir)
}

func TestMain(m *testing.M) {
	if os.Getenv(clientVariable) != "" {
		client()
		unix.Exit(0) // os.Exit would let the race detector sleep for a second
	}
	goleak.VerifyTestMain(m)
}

// opener opens the same store once more, as another process does. The end of the test closes what it returns.
type opener func() cluster.Store

// place returns the opener of an empty store of a kind.
func place(t testing.TB, kind Kind) opener {
	if kind == etcdKind {
		nodes := etcdtest.Start(t, 1)
		return func() cluster.Store {
			s := etcdtest.Open(nodes...)
			t.Cleanup(func() { s.Close() })
			return s
		}
	}
	dir := filepath.Join(t.TempDir(), "cluster")
	first := Open(kind, dir)
	return func() cluster.Store {
		s := Open(kind, dir)
		if shared, ok := first.(*memory.Store); ok { // which is in no place where another could find it
			s = shared.Open()
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
}

// TestStores: each kind of store keeps what cluster.Store promises.
func TestStores(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) { testStore(t, kind) })
	}
	t.Run("etcd", func(t *testing.T) {
		etcdtest.Path(t)
		testStore(t, etcdKind)
	})
}

func testStore(t *testing.T, kind Kind) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, opener)
	}{
		{"entries", testEntries},
		{"list", testList},
		{"bounds", testBounds},
		{"full", testFull},
		{"values are not shared with the caller", testOwnValues},
		{"watch", testWatch},
		{"watch many", testWatchMany},
		{"watch after too many changes", testGap},
		{"feed", testFeed},
		{"closed", testClosed},
		{"contexts", testContexts},
		{"leases", testLeases},
		{"a lease begins again", testLeaseAgain},
		{"a lease outlives the store", testLeaseOutlives},
		{"snapshots", testSnapshots},
		{"model", testModel},
		{"linearizable", testLinearizable},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.name == "full" && kind == etcdKind {
				t.Skip("etcd has a quota of its own")
			}
			t.Parallel()
			test.run(t, place(t, kind))
		})
	}
}

// wantEntry requires an entry's value and indexes.
func wantEntry(t testing.TB, s cluster.Store, key, value string, create, modify uint64) {
	t.Helper()
	if e := clustertest.Get(t, s, key); string(e.Value) != value || e.CreateIndex != create || e.ModifyIndex != modify {
		t.Errorf("got %s, want %q, %d, %d", clustertest.Describe(e), value, create, modify)
	}
}

func wantErr(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// index returns the index of a store.
func index(t testing.TB, s cluster.Store) uint64 {
	t.Helper()
	return clustertest.List(t, s, cluster.Span{Limit: 1}).Index
}

func keys(entries []cluster.Entry) (keys []string) {
	for _, e := range entries {
		keys = append(keys, e.Key)
	}
	return keys
}

func testEntries(t *testing.T, open opener) {
	a, b := open(), open()
	begin := index(t, a)
	if begin == 0 {
		t.Error("an empty store has index 0, which no blocking query can wait from")
	}
	wantEntry(t, a, "k", "", 0, 0)
	first := clustertest.Put(t, a, "k", "one")
	wantEntry(t, b, "k", "one", first, first)
	second := clustertest.Put(t, b, "k", "two")
	wantEntry(t, a, "k", "two", first, second)
	third := clustertest.Commit(t, a, clustertest.Txn(clustertest.Delete("k")))
	wantEntry(t, b, "k", "", 0, 0)
	fourth := clustertest.Put(t, b, "k", "")
	wantEntry(t, a, "k", "", fourth, fourth)
	if indexes := []uint64{begin, first, second, third, fourth}; !slices.IsSorted(indexes) ||
		len(slices.Compact(indexes)) != 5 {
		t.Errorf("the indexes %v don't grow", indexes)
	}
	if got := clustertest.Commit(t, a, clustertest.Txn(clustertest.Delete("none"))); got != fourth ||
		index(t, b) != fourth {
		t.Errorf("a deletion of nothing has index %d, then %d; want %d", got, index(t, b), fourth)
	}
}

func testList(t *testing.T, open opener) {
	a, b := open(), open()
	names := []string{"a", "a/1", "a/2", "a/2/x", "a/\u00e9", "a0", "b/1"}
	for _, i := range []int{3, 0, 6, 5, 1, 4, 2} {
		clustertest.Put(t, a, names[i], "value of "+names[i])
	}
	below := func(key string) bool { return strings.HasSuffix(key, "1") }
	for name, tc := range map[string]struct {
		span cluster.Span
		want []string
		more bool
	}{
		"all":                {cluster.Span{}, names, false},
		"prefix":             {cluster.Span{Prefix: "a/"}, names[1:5], false},
		"no such prefix":     {cluster.Span{Prefix: "c"}, nil, false},
		"after":              {cluster.Span{Prefix: "a/", After: "a/2"}, names[3:5], false},
		"after, not there":   {cluster.Span{Prefix: "a/", After: "a/1x"}, names[2:5], false},
		"after the prefix":   {cluster.Span{Prefix: "a/", After: "b"}, nil, false},
		"before the prefix":  {cluster.Span{Prefix: "a/", After: "a"}, names[1:5], false},
		"limit":              {cluster.Span{Prefix: "a/", Limit: 2}, names[1:3], true},
		"limit that is met":  {cluster.Span{Prefix: "a/", Limit: 4}, names[1:5], false},
		"limit and after":    {cluster.Span{Prefix: "a", After: "a/1", Limit: 1}, names[2:3], true},
		"the store's own":    {cluster.Span{Prefix: "\x00"}, nil, false},
		"what is no key":     {cluster.Span{Prefix: "\xff"}, nil, false},
		"a prefix too long":  {cluster.Span{Prefix: strings.Repeat("a", 2*cluster.MaxKeyBytes)}, nil, false},
		"after what is last": {cluster.Span{After: "\xff"}, nil, false},
		"only some":          {cluster.Span{Only: below}, []string{"a/1", "b/1"}, false},
		"one of only some":   {cluster.Span{Prefix: "a", Only: below, Limit: 1}, []string{"a/1"}, false},
		"heads":              {cluster.Span{Head: 10}, names, false},
	} {
		page := clustertest.List(t, b, tc.span)
		if got := keys(page.Entries); !slices.Equal(got, tc.want) || page.More != tc.more || page.Index != index(t, a) {
			t.Errorf("%s: %q, %v, %d; want %q, %v, %d", name, got, page.More, page.Index, tc.want, tc.more, index(t, a))
		}
		for _, e := range page.Entries {
			want := "value of " + e.Key
			if tc.span.Head > 0 {
				want = want[:tc.span.Head]
			}
			if string(e.Value) != want || e.ModifyIndex == 0 {
				t.Errorf("%s: %s", name, clustertest.Describe(e))
			}
		}
	}
}

func testBounds(t *testing.T, open opener) {
	a := open()
	long, large := strings.Repeat("k", cluster.MaxKeyBytes), strings.Repeat("v", cluster.MaxValueBytes)
	clustertest.Put(t, a, long, large)
	if e := clustertest.Get(t, open(), long); string(e.Value) != large {
		t.Errorf("the largest value has %d bytes", len(e.Value))
	}
	before := index(t, a)
	many := func(n int) (ops []cluster.Operation) {
		for i := range n {
			ops = append(ops, clustertest.Set(fmt.Sprint(i), ""))
		}
		return ops
	}
	for name, txn := range map[string]cluster.Txn{
		"no key":                    {Then: []cluster.Operation{clustertest.Set("", "v")}},
		"a long key":                {Then: []cluster.Operation{clustertest.Set(long+"k", "v")}},
		"a key with NUL":            {Then: []cluster.Operation{clustertest.Set("a\x00b", "v")}},
		"a key with a new line":     {Then: []cluster.Operation{clustertest.Set("a\n", "v")}},
		"a key that is not UTF-8":   {Then: []cluster.Operation{clustertest.Delete("\xff")}},
		"a large value":             {Then: []cluster.Operation{clustertest.Set("a", large+"v")}},
		"a deletion with a value":   {Then: []cluster.Operation{{Key: "a", Delete: true, Value: []byte("v")}}},
		"a deletion with a lease":   {Then: []cluster.Operation{{Key: "a", Delete: true, Lease: "o"}}},
		"an owner with NUL":         {Then: []cluster.Operation{clustertest.Leased("a", "v", "\x00")}},
		"many operations":           {Then: many(cluster.MaxOperations + 1)},
		"many conditions":           {If: make([]cluster.Condition, cluster.MaxOperations+1), Then: many(1)},
		"a condition without a key": {If: make([]cluster.Condition, 1), Then: many(1)},
		"large values": {Then: slices.Repeat([]cluster.Operation{clustertest.Set("a", large)},
			cluster.MaxTxnBytes/cluster.MaxValueBytes+1)},
		"the last operation is none": {Then: append(many(3), clustertest.Set("", ""))},
	} {
		_, err := a.Commit(t.Context(), txn)
		wantErr(t, name, err, cluster.ErrInvalid)
	}
	_, err := a.Hold(t.Context(), "")
	wantErr(t, "a lease without an owner", err, cluster.ErrInvalid)
	same.As(t, before, index(t, a), "the index was ", before, " and is")
	clustertest.Commit(t, a, cluster.Txn{Then: many(cluster.MaxOperations)})
}

// testFull fills a store with bytes. Its entries can still be replaced and deleted, and deletions make room.
func testFull(t *testing.T, open opener) {
	a, b := open(), open()
	large := strings.Repeat("v", cluster.MaxValueBytes)
	commit := func(s cluster.Store, ops []cluster.Operation) error {
		for { // a busy machine's etcd may be late; the same values can be written again
			if _, err := s.Commit(t.Context(), cluster.Txn{Then: ops}); !errors.Is(err, cluster.ErrUnavailable) {
				return err
			}
		}
	}
	ops := make([]cluster.Operation, cluster.MaxTxnBytes/cluster.MaxValueBytes)
	var err error
	n := 0
	for err == nil && n < 1000 {
		for i := range ops {
			ops[i] = clustertest.Set(fmt.Sprintf("large/%03d", n), large)
			n++
		}
		err = commit(a, ops)
	}
	wantErr(t, fmt.Sprintf("after %d values", n), err, cluster.ErrFull)
	wantEntry(t, b, ops[0].Key, "", 0, 0)
	for err = commit(a, ops[:1]); err == nil && len(ops) > 1; err = commit(a, ops[:1]) {
		ops = ops[1:]
	}
	wantErr(t, "one more", err, cluster.ErrFull)
	clustertest.Put(t, b, "large/000", large)
	clustertest.Commit(t, b, clustertest.Txn(clustertest.Delete("large/000"), clustertest.Delete("large/001")))
	same.Error(t, nil, commit(b, ops[:1]), "after two were deleted")
}

func testOwnValues(t *testing.T, open opener) {
	a := open()
	value := []byte("one")
	clustertest.Commit(t, a, clustertest.Txn(cluster.Operation{Key: "k", Value: value}))
	copy(value, "two")
	if e := clustertest.Get(t, a, "k"); string(e.Value) != "one" {
		t.Errorf("the value is %q", e.Value)
	}
}

func testClosed(t *testing.T, open opener) {
	a, b := open(), open()
	i := clustertest.Put(t, a, "k", "v")
	ended := make(chan error)
	go func() { _, err := a.Watch(t.Context(), "", i); ended <- err }()
	must.OK(t, errors.Join(a.Close(), a.Close()))
	wantErr(t, "watch", <-ended, cluster.ErrUnavailable)
	for name, call := range calls(a) {
		wantErr(t, name, call(t.Context()), cluster.ErrUnavailable)
	}
	wantEntry(t, b, "k", "v", i, i)
	clustertest.Put(t, b, "k", "w")
}

func calls(s cluster.Store) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"get":  func(ctx context.Context) error { _, _, err := s.Get(ctx, "k"); return err },
		"list": func(ctx context.Context) error { _, err := s.List(ctx, cluster.Span{}); return err },
		"commit": func(ctx context.Context) error {
			_, err := s.Commit(ctx, clustertest.Txn(clustertest.Set("x", "x")))
			return err
		},
		"watch": func(ctx context.Context) error { _, err := s.Watch(ctx, "none", 1<<40); return err },
		"hold":  func(ctx context.Context) error { _, err := s.Hold(ctx, "o"); return err },
	}
}

func testContexts(t *testing.T, open opener) {
	a := open()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { _, err := a.Watch(ctx, "", 1<<40); ended <- err }()
	cancel()
	wantErr(t, "watch", <-ended, context.Canceled)
	for name, call := range calls(a) {
		wantErr(t, name, call(ctx), context.Canceled)
	}
	wantEntry(t, a, "x", "", 0, 0)
}
