package stats

import (
	"time"

	"taskapi/allocrunner/internal/proctree"
	"taskapi/internal/proc"
)

// cpuReading is what a task has used of the CPUs since some point in its life that is the same for all readings of one source.
type cpuReading struct {
	proc.CPUTime
	throttled *throttling // nil where nothing is known
}

// throttling is for how long the kernel has kept a task from running because of a limit.
type throttling struct {
	periods uint64
	time    time.Duration
}

// memoryReading is what a task has of the memory now, in bytes. What its source does not have is nil.
type memoryReading struct {
	rss, cache, swap, usage, maxUsage, kernel, maxKernel *uint64
}

// cpuSource and memorySource are where the figures of a whole task come from, its processes apart. The error is that of a source that has gone.
type (
	cpuSource interface {
		cpu() (cpuReading, error)
	}
	memorySource interface {
		memory() (memoryReading, error)
	}
)

var (
	_ cpuSource    = cgroup2{}
	_ memorySource = cgroup2{}
	_ cpuSource    = cgroup1{}
	_ memorySource = cgroup1{}
	_ memorySource = processes{}
)

// sources are those of one task, best first. CPU time is taken from its processes when all fail; of memory they are the last.
type sources struct {
	cpu    []namedCPU
	memory []memorySource
	swap   map[int]uint64 // of each process that has some
}

// namedCPU is a source with a name by which a reading is compared to none but an earlier one of the same.
type namedCPU struct {
	name      string
	fromStart bool // it has nothing from before the task's run
	cpuSource
}

// readCPU reads the best source that works. The one without a name stands for the processes.
func (s sources) readCPU() (namedCPU, cpuReading) {
	for _, source := range s.cpu {
		if r, err := source.cpu(); err == nil {
			return source, r
		}
	}
	return namedCPU{fromStart: true}, cpuReading{}
}

// readMemory reads the best source that works.
func (s sources) readMemory() (m memoryReading) {
	for _, source := range s.memory {
		var err error
		if m, err = source.memory(); err == nil {
			break
		}
	}
	return m
}

// sourcesOf returns the sources for a tree whose processes are members.
func (l look) sourcesOf(root proctree.ViewRoot, members []proc.Usage) sources {
	var s sources
	fenced := l.view.CgroupOf(root)
	dir := fenced
	if fenced == "" {
		dir = l.groups.unified(root.PID)
	}
	if fenced != "" || l.owns(dir, members) {
		s.cpu = append(s.cpu, namedCPU{dir, fenced != "", cgroup2{dir}})
		s.memory = append(s.memory, cgroup2{dir})
	}
	one := l.groups.version1(root.PID)
	if l.owns(one.cpuacct, members) {
		if !l.owns(one.cpuDir, members) {
			one.cpuDir = ""
		}
		s.cpu = append(s.cpu, namedCPU{one.cpuacct, false, one})
	}
	if l.owns(one.memoryDir, members) {
		s.memory = append(s.memory, one)
	}
	s.swap = l.swapOf(members)
	s.memory = append(s.memory, processes{members, s.swap})
	return s
}

// owns reports whether a cgroup holds all processes of a tree and no other, as far as they were there when the tree was read.
func (l look) owns(dir string, members []proc.Usage) bool {
	if dir == "" {
		return false
	}
	inside := map[int]bool{}
	for _, pid := range proctree.PIDsBelow(dir) {
		inside[pid] = true
	}
	for _, m := range members {
		if !inside[m.PID] {
			if now, err := proc.Read(m.PID); err == nil && !now.Dead && now.Start == m.Start {
				return false
			}
		}
		delete(inside, m.PID)
	}
	for pid := range inside {
		if p, err := proc.Read(pid); err == nil && !p.Dead && p.Start < l.ticks {
			return false
		}
	}
	return true
}
