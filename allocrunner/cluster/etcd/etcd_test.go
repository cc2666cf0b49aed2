package etcd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/etcd"
	"taskapi/allocrunner/cluster/etcd/client"
	"taskapi/allocrunner/cluster/etcd/etcdtest"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/same"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens the store of some servers until the end of the test.
func open(t testing.TB, nodes ...*etcdtest.Node) *etcd.Store {
	s := etcdtest.Open(nodes...)
	t.Cleanup(func() { s.Close() })
	return s
}

// direct returns a client of the servers.
func direct(t testing.TB, nodes ...*etcdtest.Node) *client.Client {
	t.Helper()
	config := must.Get(etcdtest.Config(nodes...).Client())(t)
	c := client.New(config)
	t.Cleanup(c.Close)
	return c
}

// until looks again and again, until ok.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(polltest.Deadline()); !ok(); time.Sleep(10 * time.Millisecond) { // between looks
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

func raw(t testing.TB, c *client.Client, key string) client.KV {
	t.Helper()
	found, err := c.Range(t.Context(), client.RangeRequest{Key: []byte("test/" + key)})
	if err != nil || len(found.KVs) != 1 {
		t.Fatalf("%s: %+v, %v", key, found, err)
	}
	return found.KVs[0]
}

// TestValuesAreSealed: etcd gets no value, and a value at another place is damaged. It can be written again.
func TestValuesAreSealed(t *testing.T) {
	t.Parallel()
	nodes := etcdtest.Start(t, 1)
	s, c := open(t, nodes...), direct(t, nodes...)
	clustertest.Put(t, s, "a", "a secret value")
	clustertest.Put(t, s, "b", "another one")
	kv := raw(t, c, "e/a")
	if strings.Contains(string(kv.Value), "secret") {
		t.Errorf("etcd has %q", kv.Value)
	}
	moved := client.Txn{Success: []client.Op{{Put: &client.Put{Key: []byte("test/e/b"), Value: kv.Value}},
		{Put: &client.Put{Key: []byte("test/head"), Value: []byte("x")}}}}
	must.Get(c.Txn(t.Context(), moved))(t)
	for _, s := range []cluster.Store{s, open(t, nodes...)} {
		if e := clustertest.Get(t, s, "b"); !e.Damaged || e.Value != nil {
			t.Errorf("got %s", clustertest.Describe(e))
		}
	}
	clustertest.Put(t, s, "b", "again")
	if e := clustertest.Get(t, s, "b"); e.Damaged || string(e.Value) != "again" {
		t.Errorf("got %s", clustertest.Describe(e))
	}
}

// change changes etcd as somebody who may write to it does.
func change(t testing.TB, c *client.Client, ops ...client.Op) {
	t.Helper()
	if answer, err := c.Txn(t.Context(), client.Txn{Success: ops}); err != nil || !answer.Succeeded {
		t.Fatal(answer, err)
	}
}

func set(key string, value []byte) client.Op {
	return client.Op{Put: &client.Put{Key: []byte(key), Value: value}}
}

// TestAnotherKey: a machine with another key than the first one's reads and writes nothing, and says so.
func TestAnotherKey(t *testing.T) {
	t.Parallel()
	nodes := etcdtest.Start(t, 1)
	stranger := func() *etcd.Store {
		config := etcdtest.Config(nodes...)
		config.Sealer = func(string) (cluster.Sealer, error) { return etcdtest.Sealer("other"), nil }
		s := etcd.New(config)
		t.Cleanup(func() { s.Close() })
		return s
	}
	refused := func(what string) {
		t.Helper()
		s := stranger()
		for range 2 {
			same.Error(t, cluster.ErrKey, same.Err(s.Commit(t.Context(), clustertest.Txn(clustertest.Set("b", "x")))), what)
		}
		if _, _, err := s.Get(t.Context(), "a"); !errors.Is(err, cluster.ErrKey) ||
			!errors.Is(err, cluster.ErrUnavailable) || !strings.Contains(err.Error(), "cluster.key_file") {
			t.Errorf("%s: %v", what, err)
		}
	}
	s := open(t, nodes...)
	if e := clustertest.Get(t, s, "a"); e.ModifyIndex != 0 {
		t.Errorf("got %s", clustertest.Describe(e))
	}
	refused("before the first write")
	clustertest.Put(t, s, "a", "x")
	refused("after it")
	change(t, direct(t, nodes...), client.Op{Delete: &client.Delete{Key: []byte("test/k")}})
	refused("in a store of an earlier version")
}

