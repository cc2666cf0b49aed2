package metrics

import (
	"math"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/node"
	"taskapi/handlers/scrape"
)

// measureNode measures the machine. Of the machine's allocations this one alone is counted: the agents of the others
// count those.
func measureNode(s Sources) []scrape.Metric {
	labels := with(nil, "node_id", s.Alloc.NodeID, "datacenter", s.Datacenter, "node_class", "none", "node_pool", "default",
		"node_status", s.Node.Status, "node_scheduling_eligibility", s.Node.SchedulingEligibility, "host", s.NodeName)
	all := measure(shareMetrics, newShare(s.Alloc, s.Node.NodeResources), labels...)
	if s.Host == nil {
		return all
	}
	all = append(all, measure(hostMetrics, s.Host, labels...)...)
	for _, d := range s.Host.DiskStats {
		all = append(all, measure(diskMetrics, d, with(labels, "disk", d.Device)...)...)
	}
	for _, c := range node.CPUs(s.Host) {
		all = append(all, measure(cpuMetrics, c, with(labels, "cpu", c.CPU)...)...)
	}
	return all
}

// What rows of the machine are measured from.
type (
	host = *api.HostStats
	disk = *api.HostDiskStats
	cpu  = node.HostCPU
)

// share is the allocation's part of the machine, in MHz and MiB, and what is left. While the allocation has no
// resources, they are not a number.
type share struct {
	status                        string
	tasks                         map[string]int // by state
	cpu, memory, maxMemory, disk  float64
	cpuLeft, memoryLeft, diskLeft float64
}

func newShare(alloc *api.Allocation, node *api.NodeResources) share {
	s := share{status: "terminal", tasks: map[string]int{}}
	switch alloc.ClientStatus {
	case api.AllocClientStatusPending, "":
		s.status = "pending"
	case api.AllocClientStatusRunning:
		s.status = "running"
	}
	for _, task := range alloc.TaskStates {
		s.tasks[task.State]++
	}
	if asked := alloc.AllocatedResources; asked == nil {
		s.cpu, s.memory, s.maxMemory, s.disk = math.NaN(), math.NaN(), math.NaN(), math.NaN()
	} else {
		for _, task := range asked.Tasks {
			s.cpu, s.memory = s.cpu+float64(task.Cpu.CpuShares), s.memory+float64(task.Memory.MemoryMB)
			s.maxMemory += float64(max(task.Memory.MemoryMB, task.Memory.MemoryMaxMB))
		}
		s.disk = float64(asked.Shared.DiskMB)
	}
	s.cpuLeft, s.memoryLeft = float64(node.Cpu.CpuShares)-s.cpu, float64(node.Memory.MemoryMB)-s.memory
	s.diskLeft = float64(node.Disk.DiskMB) - s.disk
	return s
}

var shareMetrics = []metric[share]{
	gauge("nomad.client.allocated.cpu", "sum of the tasks' `cpu`, in MHz", func(s share) float64 { return s.cpu }),
	gauge("nomad.client.allocated.memory", "sum of the tasks' `memory`, in MiB", func(s share) float64 { return s.memory }),
	gauge("nomad.client.allocated.max_memory", "sum of the tasks' `memory_max` or `memory`, in MiB", func(s share) float64 { return s.maxMemory }),
	gauge("nomad.client.allocated.disk", "the group's `ephemeral_disk`, in MiB", func(s share) float64 { return s.disk }),
	gauge("nomad.client.unallocated.cpu", "the rest of the machine's CPUs, in MHz", func(s share) float64 { return s.cpuLeft }),
	gauge("nomad.client.unallocated.memory", "the rest of the machine's memory, in MiB", func(s share) float64 { return s.memoryLeft }),
	gauge("nomad.client.unallocated.disk", "the rest of the machine's disk, in MiB", func(s share) float64 { return s.diskLeft }),
	allocations("blocked"), allocations("migrating"), allocations("pending"), allocations("running"), allocations("terminal"),
	tasks("pending"), tasks("running"), tasks("dead"),
}

func allocations(status string) metric[share] {
	return gauge("nomad.client.allocations."+status, "1 when the allocation is "+status, func(s share) float64 { return number(s.status == status) })
}

func tasks(state string) metric[share] {
	return gauge("nomad.client.tasks."+state, "tasks of the allocation that are "+state, func(s share) int { return s.tasks[state] })
}

var hostMetrics = []metric[host]{
	gauge("nomad.client.host.memory.total", "the machine's memory, in bytes", func(h host) uint64 { return h.Memory.Total }),
	gauge("nomad.client.host.memory.available", "memory that programs can still have, in bytes", func(h host) uint64 { return h.Memory.Available }),
	gauge("nomad.client.host.memory.used", "used memory, in bytes", func(h host) uint64 { return h.Memory.Used }),
	gauge("nomad.client.host.memory.free", "memory that not even the page cache uses, in bytes", func(h host) uint64 { return h.Memory.Free }),
	gauge("nomad.client.uptime", "seconds since the machine's start", func(h host) uint64 { return h.Uptime }),
}

var diskMetrics = []metric[disk]{
	gauge("nomad.client.host.disk.size", "size of the allocation's file system, in bytes", func(d disk) uint64 { return d.Size }),
	gauge("nomad.client.host.disk.used", "used bytes", func(d disk) uint64 { return d.Used }),
	gauge("nomad.client.host.disk.available", "available bytes", func(d disk) uint64 { return d.Available }),
	gauge("nomad.client.host.disk.used_percent", "used bytes, in percent", func(d disk) float64 { return d.UsedPercent }),
	gauge("nomad.client.host.disk.inodes_percent", "used inodes, in percent", func(d disk) float64 { return d.InodesUsedPercent }),
}

var cpuMetrics = []metric[cpu]{
	gauge("nomad.client.host.cpu.total", "use of the CPU, in percent", func(c cpu) float64 { return c.TotalPercent }),
	gauge("nomad.client.host.cpu.total_percent", "the same", func(c cpu) float64 { return c.TotalPercent }),
	gauge("nomad.client.host.cpu.total_ticks", "use of the CPU, in MHz", func(c cpu) float64 { return c.TotalTicks }),
	gauge("nomad.client.host.cpu.user", "the processes' part of it, in percent", func(c cpu) float64 { return c.User }),
	gauge("nomad.client.host.cpu.system", "the kernel's part of it, in percent", func(c cpu) float64 { return c.System }),
	gauge("nomad.client.host.cpu.idle", "idle time, in percent", func(c cpu) float64 { return c.Idle }),
}
