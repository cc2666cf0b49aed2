// Package updates hands new versions of allocations to sinks, in batches. A version that changes an allocation's
// ClientStatus is handed over within a tick, any other within five. The package promises that a sink gets the newest
// version of each allocation in the end, never sees an older one after a newer one, and is never called twice at a
// time; that a slow or failing sink delays neither the runner nor another sink; and that only superseded versions are
// left out. It keeps nothing on the disk, and costs no processor time while nothing changes.
//
//	AllocUpdated ──► pending, for each sink ── due ──► PutAllocs ──► acknowledged
//	                    ▲                                  │
//	                    └── failed, after a backoff ───────┘
package updates

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/semaphore"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/wake"
)

// Tick is how long a change of ClientStatus waits for other changes, which then go with it. Nomad's clients wait
// as long: too short for a person to notice, and long enough to gather what happens to the tasks of a group at the same
// time.
const Tick = 200 * time.Millisecond

// Config configures a Buffer. Logger is required.
type Config struct {
	Sinks  []interfaces.Sink
	Logger *slog.Logger // logs when a sink begins to fail, and when it takes updates again
}

// Buffer collects updates for its sinks. Its methods are safe for concurrent use.
type Buffer struct{ queues []*sinkQueue }

var _ interfaces.Updates = (*Buffer)(nil)

// New makes a Buffer. It collects at once, and delivers while Run runs.
func New(c Config) *Buffer {
	b := &Buffer{}
	for _, sink := range c.Sinks {
		b.queues = append(b.queues, &sinkQueue{sink: sink, logger: c.Logger.With("sink", sink.Name()),
			sooner: wake.New(), busy: semaphore.NewWeighted(1)})
	}
	return b
}

// AllocUpdated never waits for a sink. It keeps the version with the highest ModifyIndex, in whatever order an
// allocation's versions come. Once a version with a terminal ClientStatus has been delivered, the allocation is
// forgotten, and no older version of it may come.
func (b *Buffer) AllocUpdated(alloc *api.Allocation) {
	for _, q := range b.queues {
		q.add(alloc)
	}
}

// Run delivers until ctx ends, and returns when the last call of a sink has returned. What is pending then waits for
// Flush.
func (b *Buffer) Run(ctx context.Context) {
	var group sync.WaitGroup
	for _, q := range b.queues {
		group.Go(func() { q.run(ctx) })
	}
	group.Wait()
}

// Flush delivers at once what is pending, and tries again until every sink has taken it or ctx ends. Give ctx a
// deadline. Flush may be called while Run runs, and after. Its error wraps that of ctx, and names each sink that lacks
// something, with its last error.
func (b *Buffer) Flush(ctx context.Context) error {
	errs := make([]error, len(b.queues))
	var group sync.WaitGroup
	for i, q := range b.queues {
		group.Go(func() { errs[i] = q.flush(ctx) })
	}
	group.Wait()
	return errors.Join(errs...)
}
