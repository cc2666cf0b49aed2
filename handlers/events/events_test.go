package events

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/registry"
	"taskapi/internal/must"
)

// TestEventsAreBounded: what is kept for late readers has a bound in number, and in task states.
func TestEventsAreBounded(t *testing.T) {
	states := map[string]*api.TaskState{}
	for i := range 500 {
		states[fmt.Sprint(i)] = &api.TaskState{State: "running"}
	}
	for name, c := range map[string]struct {
		states map[string]*api.TaskState
		want   int
	}{
		"small":           {nil, 256},
		"500 tasks":       {states, 8},
		"5,000 of a task": {manyStates(5000), 1},
	} {
		t.Run(name, func(t *testing.T) {
			events := New()
			for index := range uint64(300) {
				alloc := &api.Allocation{ID: "a", ModifyIndex: 40 + index, TaskStates: c.states}
				must.OK(t, events.PutAllocs(t.Context(), []*api.Allocation{alloc}))
			}
			if got := len(events.kept); got != c.want {
				t.Errorf("%d events are kept, want %d", got, c.want)
			}
		})
	}
}

func manyStates(n int) map[string]*api.TaskState {
	return maps.Collect(func(yield func(string, *api.TaskState) bool) {
		for i := range n {
			if !yield(fmt.Sprint(i), nil) {
				return
			}
		}
	})
}

// changes are changes of services, of which the latest 256 are kept, and which count how often one is decoded.
type changes struct {
	count, decoded int
	more           chan struct{}
}

func (*changes) Read(context.Context) func() { return func() {} }

func (c *changes) Since(number uint64) (kept []*registry.Change, next uint64, more <-chan struct{}) {
	next = uint64(c.count)
	for range next - max(min(number, next), max(next, 256)-256) {
		kept = append(kept, &registry.Change{Value: func() *api.ServiceRegistration {
			c.decoded++
			return &api.ServiceRegistration{}
		}})
	}
	return kept, next, c.more
}

// TestServicesOfUnreadEvents: changes of services are decoded for a stream alone. A reader is too slow, and one that
// comes late learns that events are lost, when there were more changes than are kept.
func TestServicesOfUnreadEvents(t *testing.T) {
	events, services := New(), new(changes)
	events.FollowServices(services)
	version := func(index uint64) {
		t.Helper()
		alloc := &api.Allocation{ID: "a", ModifyIndex: index}
		must.OK(t, events.PutAllocs(t.Context(), []*api.Allocation{alloc}))
	}
	for index := range uint64(10) {
		services.count += 100
		version(40 + index)
	}
	if services.decoded > 0 {
		t.Errorf("%d changes were decoded for nobody", services.decoded)
	}
	first, lost := events.reader(40)
	batch, ok := first.read()
	notes := 0
	for _, e := range batch {
		notes += len(notesOf(e, ""))
	}
	if !ok || lost != 0 || notes != maxPending+9*100+10 || services.decoded != notes-10 {
		t.Errorf("read %d notes, %t, lost %d; %d changes were decoded", notes, ok, lost, services.decoded)
	}
	services.count += 256
	if batch, ok := first.read(); !ok || len(batch) != 256/maxPending {
		t.Errorf("read %d events of 256 changes, %t", len(batch), ok)
	}
	services.count += 257
	if _, ok := first.read(); ok {
		t.Error("a reader misses a change, and is not too slow")
	}
	if _, lost := events.reader(49); lost != 49 {
		t.Errorf("a later one learns that events are lost up to %d, want 49", lost)
	}
	if second, lost := events.reader(50); lost != 0 {
		t.Errorf("after the last index, events are lost up to %d", lost)
	} else if _, ok := second.read(); !ok {
		t.Error("a new reader is too slow")
	}
}

// TestServicesBeforeTheFirstVersion: a stream that has begun before the allocation's first version waits for this
// version, however many changes of services there are.
func TestServicesBeforeTheFirstVersion(t *testing.T) {
	events, services := New(), new(changes)
	services.more = make(chan struct{})
	events.FollowServices(services)
	services.count = 1
	close(services.more)
	r, _ := events.reader(0)
	if batch, ok := r.read(); !ok || len(batch) > 0 {
		t.Fatalf("read %d events, %t, before the first version", len(batch), ok)
	}
	select {
	case <-r.services:
		t.Error("it would read again at once, without end")
	default:
	}
	must.OK(t, events.PutAllocs(t.Context(), []*api.Allocation{{ID: "a", ModifyIndex: 7}}))
	<-r.changed
	if batch, ok := r.read(); !ok || len(batch) != 1 || len(batch[0].services) != 1 {
		t.Errorf("read %v, %t; want the first version with the change", batch, ok)
	}
}
