package disk_test

import (
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/disk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func opener(t testing.TB, dir string) clustertest.Opener {
	return func() cluster.Store {
		s := disk.New(dir)
		t.Cleanup(func() { s.Close() })
		return s
	}
}

func TestStore(t *testing.T) {
	clustertest.Run(t, func(t testing.TB) clustertest.Opener { return opener(t, filepath.Join(t.TempDir(), "cluster")) })
}
