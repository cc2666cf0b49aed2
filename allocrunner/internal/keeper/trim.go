package keeper

import (
	"math"
	"runtime/debug"
	"sync"
	"time"

	"taskapi/internal/memory"
)

// trimDelay is the time from a change until memory is given back. It is long enough for the consequences of the change
// to be over.
const trimDelay = time.Second

// gcPercent keeps the heap small. A keeper has a dozen live objects, and moves output with system calls.
const gcPercent = 20

// collectMore ends the time in which keeperEnv spares the start of the keeper, and of its first tasks, the collection
// of garbage.
var collectMore = sync.OnceFunc(func() {
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(math.MaxInt64)
})

// trimSoon gives memory back trimDelay after a change. Further changes don't postpone it: otherwise a task that
// restarts again and again would prevent it for ever.
func (s *server) trimSoon() {
	if s.trims.CompareAndSwap(false, true) {
		time.AfterFunc(trimDelay, func() {
			s.trims.Store(false)
			collectMore()
			memory.GiveBack()
		})
	}
}
