package etcd_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/etcd"
	"taskapi/allocrunner/cluster/etcd/etcdtest"
	"taskapi/internal/must"
)

// traffic is what a client exchanges with etcd.
type traffic struct {
	reads, watches atomic.Int32
	watched        atomic.Int64 // bytes of all watches
}

// counted opens the store of a server, and counts what it exchanges.
func counted(t *testing.T, node *etcdtest.Node) (*etcd.Store, *traffic) {
	t.Helper()
	target := must.Get(url.Parse("http://" + node.Client))(t)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1 // the watch is a stream
	transport := &http.Transport{}
	proxy.Transport = transport
	t.Cleanup(transport.CloseIdleConnections)
	n := &traffic{}
	proxy.ModifyResponse = func(r *http.Response) error {
		switch {
		case strings.HasSuffix(r.Request.URL.Path, "/kv/range"):
			n.reads.Add(1)
		case strings.HasSuffix(r.Request.URL.Path, "/watch"):
			n.watches.Add(1)
			r.Body = counter{r.Body, &n.watched}
		}
		return nil
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return open(t, &etcdtest.Node{Client: server.Listener.Addr().String()}), n
}

type counter struct {
	io.ReadCloser
	bytes *atomic.Int64
}

func (c counter) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// TestOnlyWhatIsRead: etcd sends a process only the changes of entries that the process reads. Many prefixes that begin
// alike share one watch.
func TestOnlyWhatIsRead(t *testing.T) {
	t.Parallel()
	node := etcdtest.Start(t, 1)[0]
	reader, n := counted(t, node)
	writer := open(t, node)
	clustertest.Put(t, writer, "b/0", "v")
	index := clustertest.List(t, reader, cluster.Span{Prefix: "a/"}).Index
	for i := range 200 {
		clustertest.Put(t, writer, fmt.Sprintf("b/%d", i), strings.Repeat("v", 100))
	}
	last := clustertest.Put(t, writer, "a/1", "v")
	got := must.Get(reader.Watch(t.Context(), "a/", index))(t)
	if !slices.Equal(got.Keys, []string{"a/1"}) || got.Index != last || n.watched.Load() > 10_000 {
		t.Errorf("%+v at %d took %d bytes", got, last, n.watched.Load())
	}
	if e := clustertest.Get(t, reader, "b/7"); e.ModifyIndex == 0 {
		t.Error("an entry that nobody watches can't be read")
	}
	for i := range 100 {
		page := clustertest.List(t, reader, cluster.Span{Prefix: fmt.Sprintf("b/%d", i), Limit: 1})
		if len(page.Entries) != 1 {
			t.Errorf("%d: %+v", i, page)
		}
	}
	if n := n.watches.Load(); n > 20 {
		t.Errorf("there are %d watches", n)
	}
}

// TestIdleCopies: what nobody has read for some minutes is followed no longer, and read again when it is needed.
func TestIdleCopies(t *testing.T) {
	t.Parallel()
	node := etcdtest.Start(t, 1)[0]
	s, writer := open(t, node), open(t, node)
	index := clustertest.List(t, s, cluster.Span{Prefix: "a/"}).Index
	clustertest.List(t, s, cluster.Span{Prefix: "b/"})
	later := time.Now().Add(etcd.IdleTime)
	if left := s.EndIdle(time.Now()); len(left) != 2 {
		t.Errorf("at once there is only %q left", left)
	}
	seen := make(chan cluster.Changes)
	go func() {
		got, err := s.Watch(t.Context(), "b/", index)
		if err != nil {
			t.Error(err)
		}
		seen <- got
	}()
	until(t, "the watch does not keep what it waits for", func() bool {
		return slices.Equal(s.EndIdle(later), []string{"b/"})
	})
	clustertest.Put(t, writer, "a/1", "v")
	clustertest.Put(t, writer, "b/1", "v")
	if got := <-seen; !slices.Equal(got.Keys, []string{"b/1"}) {
		t.Errorf("the watch got %+v", got)
	}
	if page := clustertest.List(t, s, cluster.Span{Prefix: "a/", Local: true}); len(page.Entries) != 1 {
		t.Errorf("got %+v", page)
	}
}

// TestWatchAsksNothing: a caller that goes on from one change to the next costs etcd no request for each. There may
// be a thousand such callers.
func TestWatchAsksNothing(t *testing.T) {
	t.Parallel()
	node := etcdtest.Start(t, 1)[0]
	watcher, n := counted(t, node)
	writer := open(t, node)
	index := clustertest.List(t, watcher, cluster.Span{Prefix: "k"}).Index
	before := n.reads.Load()
	const changes = 200
	seen := make(chan error)
	go func() {
		for range changes {
			got, err := watcher.Watch(t.Context(), "k", index)
			index = got.Index
			seen <- err
		}
	}()
	for range changes {
		clustertest.Put(t, writer, "k", "v")
		must.OK(t, <-seen)
	}
	// The copy is compared with etcd from time to time, and a caller that comes late asks.
	if asked := n.reads.Load() - before; asked > changes/2 {
		t.Errorf("%d changes took %d questions", changes, asked)
	}
}
