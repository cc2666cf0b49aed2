package stats

import (
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"taskapi/internal/proc"
)

// cpu2 reads cpu.stat of a cgroup of version 2: user_usec, system_usec and, with the controller of CPUs, nr_throttled
// and throttled_usec.
func cpu2(dir string) (cpuReading, error) {
	stat, err := proc.Numbers(filepath.Join(dir, "cpu.stat"))
	if err != nil {
		return cpuReading{}, err
	}
	if of(stat, "user_usec") == nil || of(stat, "system_usec") == nil {
		return cpuReading{}, fmt.Errorf("%s/cpu.stat has no times", dir)
	}
	microseconds := func(name string) time.Duration { return time.Duration(stat[name]) * time.Microsecond }
	r := cpuReading{CPUTime: proc.CPUTime{User: microseconds("user_usec"), System: microseconds("system_usec")}}
	if periods, ok := stat["nr_throttled"]; ok {
		r.throttled = &throttling{periods, microseconds("throttled_usec")}
	}
	return r, nil
}

// memory2 reads memory.current, memory.stat and, where they exist, memory.swap.current and memory.peak (Linux 5.19) of
// a cgroup of version 2.
func memory2(dir string) (memoryReading, error) {
	usage, stat, err := usageAndStat(dir, "memory.current")
	return memoryReading{
		usage: &usage, rss: of(stat, "anon"), cache: of(stat, "file"), kernel: of(stat, "kernel"),
		swap: optional(dir, "memory.swap.current"), maxUsage: optional(dir, "memory.peak"),
	}, err
}

// cpu1 reads the times of a cgroup of version 1 from its directory of the controller cpuacct, and how it was throttled
// from that of the controller cpu. The latter may be empty. All times are in nanoseconds.
func cpu1(cpuacct, cpu string) (cpuReading, error) {
	user, err := proc.Number(filepath.Join(cpuacct, "cpuacct.usage_user"))
	if err != nil {
		return cpuReading{}, err
	}
	system, err := proc.Number(filepath.Join(cpuacct, "cpuacct.usage_sys"))
	r := cpuReading{CPUTime: proc.CPUTime{User: time.Duration(user), System: time.Duration(system)}}
	if cpu != "" {
		stat, _ := proc.Numbers(filepath.Join(cpu, "cpu.stat")) // without it nothing is known of throttling
		if periods, ok := stat["nr_throttled"]; ok {
			r.throttled = &throttling{periods, time.Duration(stat["throttled_time"])}
		}
	}
	return r, err
}

// memory1 reads the memory of a cgroup of version 1. The names with total_ count what is in the cgroups below, too.
func memory1(dir string) (memoryReading, error) {
	usage, stat, err := usageAndStat(dir, "memory.usage_in_bytes")
	return memoryReading{
		usage: &usage, maxUsage: optional(dir, "memory.max_usage_in_bytes"),
		rss: of(stat, "total_rss"), cache: of(stat, "total_cache"), swap: of(stat, "total_swap"),
		kernel: optional(dir, "memory.kmem.usage_in_bytes"), maxKernel: optional(dir, "memory.kmem.max_usage_in_bytes"),
	}, err
}

func usageAndStat(dir, name string) (usage uint64, stat map[string]uint64, err error) {
	if usage, err = proc.Number(filepath.Join(dir, name)); err != nil {
		return 0, nil, err
	}
	stat, err = proc.Numbers(filepath.Join(dir, "memory.stat"))
	return usage, stat, err
}

// optional returns the number of a file; nil when the file is missing.
func optional(dir, name string) *uint64 {
	n, err := proc.Number(filepath.Join(dir, name))
	if err != nil {
		return nil
	}
	return &n
}

// of returns a number; nil when it is missing.
func of(numbers map[string]uint64, name string) *uint64 {
	n, ok := numbers[name]
	if !ok {
		return nil
	}
	return &n
}

// mounts are read once: a machine has those of cgroups from its start.
var mounts = sync.OnceValue(proc.Mounts)

// ownGroups finds the cgroups of tasks that are not the supervisor's, which starts the tasks: somebody has put the task
// there.
type ownGroups struct{ supervisor map[string]string }

// dir returns the directory of the task's cgroup for a controller of version 1, or for version 2 with an empty name. It
// is empty when the cgroup is the supervisor's, or the root.
func (g ownGroups) dir(controller string, paths map[string]string) string {
	path, ok := paths[controller]
	if !ok || path == g.supervisor[controller] {
		return ""
	}
	mounted, below := proc.FindCgroup(mounts(), controller, path)
	if below == "" {
		return ""
	}
	return filepath.Join(mounted, below)
}
