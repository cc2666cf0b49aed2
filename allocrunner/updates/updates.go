// Package updates hands new versions of allocations to sinks, in batches: what changes an
// allocation's ClientStatus within a tick, anything else within five. It promises that a sink ends with the newest version of each
// allocation, never sees an older one after a newer one, and is never called twice at a time; that a slow or failing sink delays
// neither the runner nor another sink; and that only superseded versions are left out. It keeps nothing on the disk, and costs no
// processor time while nothing changes.
//
//	AllocUpdated ──► pending, for each sink ── due ──► PutAllocs ──► acknowledged
//	                    ▲                                  │
//	                    └── failed, after a backoff ───────┘
package updates

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// DefaultTick is how long a change of ClientStatus waits for others to go with it. It is what Nomad's clients wait: too short for a
// person to notice, long enough for what happens to the tasks of a group at the same time.
const DefaultTick = 200 * time.Millisecond

// Config is what a Buffer is made of. Logger is required.
type Config struct {
	Sinks  []interfaces.Sink
	Logger *slog.Logger  // for when a sink begins to fail, and when it takes updates again
	Tick   time.Duration // 0 means DefaultTick
}

// Buffer collects updates for its sinks. Its methods are safe for concurrent use.
type Buffer struct{ queues []*sinkQueue }

var _ interfaces.Updates = (*Buffer)(nil)

// New makes a Buffer. It collects at once, and delivers while Run runs.
func New(c Config) *Buffer {
	b, tick := &Buffer{}, cmp.Or(c.Tick, DefaultTick)
	for _, sink := range c.Sinks {
		b.queues = append(b.queues, newSinkQueue(sink, tick, c.Logger.With("sink", sink.Name())))
	}
	return b
}

// AllocUpdated never waits for a sink. Of what comes for an allocation, the version with the
// highest ModifyIndex is kept, in whatever order they come, but nothing older may come once a version with a terminal ClientStatus
// has been delivered: what is known of the allocation is forgotten then.
func (b *Buffer) AllocUpdated(alloc *api.Allocation) {
	for _, q := range b.queues {
		q.add(alloc)
	}
}

// Run delivers until ctx ends, and returns when no call of a sink is left. What is pending then stays, for Flush.
func (b *Buffer) Run(ctx context.Context) {
	var group sync.WaitGroup
	for _, q := range b.queues {
		group.Go(func() { q.run(ctx) })
	}
	group.Wait()
}

// Flush delivers at once what is pending, and again when that fails, until every sink has taken it or ctx ends: give it an end.
// It may be called while Run runs, and after. Its error wraps that of ctx and names each sink that lacks something, with its last
// error.
func (b *Buffer) Flush(ctx context.Context) error {
	errs := make([]error, len(b.queues))
	var group sync.WaitGroup
	for i, q := range b.queues {
		group.Go(func() { errs[i] = q.flush(ctx) })
	}
	group.Wait()
	return errors.Join(errs...)
}
