package disk_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/disk"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		roles[role]()
		unix.Exit(0) // os.Exit would let the race detector sleep for a second
	}
	goleak.VerifyTestMain(m)
}

// scratch returns the path of a store that is not there yet.
func scratch(t testing.TB) string { return filepath.Join(t.TempDir(), "cluster") }

func open(t testing.TB, dir string) *disk.Store {
	s := disk.New(dir)
	t.Cleanup(func() { s.Close() })
	return s
}

// TestOpeningAllocatesKeysOnly: opening a store allocates its keys, and little beside them.
func TestOpeningAllocatesKeysOnly(t *testing.T) {
	const count, each = 4000, 100
	dir := scratch(t)
	s := open(t, dir)
	for commit := range count / each {
		var txn cluster.Txn
		for i := range each {
			txn.Then = append(txn.Then, clustertest.Set(fmt.Sprintf("k%08d", i*count/each+commit), "v"))
		}
		clustertest.Commit(t, s, txn)
	}
	allocated := testing.AllocsPerRun(3, func() {
		s := disk.New(dir)
		clustertest.Get(t, s, "k00000000")
		s.Close()
	})
	if allocated > 1.5*count {
		t.Errorf("%v allocations for %d entries", allocated, count)
	}
}