// TestJunkHidesNothing: whatever somebody without the machines' key adds to etcd, or takes away, a new process finds
// out that it has the right key.
func TestJunkHidesNothing(t *testing.T) {
	t.Parallel()
	nodes := etcdtest.Start(t, 1)
	c := direct(t, nodes...)
	clustertest.Put(t, open(t, nodes...), "services/a", "x")
	check := func(what string) {
		t.Helper()
		s := open(t, nodes...)
		if e, _, err := s.Get(t.Context(), "services/a"); err != nil || string(e.Value) != "x" {
			t.Errorf("%s: %s, %v", what, clustertest.Describe(e), err)
		}
		clustertest.Put(t, s, "services/b", "x")
	}
	for i := range 20 {
		change(t, c, set(fmt.Sprintf("test/e/claims/%d", i), []byte("junk")))
	}
	change(t, c, set("test/e/", []byte("junk")))
	check("twenty entries come first")
	noProof := client.Op{Delete: &client.Delete{Key: []byte("test/k")}}
	change(t, c, noProof)
	check("the proof is deleted, too")
	change(t, c, set("test/k", []byte("junk")))
	check("the proof is overwritten, too")
	var many []client.Op
	for i := range 120 {
		many = append(many, set(fmt.Sprintf("test/e/claims/%d", i), []byte("junk")))
	}
	change(t, c, append(many, noProof)...)
	check("more entries come first than a page has")
	if _, err := etcdtest.Sealer("cluster").Open(raw(t, c, "k").Value, "test/\x00k"); err != nil {
		t.Errorf("the proof is not written again: %v", err)
	}
}

// TestPrefixIsBound: a value is good below its own prefix alone. One of an earlier version, which is good below any
// prefix, is bound when it is written again.
func TestPrefixIsBound(t *testing.T) {
	t.Parallel()
	nodes := etcdtest.Start(t, 1)
	c := direct(t, nodes...)
	config := etcdtest.Config(nodes...)
	config.Prefix = "other/"
	other, s := etcd.New(config), open(t, nodes...)
	t.Cleanup(func() { other.Close() })
	clustertest.Put(t, s, "own", "x")
	clustertest.Put(t, other, "a", "of the other")
	clustertest.Hold(t, other, "alloc")
	move := func(key string) {
		t.Helper()
		found, err := c.Range(t.Context(), client.RangeRequest{Key: []byte("other/" + key)})
		if err != nil || len(found.KVs) != 1 {
			t.Fatal(found, err)
		}
		change(t, c, set("test/"+key, found.KVs[0].Value))
	}
	move("e/a")
	if e := clustertest.Get(t, s, "a"); !e.Damaged {
		t.Errorf("of another prefix: %s", clustertest.Describe(e))
	}
	move("o/alloc")
	if _, err := s.Commit(t.Context(), clustertest.Txn(clustertest.Leased("b", "x", "alloc"))); !errors.Is(err,
		cluster.ErrLeaseEnded) {
		t.Errorf("a lease of another prefix: %v", err)
	}
	// The value of an entry has a format of two bytes, and no lease.
	earlier := must.Get(etcdtest.Sealer("cluster").Seal([]byte("\x01\x00\x00earlier"), "e/a"))(t)
	change(t, c, set("test/e/a", earlier))
	if e := clustertest.Get(t, s, "a"); string(e.Value) != "earlier" {
		t.Errorf("of an earlier version: %s", clustertest.Describe(e))
	}
	clustertest.Put(t, s, "a", "new")
	if _, err := etcdtest.Sealer("cluster").Open(raw(t, c, "e/a").Value, "e/a"); err == nil {
		t.Error("the value that was written again is good below any prefix")
	}
}

// TestALeaseThatIsLeft: the entries of a process that leaves its lease stay, and end with the next process that holds
// the lease.
func TestALeaseThatIsLeft(t *testing.T) {
	t.Parallel()
	nodes := etcdtest.Start(t, 1)
	first, next := open(t, nodes...), open(t, nodes...)
	lease := clustertest.Hold(t, first, "alloc")
	clustertest.Commit(t, first, clustertest.Txn(clustertest.Leased("s/1", "one", "alloc")))
	lease.(cluster.Leaver).Leave()
	lease.Close()
	if e := clustertest.Get(t, next, "s/1"); string(e.Value) != "one" {
		t.Errorf("when it was left, there is %s", clustertest.Describe(e))
	}
	clustertest.Hold(t, next, "alloc").Close()
	if e := clustertest.Get(t, next, "s/1"); e.ModifyIndex != 0 {
		t.Errorf("when the next process has ended, there is %s", clustertest.Describe(e))
	}
}

