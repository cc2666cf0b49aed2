package stats

import (
	"cmp"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/proctree"
	"taskapi/internal/proc"
)

// cpuReading is a task's CPU time since some point in its life, the same point for all readings of one source.
type cpuReading struct {
	proc.CPUTime
	throttled *throttling // nil when unknown
}

// throttling is how often and how long the kernel has kept a task from running because of a limit.
type throttling struct {
	periods uint64
	time    time.Duration
}

// memoryReading is a task's memory, in bytes, by the names of memoryFigures. It lacks the figures that its source does
// not have.
type memoryReading map[string]uint64

// cpuSource is where the CPU time of a whole task is read. Readings are compared only with those of the same source.
type cpuSource struct {
	name      string // empty for the task's processes
	fromStart bool   // it has nothing from before the task's run
	read      func() (cpuReading, error)
}

// sources are those of one task, best first. An error of one means that it has gone, and the next is read.
type sources struct {
	cpu    []cpuSource
	memory []func() (memoryReading, error)
	swap   map[int]uint64 // bytes of each process that are swapped out
}

// readCPU reads the best source that works. If none does, it returns the source without a name, which stands for the
// processes.
func (s sources) readCPU() (cpuSource, cpuReading) {
	for _, source := range s.cpu {
		if r, err := source.read(); err == nil {
			return source, r
		}
	}
	return cpuSource{fromStart: true}, cpuReading{}
}

// readMemory reads the best source that works. The last, the processes, always does.
func (s sources) readMemory() (m memoryReading) {
	for _, read := range s.memory {
		var err error
		if m, err = read(); err == nil {
			break
		}
	}
	return m
}

// sourcesOf returns the sources for a tree whose processes are members.
func (l look) sourcesOf(root proctree.ViewRoot, members []proc.Stat) sources {
	var s sources
	paths := proc.Cgroups(root.PID)
	fenced := l.view.CgroupOf(root)
	dir := cmp.Or(fenced, l.groups.dir("", paths))
	if fenced != "" || l.owns(dir, members) {
		s.cpu = append(s.cpu, cpuSource{dir, fenced != "", func() (cpuReading, error) { return cpu2(dir) }})
		s.memory = append(s.memory, func() (memoryReading, error) { return memory2(dir) })
	}
	if cpuacct := l.groups.dir("cpuacct", paths); l.owns(cpuacct, members) {
		cpu := l.groups.dir("cpu", paths)
		if !l.owns(cpu, members) {
			cpu = ""
		}
		s.cpu = append(s.cpu, cpuSource{cpuacct, false, func() (cpuReading, error) { return cpu1(cpuacct, cpu) }})
	}
	if dir := l.groups.dir("memory", paths); l.owns(dir, members) {
		s.memory = append(s.memory, func() (memoryReading, error) { return memory1(dir) })
	}
	if l.swaps {
		s.swap = map[int]uint64{}
	}
	var rss, swap uint64 // memory that processes share counts for each of them
	for _, m := range members {
		rss += m.RSS
		if l.swaps {
			s.swap[m.PID] = proc.Swap(m.PID)
			swap += s.swap[m.PID]
		}
	}
	s.memory = append(s.memory, func() (memoryReading, error) { return memoryReading{"RSS": rss, "Swap": swap}, nil })
	return s
}

// usesSwap reports whether some of this machine's memory is swapped out, or may be. Otherwise no process is asked.
func usesSwap() bool {
	var info unix.Sysinfo_t
	return unix.Sysinfo(&info) != nil || info.Totalswap > info.Freeswap
}

// owns reports whether a cgroup holds all processes of a tree and no others. Processes that were not there when the
// tree was read don't count.
func (l look) owns(dir string, members []proc.Stat) bool {
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
