package updates_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/updates"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

const tick = updates.Tick

var errDown = errors.New("down")

// version returns an allocation in a version.
func version(id string, index uint64, status string) *api.Allocation {
	return &api.Allocation{ID: id, ModifyIndex: index, ClientStatus: status}
}

// A recorder is a sink that keeps what it took, and can be made slow, or to fail.
type recorder struct {
	name  string
	began time.Time

	mu     sync.Mutex // guards what follows
	takes  time.Duration
	fails  int      // that many calls
	stuck  bool     // until the call's context ends
	calls  []string // "when id@version ..." of each successful one
	failed []string // of each other one
}

func newRecorder(name string) *recorder { return &recorder{name: name, began: time.Now()} }

func (r *recorder) Name() string { return r.name }

func (r *recorder) PutAllocs(ctx context.Context, allocs []*api.Allocation) error {
	var line strings.Builder
	line.WriteString(time.Since(r.began).String())
	for _, a := range allocs {
		fmt.Fprintf(&line, " %s@%d", a.ID, a.ModifyIndex)
	}
	r.mu.Lock()
	takes, stuck := r.takes, r.stuck
	r.mu.Unlock()
	time.Sleep(takes)
	if stuck {
		<-ctx.Done()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if stuck {
		r.failed = append(r.failed, line.String())
		return ctx.Err()
	}
	if r.fails > 0 {
		r.fails--
		r.failed = append(r.failed, line.String())
		return errDown
	}
	r.calls = append(r.calls, line.String())
	return nil
}

func (r *recorder) set(change func(*recorder)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
}

// took checks the successful calls.
func (r *recorder) took(t *testing.T, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	same.As(t, want, r.calls, "what ", r.name, " took")
}

// refused checks the calls that failed.
func (r *recorder) refused(t *testing.T, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	same.As(t, want, r.failed, "what ", r.name, " refused")
}

// A counter is a sink that counts.
type counter struct {
	mu            sync.Mutex // guards what follows
	calls, allocs int
}

func (c *counter) Name() string { return "counter" }

func (c *counter) PutAllocs(_ context.Context, allocs []*api.Allocation) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls, c.allocs = c.calls+1, c.allocs+len(allocs)
	return nil
}

func (c *counter) counts() (calls, allocs int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls, c.allocs
}

// running makes a Buffer that runs until the test's end, in a bubble.
func running(t *testing.T, logger *slog.Logger, sinks ...interfaces.Sink) *updates.Buffer {
	t.Helper()
	b := updates.New(updates.Config{Sinks: sinks, Logger: logger})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return b
}

func TestAChangeOfStatusGoesOutWithinATickAndTheRestWithinFive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newRecorder("s")
		b := running(t, slog.New(slog.DiscardHandler), sink)
		b.AllocUpdated(version("a", 1, "pending")) // unknown until now
		time.Sleep(2 * tick)
		b.AllocUpdated(version("a", 2, "pending"))
		time.Sleep(tick)
		b.AllocUpdated(version("a", 3, "pending"))
		time.Sleep(5 * tick)
		b.AllocUpdated(version("a", 4, "pending"))
		time.Sleep(tick / 2)
		b.AllocUpdated(version("b", 5, "pending"))
		b.AllocUpdated(version("a", 6, "running"))
		b.AllocUpdated(version("a", 7, "pending")) // as the sink knows it, but it is due already
		time.Sleep(time.Hour)
		sink.took(t, "200ms a@1", "1.4s a@3", "1.9s a@7 b@5")
	})
}

func TestTheNewestVersionWinsWhateverTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newRecorder("s")
		b := running(t, slog.New(slog.DiscardHandler), sink)
		b.AllocUpdated(version("a", 2, "running"))
		b.AllocUpdated(version("a", 1, "pending"))
		sink.set(func(r *recorder) { r.takes = tick })
		time.Sleep(tick + tick/2) // a@2 is under way
		b.AllocUpdated(version("a", 1, "pending"))
		time.Sleep(time.Minute)
		b.AllocUpdated(version("a", 1, "pending"))
		b.AllocUpdated(version("a", 2, "running"))
		time.Sleep(time.Minute)
		sink.took(t, "200ms a@2")
	})
}

func TestASlowSinkDelaysOnlyItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, fast := newRecorder("slow"), newRecorder("fast")
		slow.takes = time.Minute
		b := running(t, slog.New(slog.DiscardHandler), slow, fast)
		for i, status := range []string{"pending", "running", "complete"} {
			began := time.Now()
			b.AllocUpdated(version("a", uint64(i+1), status))
			same.As(t, 0, time.Since(began), "AllocUpdated waited")
			time.Sleep(2 * tick)
		}
		time.Sleep(time.Hour)
		fast.took(t, "200ms a@1", "600ms a@2", "1s a@3")
		slow.took(t, "200ms a@1", "1m0.2s a@3")
	})
}

func TestAFailedBatchIsTriedAgainWithWhatCameMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink, other := newRecorder("s"), newRecorder("other")
		sink.fails = 8
		b := running(t, slog.New(slog.DiscardHandler), sink, other)
		b.AllocUpdated(version("a", 1, "running"))
		b.AllocUpdated(version("b", 2, "running"))
		time.Sleep(tick + tick/2)
		b.AllocUpdated(version("b", 3, "failed"))
		time.Sleep(13 * time.Second)
		b.AllocUpdated(version("c", 4, "running"))
		time.Sleep(time.Minute)
		other.took(t, "200ms a@1 b@2", "500ms b@3", "13.5s c@4")
		sink.took(t, "25.6s a@1 b@3 c@4")
		sink.refused(t, "200ms a@1 b@2", "400ms a@1 b@3", "800ms a@1 b@3", "1.6s a@1 b@3", "3.2s a@1 b@3",
			"6.4s a@1 b@3",
			"12.8s a@1 b@3", "19.2s a@1 b@3 c@4")
	})
}

func TestManyAllocationsAreWrittenInBatches(t *testing.T) {
	const many = 1000
	synctest.Test(t, func(t *testing.T) {
		sink := &counter{}
		b := running(t, slog.New(slog.DiscardHandler), sink)
		for index, status := range []string{"pending", "running", "running", "complete"} {
			for i := range many {
				b.AllocUpdated(version(strconv.Itoa(i), uint64(index), status))
			}
			time.Sleep(tick + tick/2)
		}
		must.OK(t, b.Flush(t.Context()))
		// pending, running and complete; the change in between goes with the end.
		if calls, allocs := sink.counts(); calls != 3 || allocs != 3*many {
			t.Errorf("%d allocations in %d calls, want %d in 3", allocs, calls, 3*many)
		}
	})
}

func TestAStreakOfFailuresIsLoggedOnceAndItsEndOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		sink := newRecorder("s")
		b := running(t, quiet(&log), sink)
		for i, fails := range []int{3, 0, 1} {
			sink.set(func(r *recorder) { r.fails = fails })
			b.AllocUpdated(version("a", uint64(i), "running"))
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		const bad = "level=WARN msg=\"a sink does not take allocation updates; they are kept and tried again\" sink=s " +
			"error=down\n"
		const good = "level=INFO msg=\"a sink takes allocation updates again\" sink=s failures=%d\n"
		same.As(t, bad+fmt.Sprintf(good, 3)+bad+fmt.Sprintf(good, 1), log.String(), "log")
	})
}

// quiet returns a logger without times.
func quiet(w *bytes.Buffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

func TestAnAllocationThatIsOverIsForgotten(t *testing.T) {
	const many = 20_000
	var before, after runtime.MemStats
	sink := &counter{}
	b := updates.New(updates.Config{Sinks: []interfaces.Sink{sink}, Logger: slog.New(slog.DiscardHandler)})
	runtime.GC()
	runtime.ReadMemStats(&before)
	for index, status := range []string{"running", "complete"} {
		for i := range many {
			b.AllocUpdated(version(strconv.Itoa(i), uint64(index), status))
		}
		must.OK(t, b.Flush(t.Context()))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); held > many {
		t.Errorf("%d bytes are still held for %d allocations that have ended", held, many)
	}
	if calls, allocs := sink.counts(); calls != 2 || allocs != 2*many {
		t.Errorf("the sink got %d allocations in %d calls, want %d in 2", allocs, calls, 2*many)
	}
	runtime.KeepAlive(b)
}
