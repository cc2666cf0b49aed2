package updates_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
)

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

// simulated returns an allocation of one task, for a simulator.
func simulated(n int) *api.Allocation {
	group := "g"
	return &api.Allocation{
		ID: fmt.Sprintf("00000000-0000-4000-8000-%012d", n), Name: "job.g[0]", TaskGroup: group, ClientStatus: "pending",
		Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: &group, Tasks: []*api.Task{{Name: "t"}}}}},
	}
}

// runSimulated makes runners and runs each to its end. Their beginnings are spread over the time given.
func runSimulated(ctx context.Context, tb testing.TB, factory interfaces.Factory, to interfaces.Updates, many int,
	over time.Duration) {
	tb.Helper()
	dir := tb.TempDir()
	var group sync.WaitGroup
	for i := range many {
		runner := must.Get(factory(interfaces.Config{Alloc: simulated(i), Dir: dir, Logger: slog.New(slog.DiscardHandler),
			Updates: to}))(tb)
		group.Go(func() {
			time.Sleep(over * time.Duration(i) / time.Duration(many))
			if err := runner.Run(ctx); err != nil {
				tb.Error(err)
			}
		})
	}
	group.Wait()
}

func TestASimulatedRunnerGoesThroughItsLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newRecorder("s")
		b := running(t, slog.New(slog.DiscardHandler), sink)
		var factory interfaces.Factory = newSimulator
		runner := must.Get(factory(interfaces.Config{Alloc: simulated(7), Dir: t.TempDir(),
			Logger: slog.New(slog.DiscardHandler), Updates: b}))(t)
		alloc, ended := runner.Alloc(), make(chan error)
		go func() { ended <- runner.Run(t.Context()) }()
		type seen struct {
			Status, State string
			Events        int
		}
		var got []seen
		for !alloc.ClientTerminalStatus() {
			alloc = runner.Wait(t.Context(), alloc.ModifyIndex)
			state := alloc.TaskStates["t"]
			got = append(got, seen{alloc.ClientStatus, state.State, len(state.Events)})
		}
		want := []seen{{"pending", "pending", 1}, {"running", "running", 2}, {"running", "running", 3},
			{"complete", "dead", 4}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("versions (-want +got):\n%s", diff)
		}
		if err := <-ended; err != nil || !runner.Terminal() {
			t.Errorf("run: %v, over: %v", err, runner.Terminal())
		}
		if err := b.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		id := alloc.ID
		sink.took(t, "200ms "+id+"@1", "500ms "+id+"@2", "900ms "+id+"@4")
	})
}

func TestAThousandSimulatedAllocationsAreWrittenInBatches(t *testing.T) {
	const many = 1000
	synctest.Test(t, func(t *testing.T) {
		sink := &counter{}
		b := running(t, slog.New(slog.DiscardHandler), sink)
		runSimulated(t.Context(), t, newSimulator, b, many, 0)
		if err := b.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		// pending, running and complete; the event in between goes with the end.
		if calls, allocs := sink.counts(); calls != 3 || allocs != 3*many {
			t.Errorf("%d allocations in %d calls, want %d in 3", allocs, calls, 3*many)
		}
	})
}
