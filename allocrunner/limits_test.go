package allocrunner

import (
	"math"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/proctree"
)

// TestLimitsOf: no number of megabytes wraps around to less, or to no bound.
func TestLimitsOf(t *testing.T) {
	const most = math.MaxInt64 >> 20 << 20
	for _, tc := range []struct {
		memory, max int
		want        proctree.Limits
	}{
		{100, 0, proctree.Limits{Memory: 100 << 20}},
		{100, 200, proctree.Limits{Memory: 200 << 20, MemoryLow: 100 << 20}},
		{100, -1, proctree.Limits{MemoryLow: 100 << 20}},
		{1<<53 + 1, 0, proctree.Limits{Memory: most}},
		{1 << 43, 0, proctree.Limits{Memory: most}},
		{1 << 44, math.MaxInt, proctree.Limits{Memory: most, MemoryLow: most}},
	} {
		if got := limitsOf(&api.Resources{MemoryMB: &tc.memory, MemoryMaxMB: &tc.max}); got != tc.want {
			t.Errorf("memory %d, memory_max %d: %+v, want %+v", tc.memory, tc.max, got, tc.want)
		}
	}
}
