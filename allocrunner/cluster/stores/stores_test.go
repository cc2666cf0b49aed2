package stores

import (
	"os"
	"path/filepath"
	"testing"

	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/internal/same"
)

// TestOpenTouchesNothing: every kind opens, makes no file before its first use, and keeps an entry.
func TestOpenTouchesNothing(t *testing.T) {
	for _, kind := range kinds {
		dir := filepath.Join(t.TempDir(), "cluster")
		store := Open(kind, dir)
		t.Cleanup(func() { store.Close() })
		same.Fails(t, same.Err(os.Lstat(dir)), kind, ": Open has made ", dir)
		clustertest.Put(t, store, "key", "value")
		if e := clustertest.Get(t, store, "key"); string(e.Value) != "value" {
			t.Errorf("%s: %q", kind, e.Value)
		}
	}
}
