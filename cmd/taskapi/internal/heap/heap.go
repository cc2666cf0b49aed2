// Package heap bounds the memory of a process that serves an API, and gives back what requests took.
package heap

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

// Bound sets the collector for an allocation with that many tasks; percent is false where the operator sets its
// percentage. It keeps the operator's GOMEMLIMIT.
func Bound(tasks int, percent bool) {
	if percent {
		debug.SetGCPercent(gcPercent(tasks))
	}
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(int64(mostMemory + tasks*mostForTask))
	}
}

const (
	// memoryLook is how often taskapi looks for memory that it can give back.
	memoryLook = 10 * time.Second
	// memorySlack is the growth of memory that is left alone.
	memorySlack = 1 << 20
	// mostKept is how much memory is kept for the next requests, at most.
	mostKept = 16 << 20
)

// GiveBack gives memory back to the system: what the start took, and later what requests took. For the next
// requests it keeps as much as was allocated since the last look, at most mostKept. It returns when
// ctx ends.
func GiveBack(ctx context.Context) {
	ticker := time.NewTicker(memoryLook)
	defer ticker.Stop()
	for least, allocated := uint64(0), memory.Allocated(); ; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		before, inUse := allocated, memory.InUse()
		allocated = memory.Allocated()
		if inUse > least+memorySlack+min(mostKept, allocated-before) {
			debug.FreeOSMemory()
			least = memory.InUse()
		}
		least = min(least, inUse)
		memory.GiveBackProgram()
	}
}