// TestAnEndedLeaseBeginsAgain: the entries of a lease that etcd has ended come back while its holder lives, except
// those that were deleted before.
func TestAnEndedLeaseBeginsAgain(t *testing.T) {
	t.Parallel()
	nodes := etcdtest.Start(t, 1)
	a, b, c := open(t, nodes...), open(t, nodes...), direct(t, nodes...)
	lease := clustertest.Hold(t, a, "alloc")
	clustertest.Commit(t, a, clustertest.Txn(clustertest.Leased("s/1", "one", "alloc"),
		clustertest.Leased("s/2", "two", "alloc"), clustertest.Set("s/3", "three")))
	clustertest.Commit(t, b, clustertest.Txn(clustertest.Delete("s/2")))
	before := raw(t, c, "e/s/1")
	must.OK(t, c.Revoke(t.Context(), before.Lease))
	until(t, "the entry does not come back", func() bool {
		e := clustertest.Get(t, b, "s/1")
		return string(e.Value) == "one" && e.Lease == "alloc" && e.ModifyIndex > before.ModRevision
	})
	if e := clustertest.Get(t, b, "s/2"); e.ModifyIndex != 0 {
		t.Errorf("back is %s", clustertest.Describe(e))
	}
	lease.Close()
	if e := clustertest.Get(t, b, "s/1"); e.ModifyIndex != 0 {
		t.Errorf("after the end of the lease: %s", clustertest.Describe(e))
	}
}

// TestADeletedOwnerBeginsAgain: somebody deletes the owner's key of a lease. Its holder then begins another lease,
// which has all entries of the first.
func TestADeletedOwnerBeginsAgain(t *testing.T) {
	t.Parallel()
	nodes := etcdtest.Start(t, 1)
	a, b, c := open(t, nodes...), open(t, nodes...), direct(t, nodes...)
	lease := clustertest.Hold(t, a, "alloc")
	clustertest.Commit(t, a, clustertest.Txn(clustertest.Leased("s/1", "one", "alloc")))
	before := raw(t, c, "e/s/1").Lease
	owner := client.Op{Delete: &client.Delete{Key: []byte("test/o/alloc")}}
	must.Get(c.Txn(t.Context(), client.Txn{Success: []client.Op{owner}}))(t)
	until(t, "no entry is written with the lease", func() bool {
		_, err := a.Commit(t.Context(), clustertest.Txn(clustertest.Leased("s/2", "two", "alloc")))
		if err != nil && !errors.Is(err, cluster.ErrLeaseEnded) {
			t.Fatal(err)
		}
		return err == nil
	})
	until(t, "the first entry does not move to the other lease", func() bool {
		found, err := c.Range(t.Context(), client.RangeRequest{Key: []byte("test/e/s/1")})
		return err == nil && len(found.KVs) == 1 && found.KVs[0].Lease != before &&
			found.KVs[0].Lease == raw(t, c, "e/s/2").Lease
	})
	lease.Close()
	if page := clustertest.List(t, b, cluster.Span{Prefix: "s/"}); len(page.Entries) > 0 {
		t.Errorf("after the end of the lease: %+v", page.Entries)
	}
}

// TestEntriesOfAnEarlierProcess: a process that joins a lease writes the entries again that it has found there, too.
func TestEntriesOfAnEarlierProcess(t *testing.T) {
	t.Parallel()
	nodes := etcdtest.Start(t, 1)
	first, second, c := open(t, nodes...), open(t, nodes...), direct(t, nodes...)
	clustertest.Hold(t, first, "alloc")
	clustertest.Commit(t, first, clustertest.Txn(clustertest.Leased("s/1", "one", "alloc")))
	clustertest.Hold(t, second, "alloc")
	if keys, held := second.Leased("alloc"); !held || !slices.Equal(keys, []string{"s/1"}) {
		t.Errorf("the lease has %q, %v", keys, held)
	}
	before := raw(t, c, "e/s/1")
	must.OK(t, first.Die())
	must.OK(t, c.Revoke(t.Context(), before.Lease))
	until(t, "the entry does not come back", func() bool {
		return clustertest.Get(t, second, "s/1").ModifyIndex > before.ModRevision
	})
}

