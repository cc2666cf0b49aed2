package memory_test

import (
	"testing"

	"go.uber.org/goleak"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	clustertest.Run(t, func(testing.TB) clustertest.Opener {
		s := memory.New()
		return func() cluster.Store { return s.Open() }
	})
}
