package node

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
)

// hostStats answers GET /v1/client/stats?node_id=, of this machine alone. As Nomad's, which wants node:read, it is no
// task's to ask.
func (h *handlers) hostStats(ctx context.Context, r *route.Request) (route.Answer, error) {
	if h.Host == nil {
		return route.Answer{}, apierror.New(apierror.NoRoute)
	}
	if err := h.checkNodeID(r.Query().Get("node_id")); err != nil {
		return route.Answer{}, err
	}
	usage, at, err := h.Host(ctx)
	if err != nil {
		return route.Answer{}, fmt.Errorf("measure the machine: %w", err)
	}
	return route.Respond(wireHostStats{usage, CPUs(usage), at.UnixNano()})
}

// wireHostStats adds what the SDK lacks.
type wireHostStats struct {
	*api.HostStats
	CPU       []HostCPU
	Timestamp int64
}

// HostCPU adds the sums to the use of one CPU.
type HostCPU struct {
	*api.HostCPUStats
	TotalPercent float64
	TotalTicks   float64 // MHz
}

// CPUs returns the use of each CPU.
func CPUs(s *api.HostStats) []HostCPU {
	cpus, busy := make([]HostCPU, len(s.CPU)), 0.0
	for i, cpu := range s.CPU {
		cpus[i] = HostCPU{HostCPUStats: cpu, TotalPercent: 100 - cpu.Idle}
		busy += cpus[i].TotalPercent
	}
	for i := range cpus {
		if busy > 0 { // each CPU's share of the ticks of all
			cpus[i].TotalTicks = s.CPUTicksConsumed * cpus[i].TotalPercent / busy
		}
	}
	return cpus
}
