package agent

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/fingerprint"
	"taskapi/handlers"
)

// nodeMetrics returns what Nomad measures of a machine, under its names and labels. Of the machine's allocations this
// one alone is counted: the agents of the others count those.
func (s *wiring) nodeMetrics(ctx context.Context) []handlers.Metric {
	alloc, n := s.runner.Alloc(), fingerprint.Node(s.paths.Alloc, s.settings.TaskDrivers())
	labels := []handlers.Label{
		{Name: "node_id", Value: alloc.NodeID}, {Name: "datacenter", Value: datacenter},
		{Name: "node_class", Value: "none"}, {Name: "node_pool", Value: "default"}, {Name: "node_status", Value: n.Status},
		{Name: "node_scheduling_eligibility", Value: n.SchedulingEligibility}, {Name: "host", Value: thisNode().name},
	}
	all := append(allocatedMetrics(alloc, n.NodeResources, labels), countMetrics(alloc, labels)...)
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	if host, _, err := s.host.Stats(ctx); err == nil { // without it the rest is answered
		all = append(all, hostMetrics(host, labels)...)
	}
	return all
}

// allocatedMetrics returns the sums of what the tasks request, in MHz and MiB, and what the machine would have left.
func allocatedMetrics(alloc *api.Allocation, node *api.NodeResources, labels []handlers.Label) []handlers.Metric {
	if alloc.AllocatedResources == nil {
		return nil
	}
	var cpu, memory, most int64
	for _, task := range alloc.AllocatedResources.Tasks {
		cpu, memory = cpu+task.Cpu.CpuShares, memory+task.Memory.MemoryMB
		most += max(task.Memory.MemoryMB, task.Memory.MemoryMaxMB)
	}
	disk := alloc.AllocatedResources.Shared.DiskMB
	return []handlers.Metric{
		nomad(labels, float64(cpu), "allocated", "cpu"), nomad(labels, float64(memory), "allocated", "memory"),
		nomad(labels, float64(most), "allocated", "max_memory"), nomad(labels, float64(disk), "allocated", "disk"),
		nomad(labels, float64(node.Cpu.CpuShares-cpu), "unallocated", "cpu"),
		nomad(labels, float64(node.Memory.MemoryMB-memory), "unallocated", "memory"),
		nomad(labels, float64(node.Disk.DiskMB-disk), "unallocated", "disk"),
	}
}

// countMetrics counts the allocation and its tasks by their states.
func countMetrics(alloc *api.Allocation, labels []handlers.Label) []handlers.Metric {
	status := "terminal"
	switch alloc.ClientStatus {
	case api.AllocClientStatusPending, "":
		status = "pending"
	case api.AllocClientStatusRunning:
		status = "running"
	}
	var all []handlers.Metric
	for _, one := range []string{"blocked", "migrating", "pending", "running", "terminal"} {
		all = append(all, nomad(labels, number(one == status), "allocations", one))
	}
	tasks := map[string]float64{"pending": 0, "running": 0, "dead": 0}
	for _, task := range alloc.TaskStates {
		tasks[task.State]++
	}
	for _, state := range []string{"pending", "running", "dead"} {
		all = append(all, nomad(labels, tasks[state], "tasks", state))
	}
	return all
}

// hostMetrics returns the use of the machine's memory, disks and CPUs.
func hostMetrics(s *api.HostStats, labels []handlers.Label) []handlers.Metric {
	all := []handlers.Metric{
		nomad(labels, float64(s.Memory.Total), "host", "memory", "total"),
		nomad(labels, float64(s.Memory.Available), "host", "memory", "available"),
		nomad(labels, float64(s.Memory.Used), "host", "memory", "used"),
		nomad(labels, float64(s.Memory.Free), "host", "memory", "free"),
		nomad(labels, float64(s.Uptime), "uptime"),
	}
	for _, disk := range s.DiskStats {
		labels := with(labels, "disk", disk.Device)
		all = append(all,
			nomad(labels, float64(disk.Size), "host", "disk", "size"), nomad(labels, float64(disk.Used), "host", "disk", "used"),
			nomad(labels, float64(disk.Available), "host", "disk", "available"),
			nomad(labels, disk.UsedPercent, "host", "disk", "used_percent"),
			nomad(labels, disk.InodesUsedPercent, "host", "disk", "inodes_percent"))
	}
	for i, cpu := range handlers.CPUs(s) {
		labels := with(labels, "cpu", s.CPU[i].CPU)
		all = append(all,
			nomad(labels, cpu.TotalPercent, "host", "cpu", "total"),
			nomad(labels, cpu.TotalPercent, "host", "cpu", "total_percent"),
			nomad(labels, cpu.TotalTicks, "host", "cpu", "total_ticks"), nomad(labels, cpu.User, "host", "cpu", "user"),
			nomad(labels, cpu.System, "host", "cpu", "system"), nomad(labels, cpu.Idle, "host", "cpu", "idle"))
	}
	return all
}
