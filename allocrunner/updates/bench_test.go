package updates_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/allocrunner/updates"
)

// benchAllocs is how many simulated allocations a benchmark runs, and benchSpread the time over which they begin: when all
// changed at the same instant, a batch would hold them all.
const (
	benchAllocs = 1000
	benchSpread = time.Second
)

// metered counts what a sink is asked for, and how long it takes.
type metered struct {
	interfaces.Sink
	calls, busy atomic.Int64
}

func (m *metered) PutAllocs(ctx context.Context, allocs []*api.Allocation) error {
	began := time.Now()
	err := m.Sink.PutAllocs(ctx, allocs)
	m.calls.Add(1)
	m.busy.Add(int64(time.Since(began)))
	return err
}

// An unbatched gives each update to the sink as it comes, and makes the runner wait for it.
type unbatched struct {
	sink interfaces.Sink
	fail func(error)
}

func (u unbatched) AllocUpdated(alloc *api.Allocation) {
	if err := u.sink.PutAllocs(context.Background(), []*api.Allocation{alloc}); err != nil {
		u.fail(err)
	}
}

// A tally counts updates on their way.
type tally struct {
	interfaces.Updates
	count atomic.Int64
}

func (t *tally) AllocUpdated(alloc *api.Allocation) {
	t.count.Add(1)
	t.Updates.AllocUpdated(alloc)
}

// BenchmarkState takes 1,000 simulated allocations through their lives, four updates each, with a state file as the sink: how often it is
// called for 1,000 updates, how many transactions it makes of that (it joins calls that wait at the same time), and how long the
// calls take together.
func BenchmarkState(b *testing.B) {
	b.Run("unbatched", func(b *testing.B) {
		db, sink := openState(b)
		drive(b, db, sink, unbatched{sink, func(err error) { b.Error(err) }}, func() {})
	})
	b.Run("batched", func(b *testing.B) {
		db, sink := openState(b)
		buffer := updates.New(updates.Config{Sinks: []interfaces.Sink{sink}, Logger: slog.New(slog.DiscardHandler)})
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); buffer.Run(ctx) }()
		drive(b, db, sink, buffer, func() {
			if err := buffer.Flush(b.Context()); err != nil {
				b.Error(err)
			}
		})
		stop()
		<-done
	})
}

func openState(b *testing.B) (*state.DB, *metered) {
	b.Helper()
	db, err := state.Open(filepath.Join(b.TempDir(), state.FileName), "bench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := db.Close(); err != nil {
			b.Error(err)
		}
	})
	return db, &metered{Sink: db}
}

func drive(b *testing.B, db *state.DB, sink *metered, to interfaces.Updates, flush func()) {
	counted := &tally{Updates: to}
	for b.Loop() {
		runSimulated(b.Context(), b, newSimulator, counted, benchAllocs, benchSpread)
		flush()
	}
	thousands := float64(counted.count.Load()) / 1000
	b.ReportMetric(float64(sink.calls.Load())/thousands, "calls/1000-updates")
	b.ReportMetric(float64(db.Stats().Writes)/thousands, "writes/1000-updates")
	b.ReportMetric(float64(sink.busy.Load())/1e6/thousands, "ms-in-calls/1000-updates")
}

// BenchmarkAllocUpdated is what an update costs the runner that makes it, with two sinks.
func BenchmarkAllocUpdated(b *testing.B) {
	buffer := updates.New(updates.Config{Sinks: []interfaces.Sink{&counter{}, &counter{}}, Logger: slog.New(slog.DiscardHandler)})
	alloc := simulated(0)
	b.ReportAllocs()
	for b.Loop() {
		next := *alloc
		next.ModifyIndex++
		alloc = &next
		buffer.AllocUpdated(alloc)
	}
}

// BenchmarkHeld is the heap that a Buffer keeps for each allocation and sink, apart from the allocation itself: while an update is
// pending, and when all are delivered.
func BenchmarkHeld(b *testing.B) {
	allocs := make([]*api.Allocation, benchAllocs)
	for i := range allocs {
		allocs[i] = simulated(i)
		allocs[i].ModifyIndex, allocs[i].ClientStatus = 1, "running"
	}
	var pending, delivered float64
	for b.Loop() {
		before := heap()
		buffer := updates.New(updates.Config{Sinks: []interfaces.Sink{&counter{}}, Logger: slog.New(slog.DiscardHandler)})
		for _, alloc := range allocs {
			buffer.AllocUpdated(alloc)
		}
		pending = float64(heap()-before) / benchAllocs
		if err := buffer.Flush(b.Context()); err != nil {
			b.Fatal(err)
		}
		delivered = float64(heap()-before) / benchAllocs
		runtime.KeepAlive(buffer)
	}
	b.ReportMetric(pending, "pending-B/alloc")
	b.ReportMetric(delivered, "delivered-B/alloc")
	b.ReportMetric(0, "ns/op") // collecting garbage is all that takes time here
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
