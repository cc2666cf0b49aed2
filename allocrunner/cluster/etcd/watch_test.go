package etcd_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/etcd/etcdtest"
	"taskapi/internal/must"
)

// TestWatchAsksNothing: a caller that goes on from one change to the next costs etcd no request for each. There may
// be a thousand such callers.
func TestWatchAsksNothing(t *testing.T) {
	t.Parallel()
	node := etcdtest.Start(t, 1)[0]
	target, err := url.Parse("http://" + node.Client)
	must.OK(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1 // the watch is a stream
	transport := &http.Transport{}
	proxy.Transport = transport
	t.Cleanup(transport.CloseIdleConnections)
	var reads atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/kv/range") {
			reads.Add(1)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	writer, watcher := open(t, node), open(t, &etcdtest.Node{Client: server.Listener.Addr().String()})
	_, index, err := watcher.Get(t.Context(), "k")
	must.OK(t, err)
	before := reads.Load()
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
	if asked := reads.Load() - before; asked > changes/2 {
		t.Errorf("%d changes took %d questions", changes, asked)
	}
}
