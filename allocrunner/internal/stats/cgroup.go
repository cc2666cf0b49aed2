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
	_, hasUser := stat["user_usec"]
	if _, hasSystem := stat["system_usec"]; !hasUser || !hasSystem {
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
	return readMemory(dir, map[string]string{
		"Usage": "memory.current", "Swap": "memory.swap.current", "Max Usage": "memory.peak",
	}, map[string]string{"RSS": "anon", "Cache": "file", "Kernel Usage": "kernel"})
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
	return readMemory(dir, map[string]string{
		"Usage": "memory.usage_in_bytes", "Max Usage": "memory.max_usage_in_bytes",
		"Kernel Usage": "memory.kmem.usage_in_bytes", "Kernel Max Usage": "memory.kmem.max_usage_in_bytes",
	}, map[string]string{"RSS": "total_rss", "Cache": "total_cache", "Swap": "total_swap"})
}

// readMemory reads figures from a file each, and from lines of memory.stat. The file of the usage and memory.stat must
// be there.
func readMemory(dir string, files, lines map[string]string) (memoryReading, error) {
	m := memoryReading{}
	for figure, file := range files {
		n, err := proc.Number(filepath.Join(dir, file))
		if err == nil {
			m[figure] = n
		} else if figure == "Usage" {
			return nil, err
		}
	}
	stat, err := proc.Numbers(filepath.Join(dir, "memory.stat"))
	for figure, line := range lines {
		if n, ok := stat[line]; ok {
			m[figure] = n
		}
	}
	return m, err
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
