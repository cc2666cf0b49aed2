package updates_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
	"pgregory.net/rapid"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/updates"
)

// A step is one update and the time after it.
type step struct {
	id     string
	index  uint64
	status string
	pause  time.Duration
}

// A mood is how a sink reacts to one call.
type mood struct {
	takes time.Duration
	fails bool
}

// A moody sink has a mood for each call, and takes every call after the last mood. It checks the promises to a sink.
type moody struct {
	name   string
	moods  []mood
	seen   map[string]uint64 // the newest version, failed calls included
	took   map[string]uint64
	inside bool
	broken []string // promises
}

func (m *moody) Name() string { return m.name }

func (m *moody) PutAllocs(_ context.Context, allocs []*api.Allocation) error {
	if m.inside {
		m.broken = append(m.broken, "two calls at a time")
	}
	m.inside = true
	defer func() { m.inside = false }()
	var now mood
	if len(m.moods) > 0 {
		now, m.moods = m.moods[0], m.moods[1:]
	}
	batch := map[string]bool{}
	for _, a := range allocs {
		if batch[a.ID] {
			m.broken = append(m.broken, fmt.Sprintf("%s twice in a batch", a.ID))
		}
		if batch[a.ID] = true; a.ModifyIndex < m.seen[a.ID] {
			m.broken = append(m.broken, fmt.Sprintf("%s@%d after @%d", a.ID, a.ModifyIndex, m.seen[a.ID]))
		}
		m.seen[a.ID] = a.ModifyIndex
	}
	time.Sleep(now.takes)
	if now.fails {
		return errors.New("in a bad mood")
	}
	for _, a := range allocs {
		m.took[a.ID] = a.ModifyIndex
	}
	return nil
}

// TestEverySinkEndsWithTheNewest: the promises hold for all sequences of updates, in and out of order, with failures
// and slow sinks.
func TestEverySinkEndsWithTheNewest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps, newest := drawSteps(rt)
		sinks := []*moody{drawSink(rt, "one"), drawSink(rt, "two")}
		flushed := rapid.Bool().Draw(rt, "flushed")
		// Nothing may panic in a bubble, as rapid's failures do.
		var broken []string
		synctest.Test(t, func(t *testing.T) { broken = play(t, steps, sinks, flushed) })
		for _, sink := range sinks {
			broken = append(broken, sink.broken...)
			for id, index := range newest {
				if sink.took[id] != index {
					broken = append(broken, fmt.Sprintf("sink %s ends with %s@%d, not @%d", sink.name, id,
						sink.took[id], index))
				}
			}
		}
		if len(broken) > 0 {
			rt.Fatalf("broken: %q", broken)
		}
	})
}

// play makes the updates and waits until everything must have been delivered: in time, or by Flush after Run's end.
func play(t *testing.T, steps []step, sinks []*moody, flushed bool) (broken []string) {
	b := updates.New(updates.Config{Sinks: []interfaces.Sink{sinks[0], sinks[1]},
		Logger: slog.New(slog.DiscardHandler)})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.Run(ctx) }()
	for _, s := range steps {
		before := time.Now()
		b.AllocUpdated(version(s.id, s.index, s.status))
		if waited := time.Since(before); waited != 0 {
			broken = append(broken, fmt.Sprintf("AllocUpdated waited %v", waited))
		}
		time.Sleep(s.pause)
	}
	if !flushed {
		time.Sleep(time.Hour)
	}
	stop()
	<-done
	if flushed {
		if err := b.Flush(t.Context()); err != nil {
			broken = append(broken, err.Error())
		}
	}
	return broken
}

// drawSteps draws updates of three allocations: new versions, and, until one has ended, old ones that come late.
func drawSteps(t *rapid.T) (steps []step, newest map[string]uint64) {
	newest = map[string]uint64{}
	over := map[string]bool{}
	pauses := rapid.SampledFrom([]time.Duration{0, tick / 3, tick, 2 * tick, 7 * tick})
	for range rapid.IntRange(0, 40).Draw(t, "steps") {
		s := step{
			id: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "id"),
			status: rapid.SampledFrom([]string{"pending", "running", "running", "running", "complete"}).Draw(t,
				"status"),
			pause: pauses.Draw(t, "pause"),
		}
		if !over[s.id] && newest[s.id] > 0 && rapid.IntRange(0, 3).Draw(t, "late") == 0 {
			s.index = rapid.Uint64Range(1, newest[s.id]).Draw(t, "old")
			s.status = "running"
		} else {
			newest[s.id] += rapid.Uint64Range(1, 3).Draw(t, "newer")
			s.index = newest[s.id]
			over[s.id] = over[s.id] || s.status == "complete"
		}
		steps = append(steps, s)
	}
	return steps, newest
}

func drawSink(t *rapid.T, name string) *moody {
	moods := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) mood {
		return mood{
			takes: rapid.SampledFrom([]time.Duration{0, 0, tick / 2, 3 * tick, 20 * tick}).Draw(t, "takes"),
			fails: rapid.Bool().Draw(t, "fails"),
		}
	}), 0, 12).Draw(t, name)
	return &moody{name: name, moods: moods, seen: map[string]uint64{}, took: map[string]uint64{}}
}
