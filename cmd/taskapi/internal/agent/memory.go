package agent

import (
	"context"
	"math"
	"runtime/debug"
	"time"

	"taskapi/internal/memory"
)

// The heap grows by mostPercent of the live bytes, or by mostGarbage, whichever is less, before it is collected. A busy
// agent has some 3 MB of live bytes and makes 3 KB of garbage for each request: with Go's default of 100 % the
// collector takes a tenth of the throughput (make bench). Each task adds some 30 KB: with hundreds of tasks the
// percentage alone would allow too much garbage.
const (
	mostPercent  = 300
	mostGarbage  = 12 << 20
	aliveAtLeast = 3 << 20
	aliveForTask = 30 << 10
)

// Above mostMemory, with mostForTask more for each task, the collector works harder. Live bytes stay below that,
// whatever clients ask for.
const (
	mostMemory  = 104 << 20
	mostForTask = 4 * aliveForTask
)

// gcPercent returns the collector's setting for a number of tasks.
func gcPercent(tasks int) int {
	return min(mostPercent, mostGarbage*100/(aliveAtLeast+tasks*aliveForTask))
}

// boundMemory sets the collector for the group. It keeps the operator's GOGC and GOMEMLIMIT.
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
	// quiet is how long an allocation has to stay unchanged until its start counts as over.
	quiet = time.Second
	// memoryRest is the time from the end of a large request until memory is given back.
	memoryRest = 5 * time.Second
	// memorySlack is how much memory is kept for the next requests.
	memorySlack = 16 << 20
)

// giveBackMemory gives memory back to the system: once the tasks have started, what the job file and the start took,
// and later what requests took.
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
