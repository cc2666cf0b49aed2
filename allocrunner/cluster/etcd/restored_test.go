package etcd_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/etcd/etcdtest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestRestoredWhileCutOff: etcd is restored from a backup while a machine is cut off, and others have written so much
// since that the machine can't see that the revision went back. Its copies become what etcd has, and a caller that
// waits for a change hears that it has missed some.
func TestRestoredWhileCutOff(t *testing.T) {
	t.Parallel()
	node := etcdtest.Start(t, 1)[0]
	proxy := etcdtest.Through(t, node)
	before := open(t, node)
	clustertest.Put(t, before, "a/1", "v")
	backup := node.Backup(t)
	clustertest.Put(t, before, "a/2", "v") // which is lost
	last := clustertest.Put(t, before, "a/3", "v")
	cutOff := open(t, &proxy.Node)
	keys := func(local bool) (keys []string) {
		page, err := cutOff.List(t.Context(), cluster.Span{Prefix: "a/", Local: local})
		if err != nil && !errors.Is(err, cluster.ErrUnavailable) {
			t.Error(err)
		}
		for _, e := range page.Entries {
			keys = append(keys, e.Key)
		}
		return keys
	}
	if got := keys(false); len(got) != 3 {
		t.Fatalf("there is %q", got)
	}
	changes := make(chan cluster.Changes, 1)
	go func() {
		got, err := cutOff.Watch(t.Context(), "a/", last)
		if err != nil {
			t.Error(err)
		}
		changes <- got
	}()
	proxy.Cut(true)
	node.Restore(t, backup)
	after := open(t, node)
	clustertest.Put(t, after, "a/4", "v")
	for i := uint64(0); i <= last; i++ {
		must.OK(t, func() error {
			_, err := after.Commit(t.Context(), clustertest.Txn(clustertest.Set(fmt.Sprint("b/", i), "v")))
			return err
		}())
	}
	proxy.Cut(false)
	until(t, "the copy does not become what etcd has", func() bool {
		return slices.Equal(keys(false), []string{"a/1", "a/4"})
	})
	same.As(t, []string{"a/1", "a/4"}, keys(true), "the local entries are")
	if got := <-changes; !got.Gap {
		t.Errorf("a caller that waits has %+v", got)
	}
}
