package metrics

import (
	"math"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/node"
)

// node measures the machine. Of the machine's allocations this one alone is counted: the agents of the others count
// those.
func (m *measurement) node(s Sources) {
	labels := with(nil, "node_id", s.Alloc.NodeID, "datacenter", s.Datacenter, "node_class", "none",
		"node_pool", "default",
		"node_status", s.Node.Status, "node_scheduling_eligibility", s.Node.SchedulingEligibility, "host", s.NodeName)
	m.add(ofShare(s.Alloc, s.Node.NodeResources), labels)
	if s.Host == nil {
		return
	}
	m.add(ofHost(s.Host), labels)
	for _, d := range s.Host.DiskStats {
		m.add(ofDisk(d), with(labels, "disk", d.Device))
	}
	for _, c := range node.CPUs(s.Host) {
		m.add(ofCPU(c), with(labels, "cpu", c.CPU))
	}
}

// ofShare returns the metrics of the allocation's part of the machine, in MHz and MiB, and of the rest. They are
// missing while the allocation has no resources yet.
func ofShare(a *api.Allocation, node *api.NodeResources) (all []metric) {
	cpu, memory, most, disk := 0.0, 0.0, 0.0, math.NaN()
	if asked := a.AllocatedResources; asked == nil {
		cpu, memory, most = math.NaN(), math.NaN(), math.NaN()
	} else {
		for _, task := range asked.Tasks {
			cpu, memory = cpu+float64(task.Cpu.CpuShares), memory+float64(task.Memory.MemoryMB)
			most += float64(max(task.Memory.MemoryMB, task.Memory.MemoryMaxMB))
		}
		disk = float64(asked.Shared.DiskMB)
	}
	all = []metric{
		gauge("nomad.client.allocated.cpu", "sum of the tasks' `cpu`, in MHz", cpu),
		gauge("nomad.client.allocated.memory", "sum of the tasks' `memory`, in MiB", memory),
		gauge("nomad.client.allocated.max_memory", "sum of the tasks' `memory_max` or `memory`, in MiB", most),
		gauge("nomad.client.allocated.disk", "the group's `ephemeral_disk`, in MiB", disk),
		gauge("nomad.client.unallocated.cpu", "the rest of the machine's CPUs, in MHz", float64(node.Cpu.CpuShares)-cpu),
		gauge("nomad.client.unallocated.memory", "the rest of the machine's memory, in MiB",
			float64(node.Memory.MemoryMB)-memory),
		gauge("nomad.client.unallocated.disk", "the rest of the machine's disk, in MiB", float64(node.Disk.DiskMB)-disk),
	}
	status, tasks := "terminal", map[string]int{}
	switch a.ClientStatus {
	case api.AllocClientStatusPending, "":
		status = "pending"
	case api.AllocClientStatusRunning:
		status = "running"
	}
	for _, one := range []string{"blocked", "migrating", "pending", "running", "terminal"} {
		all = append(all, gauge("nomad.client.allocations."+one, "1 when the allocation is "+one, number(one == status)))
	}
	for _, task := range a.TaskStates {
		tasks[task.State]++
	}
	for _, state := range []string{"pending", "running", "dead"} {
		all = append(all, gauge("nomad.client.tasks."+state, "tasks of the allocation that are "+state, tasks[state]))
	}
	return all
}

func ofHost(h *api.HostStats) []metric {
	return []metric{
		gauge("nomad.client.host.memory.total", "the machine's memory, in bytes", h.Memory.Total),
		gauge("nomad.client.host.memory.available", "memory that programs can have, in bytes", h.Memory.Available),
		gauge("nomad.client.host.memory.used", "used memory of the machine, in bytes", h.Memory.Used),
		gauge("nomad.client.host.memory.free", "memory that not even the page cache uses, in bytes", h.Memory.Free),
		gauge("nomad.client.uptime", "seconds since the machine's start", h.Uptime),
	}
}

func ofDisk(d *api.HostDiskStats) []metric {
	return []metric{
		gauge("nomad.client.host.disk.size", "size of the allocation's file system, in bytes", d.Size),
		gauge("nomad.client.host.disk.used", "used bytes of the allocation's file system", d.Used),
		gauge("nomad.client.host.disk.available", "available bytes of the allocation's file system", d.Available),
		gauge("nomad.client.host.disk.used_percent", "used bytes of the allocation's file system, in percent", d.UsedPercent),
		gauge("nomad.client.host.disk.inodes_percent", "used inodes of the allocation's file system, in percent",
			d.InodesUsedPercent),
	}
}

func ofCPU(c node.HostCPU) []metric {
	return []metric{
		gauge("nomad.client.host.cpu.total", "use of the CPU, in percent", c.TotalPercent),
		gauge("nomad.client.host.cpu.total_percent", "use of the CPU, in percent", c.TotalPercent),
		gauge("nomad.client.host.cpu.total_ticks", "use of the CPU, in MHz", c.TotalTicks),
		gauge("nomad.client.host.cpu.user", "use of the CPU outside the kernel, in percent", c.User),
		gauge("nomad.client.host.cpu.system", "use of the CPU in the kernel, in percent", c.System),
		gauge("nomad.client.host.cpu.idle", "idle time of the CPU, in percent", c.Idle),
	}
}
