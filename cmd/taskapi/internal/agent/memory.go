package agent

import (
	"context"
	"math"
	"runtime/debug"
	"time"

	"taskapi/internal/memory"
)

// The heap may grow by this much before it is collected: by mostPercent of what lives, or by mostGarbage. An agent at
// work has some 3 MB that live and makes 3 KB of garbage for each request: at Go's own 100 % the collector takes a
// tenth of the throughput (make bench). With hundreds of tasks, each of which adds some 30 KB, the percentage alone
// would keep many times what lives.
const (
	mostPercent  = 300
	mostGarbage  = 12 << 20
	aliveAtLeast = 3 << 20
	aliveForTask = 30 << 10
)

// mostMemory, with mostForTask more for each task, is the size from which on the collector works harder. What lives
// takes less, with any number of long answers and connections.
const (
	mostMemory  = 104 << 20
	mostForTask = 4 * aliveForTask
)

// gcPercent returns the collector's setting for a group of so many tasks.
func gcPercent(tasks int) int {
	return min(mostPercent, mostGarbage*100/(aliveAtLeast+tasks*aliveForTask))
}

// boundMemory sets the collector for the group. It keeps what the operator has set by GOGC or GOMEMLIMIT.
func (s *wiring) boundMemory() {
	tasks := len(s.runner.Alloc().GetTaskGroup().Tasks)
	if s.cfg.TuneGC {
		debug.SetGCPercent(gcPercent(tasks))
	}
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(int64(mostMemory + tasks*mostForTask))
	}
}

const (
	// quiet is how long nothing has to happen to an allocation for its start to be over.
	quiet = time.Second
	// memoryRest is the time from the end of a request until memory is given back.
	memoryRest = 5 * time.Second
	// memorySlack is how much memory stays for the next requests.
	memorySlack = 16 << 20
)

// giveBackMemory gives back the memory that reading the job file and starting the tasks took, once they have started,
// and later the memory that many requests took.
func (s *wiring) giveBackMemory(ctx context.Context) {
	for index := uint64(0); ctx.Err() == nil; {
		wait, cancel := context.WithTimeout(ctx, quiet)
		now := s.runner.Wait(wait, index).ModifyIndex
		cancel()
		if now == index {
			break
		}
		index = now
	}
	memory.GiveBack()
	for least := memory.InUse(); ; least = min(least, memory.InUse()) {
		select {
		case <-s.eased:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(memoryRest):
		case <-ctx.Done():
			return
		}
		select {
		case <-s.eased: // it came before this look
		default:
		}
		if memory.InUse() > least+memorySlack {
			memory.GiveBack()
		}
	}
}

// ease wakes giveBackMemory when something that took memory has ended.
func (s *wiring) ease() {
	select {
	case s.eased <- struct{}{}:
	default: // it looks already
	}
}
