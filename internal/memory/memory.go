// Package memory says how much memory this process has, bounds that of a process that serves an API, and gives back
// what requests took.
package memory

import (
	"context"
	"math"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// InUse returns how many bytes of the system's memory the Go runtime has.
func InUse() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}

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

// Bound sets the collector for an allocation with that many tasks; percent is false where the operator sets its
// percentage. It keeps the operator's GOMEMLIMIT.
func Bound(tasks int, percent bool) {
	if percent {
		debug.SetGCPercent(min(mostPercent, mostGarbage*100/(aliveAtLeast+tasks*aliveForTask)))
	}
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(int64(mostMemory + tasks*mostForTask))
	}
}

const (
	look  = 10 * time.Second // how often GiveBack looks for memory that it can give back
	slack = 1 << 20          // the growth that it leaves alone
)

// GiveBack gives memory back to the system: what the start took, and later what requests took. It returns when ctx
// ends.
func GiveBack(ctx context.Context) {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for least := uint64(0); ; least = min(least, InUse()) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if InUse() > least+slack {
			debug.FreeOSMemory()
			least = InUse()
		}
	}
}
