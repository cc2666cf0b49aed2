package metrics

import (
	"maps"
	"math"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// alloc measures the allocation with its tasks and checks.
func (m *measurement) alloc(s Sources) {
	labels := with(nil, "alloc_id", s.Alloc.ID, "job", s.Alloc.JobID, "namespace", s.Alloc.Namespace,
		"task_group", s.Alloc.TaskGroup, "host", s.NodeName)
	m.add(ofAlloc(s.Alloc), labels)
	for _, name := range slices.Sorted(maps.Keys(s.Alloc.TaskStates)) {
		m.add(ofTask(s.Alloc.TaskStates[name]), with(labels, "task", name))
	}
	if asked := s.Alloc.AllocatedResources; asked != nil {
		for _, name := range slices.Sorted(maps.Keys(asked.Tasks)) {
			m.add(ofResources(asked.Tasks[name]), with(labels, "task", name))
		}
	}
	if s.Usage != nil {
		for _, name := range slices.Sorted(maps.Keys(s.Usage.Tasks)) {
			m.add(ofUsage(s.Usage.Tasks[name].ResourceUsage, len(s.Usage.Tasks[name].Pids)), with(labels, "task", name))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.Checks)) {
		r := s.Checks[id]
		m.add(ofCheck(r), with(labels, "check", r.Check, "check_id", id, "service", r.Service, "task", r.Task))
	}
}

func ofAlloc(a *api.Allocation) []metric {
	health := math.NaN()
	if a.DeploymentStatus != nil && a.DeploymentStatus.Healthy != nil {
		health = number(*a.DeploymentStatus.Healthy)
	}
	return []metric{
		oneOf("taskapi_allocation_status", "status", "status of the allocation", a.ClientStatus,
			"pending", "running", "complete", "failed"),
		gauge("taskapi_allocation_healthy", "1 when the deployment has decided on healthy, 0 on unhealthy", health),
	}
}

// ofTask returns the metrics of a task's state. As Nomad's, the counters count how often the task has come to a state.
func ofTask(s *api.TaskState) []metric {
	started, dead := !s.StartedAt.IsZero(), s.State == "dead"
	return []metric{
		oneOf("taskapi_task_state", "state", "state of the task", s.State, "pending", "running", "dead"),
		gauge("taskapi_task_start_time_seconds", "Unix time at which the running process started",
			where(s.State == "running" && started, float64(s.StartedAt.UnixMilli())/1000)),
		counter("nomad.client.allocs.running", "starts of the task, restarts included",
			float64(s.Restarts)+number(started && s.State != "pending")),
		counter("nomad.client.allocs.restart", "restarts of the task", s.Restarts),
		counter("nomad.client.allocs.complete", "1 when the task has succeeded", number(dead && !s.Failed)),
		counter("nomad.client.allocs.failed", "1 when the task has failed", number(dead && s.Failed)),
	}
}

// ofResources returns the metrics of what a task was given.
func ofResources(r *api.AllocatedTaskResources) []metric {
	cpu, memory, most := r.Cpu.CpuShares, r.Memory.MemoryMB<<20, r.Memory.MemoryMaxMB<<20
	return []metric{
		gauge("nomad.client.allocs.cpu.allocated", "`cpu` of the task, or all of its `cores`, in MHz", where(cpu > 0, cpu)),
		gauge("nomad.client.allocs.memory.allocated", "`memory` of the task, in bytes", where(memory > 0, memory)),
		gauge("nomad.client.allocs.memory.max_allocated", "`memory_max` of the task, in bytes", where(most > 0, most)),
	}
}

// ofUsage returns the metrics of what a task uses, as far as it is measured.
func ofUsage(u *api.ResourceUsage, processes int) []metric {
	c, m := u.CpuStats, u.MemoryStats
	cpu := func(value uint64) float64 { return where(slices.Contains(c.Measured, "Throttled Periods"), value) }
	memory := func(name string, value uint64) float64 { return where(slices.Contains(m.Measured, name), value) }
	return []metric{
		gauge("nomad.client.allocs.cpu.total_percent", "use of CPU by the task, in percent of one core", c.Percent),
		gauge("nomad.client.allocs.cpu.user", "use of CPU outside the kernel, in percent of one core", c.UserMode),
		gauge("nomad.client.allocs.cpu.system", "use of CPU in the kernel, in percent of one core", c.SystemMode),
		gauge("nomad.client.allocs.cpu.total_ticks", "use of CPU by the task, in MHz", c.TotalTicks),
		gauge("nomad.client.allocs.cpu.throttled_periods", "periods in which the task's cgroup was throttled",
			cpu(c.ThrottledPeriods)),
		gauge("nomad.client.allocs.cpu.throttled_time", "time for which the task's cgroup was throttled, in nanoseconds",
			cpu(c.ThrottledTime)),
		gauge("nomad.client.allocs.memory.rss", "resident memory of the task, in bytes", memory("RSS", m.RSS)),
		gauge("nomad.client.allocs.memory.cache", "page cache of the task, in bytes", memory("Cache", m.Cache)),
		gauge("nomad.client.allocs.memory.swap", "swapped memory of the task, in bytes", memory("Swap", m.Swap)),
		gauge("nomad.client.allocs.memory.usage", "memory of the task's cgroup, in bytes", memory("Usage", m.Usage)),
		gauge("nomad.client.allocs.memory.max_usage", "the highest memory usage of the task's cgroup so far, in bytes",
			memory("Max Usage", m.MaxUsage)),
		gauge("nomad.client.allocs.memory.kernel_usage", "the kernel's memory for the task's cgroup, in bytes",
			memory("Kernel Usage", m.KernelUsage)),
		gauge("nomad.client.allocs.memory.kernel_max_usage",
			"the highest kernel memory of the task's cgroup so far, in bytes", memory("Kernel Max Usage", m.KernelMaxUsage)),
		gauge("taskapi_task_processes", "processes of the task, at most 512", processes),
	}
}

func ofCheck(r api.AllocCheckStatus) []metric {
	return []metric{oneOf("taskapi_check_status", "status", "status of the check's latest result", r.Status,
		"success", "failure", "pending")}
}
