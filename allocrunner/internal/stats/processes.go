package stats

import (
	"golang.org/x/sys/unix"

	"taskapi/internal/proc"
)

// processes are those of a task, for what no cgroup tells of it. The memory that they share counts for each of them.
type processes struct {
	members []proc.Usage
	swapped map[int]uint64
}

// memory never fails.
func (p processes) memory() (memoryReading, error) {
	var rss, swap uint64
	for _, m := range p.members {
		rss += m.RSS
		swap += p.swapped[m.PID]
	}
	return memoryReading{rss: &rss, swap: &swap}, nil
}

// swapOf returns how much of each process is swapped out. Where nothing of the machine is, the processes are not looked through for it.
func (l look) swapOf(members []proc.Usage) map[int]uint64 {
	if !l.swaps {
		return nil
	}
	swapped := map[int]uint64{}
	for _, m := range members {
		if n := proc.Swap(m.PID); n > 0 {
			swapped[m.PID] = n
		}
	}
	return swapped
}

// usesSwap reports whether something of this machine's memory is swapped out, or may be.
func usesSwap() bool {
	var info unix.Sysinfo_t
	return unix.Sysinfo(&info) != nil || info.Totalswap > info.Freeswap
}
