package updates_test

import (
	"fmt"
	"log/slog"
	"runtime"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/updates"
	"taskapi/internal/must"
)

// benchAllocs is how many allocations a Buffer of a benchmark has.
const benchAllocs = 1000

// BenchmarkAllocUpdated is what an update costs the runner that makes it, with two sinks.
func BenchmarkAllocUpdated(b *testing.B) {
	buffer := updates.New(updates.Config{Sinks: []interfaces.Sink{&counter{}, &counter{}},
		Logger: slog.New(slog.DiscardHandler)})
	alloc := version("a", 1, "running")
	b.ReportAllocs()
	for b.Loop() {
		next := *alloc
		next.ModifyIndex++
		alloc = &next
		buffer.AllocUpdated(alloc)
	}
}

// BenchmarkHeld is the heap that a Buffer keeps for each allocation and sink, apart from the allocation itself: while
// an update is pending, and when all are delivered.
func BenchmarkHeld(b *testing.B) {
	allocs := make([]*api.Allocation, benchAllocs)
	for i := range allocs {
		allocs[i] = version(fmt.Sprintf("00000000-0000-4000-8000-%012d", i), 1, "running")
	}
	var pending, delivered float64
	for b.Loop() {
		before := heap()
		buffer := updates.New(updates.Config{Sinks: []interfaces.Sink{&counter{}},
			Logger: slog.New(slog.DiscardHandler)})
		for _, alloc := range allocs {
			buffer.AllocUpdated(alloc)
		}
		pending = float64(heap()-before) / benchAllocs
		must.OK(b, buffer.Flush(b.Context()))
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
