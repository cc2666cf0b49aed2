package agent

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/disk"
	"taskapi/handlers/apierror"
	"taskapi/internal/must"
)

// TestMetadataThatCannotBeKept: an operator whose data directory takes no file, or holds a damaged entry, reads which.
func TestMetadataThatCannotBeKept(t *testing.T) {
	value := "value"
	changes := map[string]*string{"key": &value}
	in := func(dataDir string) machine {
		shared := disk.New(filepath.Join(dataDir, "cluster"))
		t.Cleanup(func() { shared.Close() })
		return newMachine(filepath.Join(dataDir, "allocs", "id"), shared, Settings{})
	}
	gone, damaged := in(filepath.Join(t.TempDir(), "gone")), in(t.TempDir())
	key := damaged.metadata.Key
	must.Get(damaged.metadata.Store.Commit(t.Context(),
		cluster.Txn{Then: []cluster.Operation{{Key: key, Value: []byte("{")}}}))(t)
	_, written := gone.SetMetadata(changes)
	_, read := damaged.Metadata()
	for what, err := range map[string]error{"no such file or directory": written, key + " holds no JSON": read} {
		known, ok := errors.AsType[*apierror.Error](err)
		if !ok || known.Kind != apierror.Unavailable || !strings.Contains(known.Message, what) {
			t.Errorf("%v, want 503 and %q", err, what)
		}
	}
	if _, err := gone.SetMetadata(nil); err == nil || strings.Contains(err.Error(), "lock") {
		t.Errorf("no changes: %v, want the request's fault", err)
	}
}
