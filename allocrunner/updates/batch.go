package updates

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// lazyTicks is how many ticks an update may wait that doesn't change ClientStatus: one second.
const lazyTicks = 5

// maxDoublings bounds the wait after a failure. The wait is a tick at first, and doubles with each further failure, up
// to 6.4 s: so a sink that works again soon gets what it missed.
const maxDoublings = 5

// acknowledged is the version that a sink has taken.
type acknowledged struct {
	version uint64 // ModifyIndex
	status  string // ClientStatus
}

// batch holds the pending versions for one sink, and the time when they are due. It does nothing by itself, and reads
// no clock.
type batch struct {
	pending  map[string]*api.Allocation // the newest of each allocation, by ID
	acked    map[string]acknowledged    // by ID; none for an allocation that was terminal
	due      time.Time                  // of the next delivery; zero for none
	retry    time.Time                  // after failures, nothing is due before this
	failures int                        // in a row
}

// add notes a version, unless a newer one is known. It reports whether the next batch is due sooner than before.
func (b *batch) add(alloc *api.Allocation, now time.Time) (sooner bool) {
	acked, known := b.acked[alloc.ID]
	if known && alloc.ModifyIndex <= acked.version || !b.keep(alloc) {
		return false
	}
	wait := lazyTicks * Tick
	if acked.status != alloc.ClientStatus { // the status of an unknown allocation is empty
		wait = Tick
	}
	at := b.allowed(now.Add(wait))
	if !b.due.IsZero() && !at.Before(b.due) {
		return false
	}
	b.due = at
	return true
}

// keep makes a version pending, unless one that is as new or newer is pending.
func (b *batch) keep(alloc *api.Allocation) bool {
	if other := b.pending[alloc.ID]; other != nil && other.ModifyIndex >= alloc.ModifyIndex {
		return false
	}
	if b.pending == nil {
		b.pending = map[string]*api.Allocation{}
	}
	b.pending[alloc.ID] = alloc
	return true
}

// take removes everything that is pending and returns it, ordered by ID. The caller passes it to putBack, failed or
// delivered before it takes the next.
func (b *batch) take() []*api.Allocation {
	allocs := slices.SortedFunc(maps.Values(b.pending), func(x, y *api.Allocation) int {
		return strings.Compare(x.ID, y.ID)
	})
	b.pending, b.due = nil, time.Time{} // a new map, since a map doesn't shrink
	return allocs
}

// delivered notes that the sink has taken the allocations. It returns the number of failures before.
func (b *batch) delivered(allocs []*api.Allocation) (failures int) {
	for _, alloc := range allocs {
		if meanwhile := b.pending[alloc.ID]; meanwhile != nil && meanwhile.ModifyIndex <= alloc.ModifyIndex {
			delete(b.pending, alloc.ID)
		}
		b.acknowledge(alloc)
	}
	failures, b.failures, b.retry = b.failures, 0, time.Time{}
	return failures
}

// acknowledge notes what the sink has taken, or forgets the allocation when it has ended.
func (b *batch) acknowledge(alloc *api.Allocation) {
	if alloc.ClientTerminalStatus() {
		if delete(b.acked, alloc.ID); len(b.acked) == 0 {
			b.acked = nil // a map doesn't shrink
		}
		return
	}
	if b.acked == nil {
		b.acked = map[string]acknowledged{}
	}
	b.acked[alloc.ID] = acknowledged{version: alloc.ModifyIndex, status: alloc.ClientStatus}
}

// failed notes that the sink has not taken the allocations. Those that are still the newest are pending again, and due
// after a backoff, together with the versions that came meanwhile. It returns the number of failures in a row.
func (b *batch) failed(allocs []*api.Allocation, now time.Time) int {
	b.retry = now.Add(Tick << min(b.failures, maxDoublings))
	b.failures++
	b.putBack(allocs, now)
	return b.failures
}

// putBack makes the allocations that are still the newest pending again, due at once or after the backoff.
func (b *batch) putBack(allocs []*api.Allocation, now time.Time) {
	for _, alloc := range allocs {
		b.keep(alloc)
	}
	b.due = b.allowed(now)
}

// allowed returns the time given, or the end of the backoff when that is later.
func (b *batch) allowed(at time.Time) time.Time {
	if at.Before(b.retry) {
		return b.retry
	}
	return at
}
