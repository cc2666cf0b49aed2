package disk_test

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"taskapi/allocrunner/cluster/disk"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		roles[role]()
		os.Exit(0)
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
