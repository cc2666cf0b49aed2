package metrics

import (
	"maps"
	"math"
	"slices"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/scrape"
)

// measureAlloc measures the allocation with its tasks and checks.
func measureAlloc(s Sources) []scrape.Metric {
	labels := with(nil, "alloc_id", s.Alloc.ID, "job", s.Alloc.JobID, "namespace", s.Alloc.Namespace, "task_group", s.Alloc.TaskGroup,
		"host", s.NodeName)
	all := measure(allocMetrics, s.Alloc, labels...)
	all = append(all, measureTasks(taskMetrics, s.Alloc.TaskStates, labels)...)
	if asked := s.Alloc.AllocatedResources; asked != nil {
		all = append(all, measureTasks(resourceMetrics, asked.Tasks, labels)...)
	}
	if s.Usage != nil {
		all = append(all, measureTasks(usageMetrics, s.Usage.Tasks, labels)...)
	}
	for _, id := range slices.Sorted(maps.Keys(s.Checks)) {
		r := s.Checks[id]
		all = append(all, measure(checkMetrics, r, with(labels, "check", r.Check, "check_id", id, "service", r.Service, "task", r.Task)...)...)
	}
	return all
}

func measureTasks[T any](rows []metric[T], tasks map[string]T, labels []scrape.Label) (all []scrape.Metric) {
	for _, name := range slices.Sorted(maps.Keys(tasks)) {
		all = append(all, measure(rows, tasks[name], with(labels, "task", name)...)...)
	}
	return all
}

// What rows of tasks are measured from.
type (
	state     = *api.TaskState
	resources = *api.AllocatedTaskResources
	usage     = *api.TaskResourceUsage
)

var allocMetrics = []metric[*api.Allocation]{
	oneOf("taskapi_allocation_status", "status", "status of the allocation", func(a *api.Allocation) string { return a.ClientStatus },
		api.AllocClientStatusPending, api.AllocClientStatusRunning, api.AllocClientStatusComplete, api.AllocClientStatusFailed),
	gauge("taskapi_allocation_healthy", "1 when the deployment has found the allocation healthy, 0 when unhealthy", func(a *api.Allocation) float64 {
		if a.DeploymentStatus == nil || a.DeploymentStatus.Healthy == nil {
			return math.NaN()
		}
		return number(*a.DeploymentStatus.Healthy)
	}),
}

// taskMetrics are those of a task's state. As Nomad's, the counters count how often a task has come to a state.
var taskMetrics = []metric[state]{
	oneOf("taskapi_task_state", "state", "state of the task", func(s state) string { return s.State }, "pending", "running", "dead"),
	gauge("taskapi_task_start_time_seconds", "Unix time at which the running process started", func(s state) float64 {
		return where(s.State == "running" && !s.StartedAt.IsZero(), float64(s.StartedAt.UnixMilli())/1000)
	}),
	counter("nomad.client.allocs.running", "starts of the task, restarts included", func(s state) float64 {
		return float64(s.Restarts) + number(s.State != "pending" && !s.StartedAt.IsZero())
	}),
	counter("nomad.client.allocs.restart", "restarts of the task", func(s state) uint64 { return s.Restarts }),
	counter("nomad.client.allocs.complete", "1 when the task has succeeded", func(s state) float64 { return number(s.State == "dead" && !s.Failed) }),
	counter("nomad.client.allocs.failed", "1 when the task has failed", func(s state) float64 { return number(s.State == "dead" && s.Failed) }),
}

// resourceMetrics are what the job asks for. taskapi enforces none of it.
var resourceMetrics = []metric[resources]{
	gauge("nomad.client.allocs.cpu.allocated", "`cpu` of the task, in MHz", func(r resources) float64 { return where(r.Cpu.CpuShares > 0, r.Cpu.CpuShares) }),
	gauge("nomad.client.allocs.memory.allocated", "`memory` of the task, in bytes",
		func(r resources) float64 { return where(r.Memory.MemoryMB > 0, r.Memory.MemoryMB<<20) }),
	gauge("nomad.client.allocs.memory.max_allocated", "`memory_max` of the task, in bytes",
		func(r resources) float64 { return where(r.Memory.MemoryMaxMB > 0, r.Memory.MemoryMaxMB<<20) }),
}

// usageMetrics are what a task uses.
var usageMetrics = []metric[usage]{
	gauge("nomad.client.allocs.cpu.total_percent", "use of CPU, in percent of one core", func(u usage) float64 { return u.ResourceUsage.CpuStats.Percent }),
	gauge("nomad.client.allocs.cpu.user", "the processes' part of that", func(u usage) float64 { return u.ResourceUsage.CpuStats.UserMode }),
	gauge("nomad.client.allocs.cpu.system", "the kernel's part of that", func(u usage) float64 { return u.ResourceUsage.CpuStats.SystemMode }),
	gauge("nomad.client.allocs.cpu.total_ticks", "use of CPU, in MHz", func(u usage) float64 { return u.ResourceUsage.CpuStats.TotalTicks }),
	throttled("periods", "periods in which the cgroup was throttled", func(c *api.CpuStats) uint64 { return c.ThrottledPeriods }),
	throttled("time", "nanoseconds for which the cgroup was throttled", func(c *api.CpuStats) uint64 { return c.ThrottledTime }),
	memory("rss", "RSS", "resident memory", func(m *api.MemoryStats) uint64 { return m.RSS }),
	memory("cache", "Cache", "page cache", func(m *api.MemoryStats) uint64 { return m.Cache }),
	memory("swap", "Swap", "swapped memory", func(m *api.MemoryStats) uint64 { return m.Swap }),
	memory("usage", "Usage", "memory of the cgroup", func(m *api.MemoryStats) uint64 { return m.Usage }),
	memory("max_usage", "Max Usage", "the most memory that the cgroup has had", func(m *api.MemoryStats) uint64 { return m.MaxUsage }),
	memory("kernel_usage", "Kernel Usage", "the kernel's memory for the cgroup", func(m *api.MemoryStats) uint64 { return m.KernelUsage }),
	memory("kernel_max_usage", "Kernel Max Usage", "the most memory that the kernel has had for the cgroup",
		func(m *api.MemoryStats) uint64 { return m.KernelMaxUsage }),
	gauge("taskapi_task_processes", "processes of the task, at most 512", func(u usage) int { return len(u.Pids) }),
}

// memory returns the row of a figure that is known when measured is in the list of what was measured.
func memory(name, measured, doc string, value func(*api.MemoryStats) uint64) metric[usage] {
	return gauge("nomad.client.allocs.memory."+name, doc+", in bytes", func(u usage) float64 {
		m := u.ResourceUsage.MemoryStats
		return where(slices.Contains(m.Measured, measured), value(m))
	})
}

// throttled returns the row of a figure that is known in a cgroup with the cpu controller.
func throttled(name, doc string, value func(*api.CpuStats) uint64) metric[usage] {
	return gauge("nomad.client.allocs.cpu.throttled_"+name, doc, func(u usage) float64 {
		c := u.ResourceUsage.CpuStats
		return where(slices.Contains(c.Measured, "Throttled Periods"), value(c))
	})
}

var checkMetrics = []metric[api.AllocCheckStatus]{
	oneOf("taskapi_check_status", "status", "status of the check's latest result", func(r api.AllocCheckStatus) string { return r.Status },
		"success", "failure", "pending"),
}