// TestEntriesComeBackLater: entries of a lease that etcd has ended come back although etcd refuses the first writes.
func TestEntriesComeBackLater(t *testing.T) {
	t.Parallel()
	node := etcdtest.Start(t, 1)[0]
	var refuse atomic.Int32
	key, _ := json.Marshal([]byte("test/e/s/1"))
	between := front(t, node, func(w http.ResponseWriter, path string, body []byte) bool {
		if path != "/v3/kv/txn" || !bytes.Contains(body, key) || refuse.Add(-1) < 0 {
			return true
		}
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"code":7,"message":"etcdserver: permission denied"}`)
		return false
	})
	a, b, c := open(t, between), open(t, node), direct(t, node)
	clustertest.Hold(t, a, "alloc")
	clustertest.Commit(t, a, clustertest.Txn(clustertest.Leased("s/1", "one", "alloc")))
	refuse.Store(2)
	must.OK(t, c.Revoke(t.Context(), raw(t, c, "e/s/1").Lease))
	until(t, "the entry does not come back", func() bool {
		return refuse.Load() < 0 && string(clustertest.Get(t, b, "s/1").Value) == "one"
	})
}

// front returns a server before another, which passes a request on after a call that returns true.
func front(t *testing.T, n *etcdtest.Node, call func(w http.ResponseWriter, path string, body []byte) bool,
) *etcdtest.Node {
	pass := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: n.Client})
	pass.FlushInterval = -1 // a watch is never whole
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if call(w, r.URL.Path, body) {
			pass.ServeHTTP(w, r)
		}
	})
}

// swallowing opens the store of a server that makes a change and does not answer, once the returned switch is on. It
// ends the request by a call.
func swallowing(t *testing.T, node *etcdtest.Node, end func(http.ResponseWriter)) (*etcd.Store, *atomic.Bool) {
	swallow := new(atomic.Bool)
	return open(t, front(t, node, func(w http.ResponseWriter, path string, body []byte) bool {
		if path != "/v3/kv/txn" || !swallow.CompareAndSwap(true, false) {
			return true
		}
		r, err := http.Post("http://"+node.Client+path, "", bytes.NewReader(body))
		if err == nil {
			err = r.Body.Close()
		}
		http.DefaultClient.CloseIdleConnections()
		if err != nil {
			t.Error(err)
		}
		end(w)
		return false
	})), swallow
}

// TestUnanswered: etcd makes a change, and the answer never arrives. The store finds out that it was made.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	node := etcdtest.Start(t, 1)[0]
	s, swallow := swallowing(t, node, func(w http.ResponseWriter) {
		// The client gives up when nothing more arrives.
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { conn.Close() })
	})
	clustertest.Get(t, s, "k") // the first use proves the key by a change of its own
	swallow.Store(true)
	index, err := s.Commit(t.Context(), clustertest.Txn(clustertest.Set("k", "v")))
	if e := clustertest.Get(t, s, "k"); swallow.Load() || err != nil || e.ModifyIndex != index || string(e.Value) != "v" {
		t.Errorf("got %d, %v, and the store has %s", index, err, clustertest.Describe(e))
	}
}

// TestDeletedUnanswered: an entry that was deleted does not come back with its owner's next lease, although the answer
// to the deletion never arrived, and etcd has forgotten which entries were there when the lease ended.
func TestDeletedUnanswered(t *testing.T) {
	t.Parallel()
	node := etcdtest.Start(t, 1)[0]
	s, swallow := swallowing(t, node, func(http.ResponseWriter) { panic(http.ErrAbortHandler) }) // the connection ends
	c, b := direct(t, node), open(t, node)
	clustertest.Hold(t, s, "alloc")
	clustertest.Commit(t, s, clustertest.Txn(clustertest.Leased("s/1", "one", "alloc"),
		clustertest.Leased("s/2", "two", "alloc")))
	swallow.Store(true)
	clustertest.Commit(t, s, cluster.Txn{If: []cluster.Condition{{Key: "x"}},
		Then: []cluster.Operation{clustertest.Delete("s/1"), clustertest.Set("x", "v")}})
	if swallow.Load() {
		t.Fatal("etcd's answer has arrived")
	}
	before := raw(t, c, "e/s/2")
	must.OK(t, c.Revoke(t.Context(), before.Lease))
	compactAt(t, node, clustertest.Put(t, b, "x", "w"))
	until(t, "the other entry does not come back", func() bool {
		return clustertest.Get(t, b, "s/2").ModifyIndex > before.ModRevision
	})
	if e := clustertest.Get(t, b, "s/1"); e.ModifyIndex != 0 {
		t.Errorf("back is %s", clustertest.Describe(e))
	}
}

// TestManyEntriesComeBack: all of an owner's many entries come back although the next lease ends, too, before all of
// them are written again.
func TestManyEntriesComeBack(t *testing.T) {
	t.Parallel()
	node := etcdtest.Start(t, 1)[0]
	c := direct(t, node)
	key, _ := json.Marshal([]byte("test/e/s/30"))
	var armed atomic.Bool
	a := open(t, front(t, node, func(_ http.ResponseWriter, path string, body []byte) bool {
		if path == "/v3/kv/txn" && bytes.Contains(body, key) && armed.CompareAndSwap(true, false) {
			if err := c.Revoke(t.Context(), raw(t, c, "e/s/00").Lease); err != nil {
				t.Error(err)
			}
		}
		return true
	}))
	clustertest.Hold(t, a, "alloc")
	const many = 50
	for i := range many {
		clustertest.Commit(t, a, clustertest.Txn(clustertest.Leased(fmt.Sprintf("s/%02d", i), "v", "alloc")))
	}
	armed.Store(true)
	must.OK(t, c.Revoke(t.Context(), raw(t, c, "e/s/00").Lease))
	until(t, "not all entries come back", func() bool {
		return !armed.Load() && len(clustertest.List(t, a, cluster.Span{Prefix: "s/"}).Entries) == many
	})
}

// TestFencedEntriesStayAway: entries of a lease that etcd has ended don't come back when their holder may no longer
// write.
func TestFencedEntriesStayAway(t *testing.T) {
	t.Parallel()
	nodes := etcdtest.Start(t, 1)
	a, b, c := open(t, nodes...), open(t, nodes...), direct(t, nodes...)
	index := clustertest.Put(t, a, "fence", "")
	var asked atomic.Int32
	for owner, at := range map[string]uint64{"in": index, "out": index - 1} {
		lease, err := a.HoldFenced(t.Context(), owner, func() cluster.Condition {
			asked.Add(1)
			return cluster.Condition{Key: "fence", ModifyIndex: at}
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { lease.Close() })
		clustertest.Commit(t, a, clustertest.Txn(clustertest.Leased("s/"+owner, owner, owner)))
	}
	for _, key := range []string{"e/s/in", "e/s/out"} {
		must.OK(t, c.Revoke(t.Context(), raw(t, c, key).Lease))
	}
	until(t, "the entries are not written again", func() bool {
		return asked.Load() == 2 && clustertest.Get(t, b, "s/in").ModifyIndex > 0
	})
	if e := clustertest.Get(t, b, "s/out"); e.ModifyIndex != 0 {
		t.Errorf("back is %s", clustertest.Describe(e))
	}
}

// TestAway: while etcd can't be reached, local reads go on, others fail, and a watch waits. Afterwards all goes on, and
// the watch hears of the changes, or of a gap when etcd has forgotten them.
func TestAway(t *testing.T) {
	t.Parallel()
	nodes := etcdtest.Start(t, 1)
	for _, compact := range []bool{false, true} {
		proxy := etcdtest.Through(t, nodes[0])
		far, near := open(t, &proxy.Node), open(t, nodes...)
		i := clustertest.Put(t, near, "k", "v")
		clustertest.List(t, far, cluster.Span{Prefix: "k"})
		proxy.Cut(true)
		changes := make(chan cluster.Changes)
		go func() {
			got, err := far.Watch(t.Context(), "k", i)
			if err != nil {
				t.Error(err)
			}
			changes <- got
		}()
		if _, err := far.Commit(t.Context(), clustertest.Txn(clustertest.Set("k", "x"))); !errors.Is(err,
			cluster.ErrUnavailable) {
			t.Errorf("commit: %v", err)
		}
		same.Error(t, cluster.ErrUnavailable, same.Err2(far.Get(t.Context(), "k")), "get")
		page := clustertest.List(t, far, cluster.Span{Prefix: "k", Local: true})
		if len(page.Entries) != 1 || string(page.Entries[0].Value) != "v" {
			t.Errorf("the local entries are %v", page.Entries)
		}
		if fresh := far.FreshUntil("k"); time.Until(fresh) > cluster.FreshTime {
			t.Errorf("fresh for %v", time.Until(fresh))
		}
		j := clustertest.Put(t, near, "k", "w")
		if compact {
			clustertest.Put(t, near, "other", "w")
			compactAt(t, nodes[0], j+1)
		}
		proxy.Cut(false)
		got := <-changes
		if got.Gap != compact || !compact && (!slices.Equal(got.Keys, []string{"k"}) || got.Index < j) {
			t.Errorf("compacted %v: %+v", compact, got)
		}
		until(t, "the store does not come back", func() bool {
			e, _, err := far.Get(t.Context(), "k")
			return err == nil && string(e.Value) == "w"
		})
	}
}

// TestSilence: the error of a call whose time is over says what it was waiting for.
func TestSilence(t *testing.T) {
	t.Parallel()
	s := open(t, serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // before that, the server does not notice that the client is gone
		<-r.Context().Done()
	}))
	for what, call := range map[string]func(context.Context) error{
		"get":    func(ctx context.Context) error { _, _, err := s.Get(ctx, "k"); return err },
		"list":   func(ctx context.Context) error { _, err := s.List(ctx, cluster.Span{}); return err },
		"commit": func(ctx context.Context) error { _, err := s.Commit(ctx, clustertest.Txn()); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		err := call(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || err.Error() == ctx.Err().Error() {
			t.Errorf("%s of a frozen etcd: %v", what, err)
		}
	}
}

// TestFreshnessOfWhatIsRead: how fresh a prefix is does not depend on another copy, of more entries, that reads don't
// use.
func TestFreshnessOfWhatIsRead(t *testing.T) {
	t.Parallel()
	node := etcdtest.Start(t, 1)[0]
	s := open(t, node)
	for i := range 20 { // the last ones have one copy
		clustertest.List(t, s, cluster.Span{Prefix: fmt.Sprintf("a/%d/", i)})
	}
	for range 3 {
		before := time.Now()
		clustertest.List(t, s, cluster.Span{Prefix: "a/0/"})
		if fresh := s.FreshUntil("a/0/"); fresh.Before(before.Add(cluster.FreshTime)) {
			t.Errorf("fresh until %v before it should be", before.Add(cluster.FreshTime).Sub(fresh))
		}
	}
}

// TestFreshness: the copy of a process that does not read stays fresh while etcd answers, and no longer.
func TestFreshness(t *testing.T) {
	t.Parallel()
	nodes := etcdtest.Start(t, 1)
	proxy := etcdtest.Through(t, nodes[0])
	s := open(t, &proxy.Node)
	clustertest.List(t, s, cluster.Span{Prefix: "a/"})
	if !s.FreshUntil("k/").IsZero() {
		t.Error("fresh before the first read")
	}
	clustertest.List(t, s, cluster.Span{Prefix: "k/"})
	first := s.FreshUntil("k/1")
	until(t, "the copy gets stale", func() bool { return s.FreshUntil("k/1").After(first) })
	proxy.Cut(true)
	cut := time.Now()
	until(t, "time stands still", func() bool { return time.Since(cut) > 2*cluster.FreshTime/5 })
	if fresh := s.FreshUntil("k/"); fresh.After(cut.Add(cluster.FreshTime)) {
		t.Errorf("fresh until %v after etcd was away", fresh.Sub(cut))
	}
}

func compactAt(t *testing.T, n *etcdtest.Node, revision uint64) {
	t.Helper()
	body := strings.NewReader(fmt.Sprintf(`{"revision":"%d"}`, revision))
	r := must.Get(http.Post("http://"+n.Client+"/v3/kv/compaction", "application/json", body))(t)
	r.Body.Close()
	http.DefaultClient.CloseIdleConnections()
}

// TestNextEndpoint: when one endpoint is frozen, gone, or no longer a member of etcd's cluster, the others serve.
func TestNextEndpoint(t *testing.T) {
	t.Parallel()
	nodes := etcdtest.Start(t, 3)
	for i, end := range []func(n *etcdtest.Node){
		func(n *etcdtest.Node) { n.Signal(t, syscall.SIGSTOP) },
		func(n *etcdtest.Node) { n.Signal(t, syscall.SIGCONT); n.Proc.Kill() },
		func(n *etcdtest.Node) { n.Run(t); n.Ready(t); remove(t, n, nodes[1]) },
	} {
		s := open(t, nodes...)
		clustertest.Put(t, s, "k", "before")
		end(nodes[0])
		until(t, "no endpoint serves", func() bool {
			_, err := s.Commit(t.Context(), clustertest.Txn(clustertest.Set("k", fmt.Sprint(i))))
			return err == nil
		})
		if e := clustertest.Get(t, s, "k"); string(e.Value) != fmt.Sprint(i) {
			t.Errorf("got %s", clustertest.Describe(e))
		}
	}
}

// remove makes a server leave its cluster, by another one.
func remove(t *testing.T, n, other *etcdtest.Node) {
	t.Helper()
	var status struct {
		Header struct {
			Member string `json:"member_id"`
		} `json:"header"`
	}
	ask := func(n *etcdtest.Node, path, body string, answer any) error {
		r, err := http.Post("http://"+n.Client+"/v3/"+path, "", strings.NewReader(body))
		if err != nil {
			return err
		}
		defer http.DefaultClient.CloseIdleConnections()
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return errors.New(r.Status)
		}
		return json.NewDecoder(r.Body).Decode(answer)
	}
	until(t, "the server does not leave", func() bool { // etcd refuses while it counts too few members as healthy
		return ask(n, "maintenance/status", "{}", &status) == nil &&
			ask(other, "cluster/member/remove", `{"ID":"`+status.Header.Member+`"}`, new(any)) == nil
	})
}

// TestRestoredBackup: a store refuses an etcd whose revision went back. Its error says what to do.
func TestRestoredBackup(t *testing.T) {
	t.Parallel()
	one, two := etcdtest.Start(t, 1), etcdtest.Start(t, 1)
	proxy := etcdtest.Through(t, one[0])
	s := open(t, &proxy.Node)
	for range 3 {
		clustertest.Put(t, s, "k", "v")
	}
	proxy.To(two[0])
	until(t, "the store goes on", func() bool {
		_, _, err := s.Get(t.Context(), "k")
		return err != nil && strings.Contains(err.Error(), "Restart")
	})
	if page := clustertest.List(t, open(t, two...), cluster.Span{}); len(page.Entries) > 0 {
		t.Errorf("the other etcd has %v", page.Entries)
	}
}

// TestHostile: whatever a server answers, the store returns an error in time, and needs no memory without bounds.
func TestHostile(t *testing.T) {
	t.Parallel()
	const header = `{"header":{"cluster_id":"1","revision":"9"},`
	kv := func(key, value, rest string) string {
		return `{"key":"` + key + `","value":"` + value + `",` + rest + `}`
	}
	for name, answer := range map[string]http.HandlerFunc{
		"garbage":      text("<html>"),
		"nothing":      text(""),
		"null":         text("null"),
		"an empty one": text("{}"),
		"other types":  text(`{"header":[],"kvs":7}`),
		"deep":         text(strings.Repeat("[", 1<<20)),
		"an error":     func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusTeapot) },
		"another error": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"code":14}`, http.StatusServiceUnavailable)
		},
		"a redirection":  func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/", http.StatusFound) },
		"a broken key":   text(header + `"kvs":[` + kv("!!", "", `"mod_revision":"1"`) + `]}`),
		"no revision":    text(header + `"kvs":[` + kv("dGVzdC9lL2E=", "", `"version":"1"`) + `],"more":true}`),
		"the same again": text(header + `"kvs":[` + kv("dGVzdC9lL2E=", "", `"mod_revision":"1"`) + `],"more":true}`),
		"no end":         endless,
		"too many keys":  manyKeys(),
		"a future":       text(header + `"kvs":[` + kv("dGVzdC9lL2E=", "", `"mod_revision":"99"`) + `]}`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			verified := false // whether the key is right
			s := open(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
				if verified {
					answer(w, r)
					return
				}
				verified = strings.HasSuffix(r.URL.Path, "/txn")
				text(header+`"succeeded":true}`)(w, r)
			}))
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if _, err := s.List(ctx, cluster.Span{}); !errors.Is(err, cluster.ErrUnavailable) || len(err.Error()) > 2000 {
				t.Errorf("got %.3000v", err)
			}
		})
	}
}

