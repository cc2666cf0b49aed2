package stats

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"
)

// MostPIDs is how many processes of a task an answer lists: those that use most. The sums include all processes.
const MostPIDs = 512

// The figures that are measured, in Nomad's words. The lists are shared and must not be changed.
var (
	processCPU    = []string{"System Mode", "User Mode", "Percent"}
	throttledCPU  = []string{"System Mode", "User Mode", "Throttled Periods", "Throttled Time", "Percent"}
	processMemory = []string{"RSS", "Swap"}
)

// noUsage returns the usage of a task that had no process at a time.
func noUsage(at time.Time) *api.TaskResourceUsage {
	return &api.TaskResourceUsage{
		ResourceUsage: &api.ResourceUsage{
			MemoryStats: &api.MemoryStats{Measured: processMemory}, CpuStats: &api.CpuStats{Measured: processCPU},
		},
		Timestamp: at.UnixNano(),
		Pids:      map[string]*api.ResourceUsage{},
	}
}

// add adds a running task to an allocation.
func add(sum *api.AllocResourceUsage, task string, u *api.TaskResourceUsage) {
	sum.Tasks[task] = u
	sum.Timestamp = max(sum.Timestamp, u.Timestamp)
	cpu, all := u.ResourceUsage.CpuStats, sum.ResourceUsage.CpuStats
	all.Measured = union(all.Measured, cpu.Measured)
	all.SystemMode += cpu.SystemMode
	all.UserMode += cpu.UserMode
	all.Percent += cpu.Percent
	all.TotalTicks += cpu.TotalTicks
	all.ThrottledPeriods += cpu.ThrottledPeriods
	all.ThrottledTime += cpu.ThrottledTime
	memory, whole := u.ResourceUsage.MemoryStats, sum.ResourceUsage.MemoryStats
	whole.Measured = union(whole.Measured, memory.Measured)
	for _, f := range memoryFigures {
		*f.of(whole) += *f.of(memory)
	}
}

// memoryFigures are the figures of a task's memory, with their names in Nomad's words and order.
var memoryFigures = []struct {
	name string
	of   func(*api.MemoryStats) *uint64
}{
	{"RSS", func(m *api.MemoryStats) *uint64 { return &m.RSS }},
	{"Cache", func(m *api.MemoryStats) *uint64 { return &m.Cache }},
	{"Swap", func(m *api.MemoryStats) *uint64 { return &m.Swap }},
	{"Usage", func(m *api.MemoryStats) *uint64 { return &m.Usage }},
	{"Max Usage", func(m *api.MemoryStats) *uint64 { return &m.MaxUsage }},
	{"Kernel Usage", func(m *api.MemoryStats) *uint64 { return &m.KernelUsage }},
	{"Kernel Max Usage", func(m *api.MemoryStats) *uint64 { return &m.KernelMaxUsage }},
}

// union returns the words of both lists, in the order of a.
func union(a, b []string) []string {
	return slices.Concat(a, slices.DeleteFunc(slices.Clone(b), func(s string) bool { return slices.Contains(a, s) }))
}

// taskUsage converts a task's measurement for the API.
func taskUsage(m measurement, at time.Time, mhz float64) *api.TaskResourceUsage {
	cpu := cpuStats(m.cpu, mhz)
	if t := m.throttled; t != nil {
		cpu.Measured, cpu.ThrottledPeriods, cpu.ThrottledTime = throttledCPU, t.periods, uint64(t.time)
	}
	u := &api.TaskResourceUsage{
		ResourceUsage: &api.ResourceUsage{MemoryStats: memoryStats(m.memory), CpuStats: cpu},
		Timestamp:     at.UnixNano(),
		Pids:          make(map[string]*api.ResourceUsage, min(len(m.procs), MostPIDs)),
	}
	if len(m.procs) > MostPIDs {
		slices.SortFunc(m.procs, func(a, b procUse) int {
			return cmp.Or(-cmp.Compare(a.use.percent(), b.use.percent()), -cmp.Compare(a.RSS, b.RSS),
				cmp.Compare(a.PID, b.PID))
		})
		m.procs = m.procs[:MostPIDs]
	}
	for _, p := range m.procs {
		u.Pids[strconv.Itoa(p.PID)] = &api.ResourceUsage{
			MemoryStats: &api.MemoryStats{RSS: p.RSS, Swap: p.swap, Measured: processMemory},
			CpuStats:    cpuStats(p.use, mhz),
		}
	}
	return u
}

func cpuStats(use cpuUse, mhz float64) *api.CpuStats {
	return &api.CpuStats{
		SystemMode: 100 * use.system, UserMode: 100 * use.user, Percent: use.percent(),
		TotalTicks: use.percent() / 100 * mhz, Measured: processCPU,
	}
}

// memoryStats returns the figures that were measured, and their names in Nomad's order.
func memoryStats(m memoryReading) *api.MemoryStats {
	stats := &api.MemoryStats{}
	for _, f := range memoryFigures {
		if value, ok := m[f.name]; ok {
			*f.of(stats) = value
			stats.Measured = append(stats.Measured, f.name)
		}
	}
	return stats
}
