package stores_test

import (
	"os"
	"path/filepath"
	"testing"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/stores"
)

// TestOpenTouchesNothing: every kind opens, makes no file before its first use, and keeps an entry.
func TestOpenTouchesNothing(t *testing.T) {
	for kind := range stores.Memory + 1 {
		dir := filepath.Join(t.TempDir(), "cluster")
		store := stores.Open(kind, dir)
		t.Cleanup(func() { store.Close() })
		if _, err := os.Lstat(dir); err == nil {
			t.Errorf("kind %d: Open has made %s", kind, dir)
		}
		if _, err := store.Commit(t.Context(), cluster.Txn{Then: []cluster.Operation{{Key: "key", Value: []byte("value")}}}); err != nil {
			t.Errorf("kind %d: %v", kind, err)
		}
		if e, _, err := store.Get(t.Context(), "key"); string(e.Value) != "value" || err != nil {
			t.Errorf("kind %d: %q, %v", kind, e.Value, err)
		}
	}
}
