package etcd_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/claim"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/etcd"
	"taskapi/allocrunner/cluster/etcd/etcdtest"
	"taskapi/internal/boottime"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// smallQuota makes a server full after a few large values.
var smallQuota = []string{"--quota-backend-bytes", "1048576"}

// fill writes until the store is full, and returns the error of the last write.
func fill(t *testing.T, s *etcd.Store) error {
	t.Helper()
	for range 100 {
		_, err := s.Commit(t.Context(), clustertest.Txn(clustertest.Set("k", strings.Repeat("v", 100_000))))
		if err != nil {
			return err
		}
	}
	t.Fatal("etcd is never full")
	return nil
}

// makeRoom does what an operator of a full server does.
func makeRoom(t *testing.T, n *etcdtest.Node) {
	t.Helper()
	call := func(path, request string) []byte {
		r := must.Get(http.Post("http://"+n.Client+"/v3/"+path, "application/json", strings.NewReader(request)))(t)
		body := must.Get(io.ReadAll(r.Body))(t)
		r.Body.Close()
		if r.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", path, body)
		}
		return body
	}
	defer http.DefaultClient.CloseIdleConnections()
	var status struct {
		Header struct {
			Member   string `json:"member_id"`
			Revision string `json:"revision"`
		} `json:"header"`
	}
	must.OK(t, json.Unmarshal(call("maintenance/status", "{}"), &status))
	call("kv/compaction", fmt.Sprintf(`{"revision": %q, "physical": true}`, status.Header.Revision))
	call("maintenance/defragment", "{}")
	call("maintenance/alarm", fmt.Sprintf(`{"action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": %q}`,
		status.Header.Member))
}

// TestFull: the error for an etcd that keeps more than its quota says what to do.
func TestFull(t *testing.T) {
	t.Parallel()
	s := open(t, etcdtest.Start(t, 1, smallQuota...)...)
	err := fill(t, s)
	same.Says(t, cluster.ErrFull, "--auto-compaction-retention=1", err)
}

// TestAClaimOfAFullServer: while etcd is full, the holder of a claim keeps it, and no other machine takes it. When the
// holder is gone and there is room again, another machine takes the claim.
func TestAClaimOfAFullServer(t *testing.T) {
	t.Parallel()
	nodes := etcdtest.Start(t, 1, smallQuota...)
	quiet := slog.New(slog.DiscardHandler)
	config := func(id string) claim.Config {
		return claim.Config{Store: open(t, nodes...), Name: claim.Name{Namespace: "default", Alloc: "a"},
			Holder: claim.Holder{AllocID: id, NodeName: id}}
	}
	first, _, err := claim.Await(t.Context(), config("first"), claim.Waiting{})
	must.OK(t, err)
	ctx, die := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { first.Run(ctx, quiet) })
	t.Cleanup(func() { die(); running.Wait() })
	second, waits, taken := config("second"), make(chan struct{}, 1), make(chan error, 1)
	running.Go(func() {
		_, _, err := claim.Await(t.Context(), second, claim.Waiting{Holder: func(claim.Holder) { waits <- struct{}{} }})
		taken <- err
	})
	<-waits
	_ = fill(t, open(t, nodes...))
	full := boottime.Now()
	for end, changed := first.Until(); end < full+claim.TTL+claim.Held; end, changed = first.Until() {
		if end < boottime.Now() {
			t.Fatal("the claim has ended")
		}
		select {
		case <-changed:
		case <-taken:
			t.Fatal("the other machine has taken the claim")
		case <-time.After(claim.Held):
			t.Fatal("the claim is not renewed")
		}
	}
	die()
	last, _ := first.Until()
	makeRoom(t, nodes[0])
	must.OK(t, <-taken)
	if now := boottime.Now(); now < last {
		t.Errorf("the other machine has the claim at %v, and the first one until %v", now, last)
	}
}

// TestALeaseOfAFullServer: an allocation's next process can't join the lease while etcd is full, and keeps the
// allocation's entries all the same. It joins when there is room again.
func TestALeaseOfAFullServer(t *testing.T) {
	t.Parallel()
	nodes := etcdtest.Start(t, 1, smallQuota...)
	first, next := open(t, nodes...), open(t, nodes...)
	clustertest.Hold(t, first, "alloc")
	clustertest.Commit(t, first, clustertest.Txn(clustertest.Leased("s/1", "one", "alloc")))
	_ = fill(t, next)
	must.OK(t, first.Die())
	hold := func() error {
		lease, err := next.Hold(t.Context(), "alloc")
		if err == nil {
			t.Cleanup(func() { lease.Close() })
		}
		return err
	}
	for died := time.Now(); time.Since(died) < etcd.LeaseTTL*3/2; time.Sleep(time.Second) { // between attempts
		if err := hold(); !errors.Is(err, cluster.ErrUnavailable) {
			t.Fatalf("the next process joins while etcd is full: %v", err)
		}
		if e := clustertest.Get(t, next, "s/1"); string(e.Value) != "one" {
			t.Fatalf("after %v there is %s", time.Since(died), clustertest.Describe(e))
		}
	}
	makeRoom(t, nodes[0])
	must.OK(t, hold())
	if keys, held := next.Leased("alloc"); !held || len(keys) != 1 {
		t.Errorf("the next process holds the lease: %v, with %q", held, keys)
	}
}

// TestAChangeThatFillsTheServer: etcd may make the change with which it exceeds its quota, and refuse it all the same.
// A commit that says that the store is full has changed nothing.
func TestAChangeThatFillsTheServer(t *testing.T) {
	t.Parallel()
	s := open(t, etcdtest.Start(t, 1, smallQuota...)...)
	var writers sync.WaitGroup
	var mu sync.Mutex
	refused := map[string]error{}
	for i := range 50 {
		writers.Go(func() {
			for n := range 5 {
				key := fmt.Sprintf("k/%d/%d", i, n)
				_, err := s.Commit(t.Context(), clustertest.Txn(clustertest.Set(key, strings.Repeat("v", 50_000))))
				if err != nil {
					mu.Lock()
					refused[key] = err
					mu.Unlock()
				}
			}
		})
	}
	writers.Wait()
	if len(refused) == 0 {
		t.Error("etcd is never full")
	}
	for _, e := range clustertest.List(t, s, cluster.Span{Prefix: "k/"}).Entries {
		if err := refused[e.Key]; err != nil && !errors.Is(err, cluster.ErrUncertain) {
			t.Errorf("%s was written, in spite of %v", e.Key, err)
		}
	}
}