func text(answer string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(answer)) }
}

func endless(w http.ResponseWriter, _ *http.Request) {
	for {
		if _, err := w.Write([]byte(strings.Repeat(" ", 64<<10))); err != nil {
			return
		}
	}
}

// manyKeys has another page of keys behind each.
func manyKeys() http.HandlerFunc {
	var key atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		var request client.RangeRequest
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil || request.Limit > 10_000 {
			http.Error(w, "", http.StatusBadRequest)
			return
		}
		var answer client.RangeResponse
		answer.Header = client.Header{ClusterID: 1, Revision: 9}
		for range request.Limit {
			answer.KVs = append(answer.KVs, client.KV{Key: fmt.Appendf(nil, "test/e/%09d", key.Add(1)), ModRevision: 1})
		}
		answer.More = true
		_ = json.NewEncoder(w).Encode(answer) // the client may be gone
	}
}

// serve starts a server that is not etcd.
func serve(t testing.TB, answer http.HandlerFunc) *etcdtest.Node {
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return &etcdtest.Node{Client: server.Listener.Addr().String()}
}

// TestHostileWatch: what a watch may report does no harm.
func TestHostileWatch(t *testing.T) {
	t.Parallel()
	for name, events := range map[string]string{
		"garbage":    `}`,
		"revision 0": `{"result":{"events":[{"kv":{"key":"dGVzdC9lL2E="}}]}}`,
		"backwards": `{"result":{"events":[{"kv":{"key":"dGVzdC9lL2E=","mod_revision":"50"}},` +
			`{"kv":{"mod_revision":"40"}}]}}`,
		"the last number":  `{"result":{"events":[{"kv":{"key":"dGVzdC9lL2E=","mod_revision":"18446744073709551615"}}]}}`,
		"compacted":        `{"result":{"canceled":true,"compact_revision":"18446744073709551615"}}`,
		"other keys":       `{"result":{"events":[{"kv":{"key":"AA==","mod_revision":"10"}},{"kv":{"mod_revision":"10"}}]}}`,
		"a damaged lease":  `{"result":{"events":[{"kv":{"key":"dGVzdC9vL2E=","value":"AA==","mod_revision":"10"}}]}}`,
		"an error":         `{"error":{"code":14,"message":"no"}}`,
		"endless fragment": strings.Repeat(`{"result":{"fragment":true}}`+"\n", 1000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var watches atomic.Int32
			s := open(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasSuffix(r.URL.Path, "/watch") {
					revision := uint64(9)
					if watches.Load() > 0 {
						revision = math.MaxUint64 // never before an event: that would end the following for good
					}
					text(fmt.Sprintf(`{"header":{"cluster_id":"1","revision":"%d"},"succeeded":true}`, revision))(w, r)
					return
				}
				watches.Add(1)
				text(`{"result":{"created":true}}`+"\n"+events+"\n")(w, r)
			}))
			until(t, "no watch begins again", func() bool {
				_, _ = s.List(t.Context(), cluster.Span{Local: true})
				return watches.Load() > 1
			})
		})
	}
}

