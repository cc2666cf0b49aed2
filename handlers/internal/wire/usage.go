package wire

import "github.com/hashicorp/nomad/api"

// AllocUsage adds to what an allocation's tasks use what the SDK lacks.
type AllocUsage struct {
	*api.AllocResourceUsage
	ResourceUsage usage
	Tasks         map[string]taskUsage
}

type taskUsage struct {
	*api.TaskResourceUsage
	ResourceUsage usage
	Pids          map[string]usage
}

type usage struct {
	*api.ResourceUsage
	MemoryStats memoryStats
}

type memoryStats struct {
	*api.MemoryStats
	MappedFile uint64 // is not among Measured: for raw_exec, Nomad does not measure it either
}

// AllocUsageOf returns a usage with the fields that the SDK lacks.
func AllocUsageOf(u *api.AllocResourceUsage) *AllocUsage {
	tasks := make(map[string]taskUsage, len(u.Tasks))
	for name, task := range u.Tasks {
		pids := make(map[string]usage, len(task.Pids))
		for pid, one := range task.Pids {
			pids[pid] = usageOf(one)
		}
		tasks[name] = taskUsage{task, usageOf(task.ResourceUsage), pids}
	}
	return &AllocUsage{u, usageOf(u.ResourceUsage), tasks}
}

func usageOf(u *api.ResourceUsage) usage { return usage{u, memoryStats{MemoryStats: u.MemoryStats}} }
