package stores

import (
	"os"
	"path/filepath"
	"testing"

	"taskapi/allocrunner/cluster"
)

// TestOpenTouchesNothing: every kind opens, makes no file before its first use, and keeps an entry.
func TestOpenTouchesNothing(t *testing.T) {
	for n, row := range kinds {
		kind := Kind(n)
		dir := filepath.Join(t.TempDir(), "cluster")
		store := Open(kind, dir)
		t.Cleanup(func() { store.Close() })
		if _, err := os.Lstat(dir); err == nil {
			t.Errorf("%s: Open has made %s", row.name, dir)
		}
		if _, err := store.Commit(t.Context(), cluster.Txn{Then: []cluster.Operation{{Key: "key", Value: []byte("value")}}}); err != nil {
			t.Errorf("%s: %v", row.name, err)
		}
		if e, _, err := store.Get(t.Context(), "key"); string(e.Value) != "value" || err != nil {
			t.Errorf("%s: %q, %v", row.name, e.Value, err)
		}
	}
}
