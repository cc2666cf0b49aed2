package stats

import (
	"time"

	"taskapi/internal/proc"
)

// cgroup1 are the cgroups of version 1 that a process is in, by their directories, which are empty for none: one for each controller, for
// they need not be the same.
type cgroup1 struct{ cpuacct, cpuDir, memoryDir string }

// cpu reads the times of cpuacct, in nanoseconds, and cpu.stat, where throttled_time is in nanoseconds, too.
func (g cgroup1) cpu() (cpuReading, error) {
	user, err := readNumber(g.cpuacct, "cpuacct.usage_user")
	if err != nil {
		return cpuReading{}, err
	}
	system, err := readNumber(g.cpuacct, "cpuacct.usage_sys")
	if err != nil {
		return cpuReading{}, err
	}
	r := cpuReading{CPUTime: proc.CPUTime{User: time.Duration(user), System: time.Duration(system)}}
	if g.cpuDir == "" {
		return r, nil
	}
	if stat, err := readPairs(g.cpuDir, "cpu.stat"); err == nil {
		if periods, ok := stat["nr_throttled"]; ok {
			r.throttled = &throttling{periods, time.Duration(stat["throttled_time"])}
		}
	}
	return r, nil
}

// memory reads the memory controller's files; the names with total_ count what is in the cgroups below, too.
func (g cgroup1) memory() (memoryReading, error) {
	usage, err := readNumber(g.memoryDir, "memory.usage_in_bytes")
	if err != nil {
		return memoryReading{}, err
	}
	stat, err := readPairs(g.memoryDir, "memory.stat")
	if err != nil {
		return memoryReading{}, err
	}
	return memoryReading{
		usage: &usage, maxUsage: perhaps(g.memoryDir, "memory.max_usage_in_bytes"),
		rss: of(stat, "total_rss"), cache: of(stat, "total_cache"), swap: of(stat, "total_swap"),
		kernel: perhaps(g.memoryDir, "memory.kmem.usage_in_bytes"), maxKernel: perhaps(g.memoryDir, "memory.kmem.max_usage_in_bytes"),
	}, nil
}