// TestSettings: each wrong setting has an error that says what to write.
func TestSettings(t *testing.T) {
	t.Parallel()
	good := etcd.Settings{Address: "etcd://10.0.0.1:2379,etcd.example:2379/prod", KeyFile: "/cluster.key"}
	must.OK(t, good.Check())
	for want, change := range map[string]func(*etcd.Settings){
		"set address":                           func(s *etcd.Settings) { s.Address = "" },
		"it must be etcd://":                    func(s *etcd.Settings) { s.Address = "http://a:1" },
		"commas between":                        func(s *etcd.Settings) { s.Address = "etcd://a" },
		"for TLS; /NAME":                        func(s *etcd.Settings) { s.Address = "etcd://user:secret@a:1" },
		"/dev/urandom":                          func(s *etcd.Settings) { s.KeyFile = "" },
		"write the address as etcds://10.0.0.1": func(s *etcd.Settings) { s.TLSCAFile = "/ca" },
		"cluster.tls_key_file":                  func(s *etcd.Settings) { s.TLSCertFile = "/cert" },
		"cluster.password_file":                 func(s *etcd.Settings) { s.User = "u" },
	} {
		s := good
		change(&s)
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
	same.Says(t, nil, "copy it from another machine", good.TryFiles(), "a key file that is not there")
}
