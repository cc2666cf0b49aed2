package output_test

import (
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/output"
)

// TestGranted: memory_max is the limit where there is one, and -1 is none.
func TestGranted(t *testing.T) {
	for _, c := range []struct {
		memory, most, want int64
		text               string
	}{{64, 0, 64 << 20, "1 B/64.0 MiB"}, {64, 128, 128 << 20, "1 B/128 MiB"}, {64, -1, 0, "1 B"}, {0, 0, 0, "1 B"},
		{1 << 62, 0, (1<<63 - 1) >> 20 << 20, "1 B/8.00 EiB"}} {
		a := &api.Allocation{AllocatedResources: &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{"t": {
			Cpu:    api.AllocatedCpuResources{CpuShares: 100},
			Memory: api.AllocatedMemoryResources{MemoryMB: c.memory, MemoryMaxMB: c.most},
		}}}}
		megahertz, bytes := output.Granted(a, "t")
		if text := output.Of("1 B", bytes); megahertz != 100 || bytes != c.want || text != c.text {
			t.Errorf("memory %d, memory_max %d: %d, %q, want %d, %q", c.memory, c.most, bytes, text, c.want, c.text)
		}
	}
	if _, bytes := output.Granted(nil, "t"); bytes != 0 {
		t.Error(bytes)
	}
}
