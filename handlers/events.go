package handlers

import (
	"context"
	"sync"

	"github.com/hashicorp/nomad/api"
)

// The bounds of the events that are kept for clients that connect late or read slowly.
const (
	// keptEvents is more than twice what Nomad keeps by default; a client that is away for a minute misses nothing.
	keptEvents = 256
	// keptStates bounds the task states in all events together: those of a group of 500 tasks have some 2 KiB each, so that even
	// when no two events share any, 8 MiB are held.
	keptStates = 4096
)

// Nomad's types of allocation events.
const (
	eventPlanned = "PlanResult"                    // a placement, or another version of the job
	eventDesired = "AllocationUpdateDesiredStatus" // it shall stop
	eventUpdated = "AllocationUpdated"             // the state of its tasks has changed
)

// Events keeps the latest events of allocations for GET /v1/event/stream. It never waits for a reader, starts no goroutine, and needs no
// closing.
type Events struct {
	mu     sync.Mutex // guards the fields below
	kept   []*event   // the oldest first
	first  uint64     // the number of kept[0]; events are numbered from 0 as they come
	states int        // of all kept events

	changed chan struct{} // closed, and replaced, with every new event
}

// event is one version of an allocation and why there is one.
type event struct {
	alloc *api.Allocation
	kind  string
}

// NewEvents returns an empty Events.
func NewEvents() *Events { return &Events{changed: make(chan struct{})} }

// Name identifies the sink in logs.
func (*Events) Name() string { return "event stream" }

// PutAllocs adds an event for each allocation, unless the version was there before. It never fails, and keeps the values, which must not be
// changed.
func (e *Events) PutAllocs(_ context.Context, allocs []*api.Allocation) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	added := false
	for _, alloc := range allocs {
		added = e.addLocked(alloc) || added
	}
	if added {
		close(e.changed)
		e.changed = make(chan struct{})
	}
	return nil
}

func (e *Events) addLocked(alloc *api.Allocation) bool {
	var previous *api.Allocation
	for _, kept := range e.kept { // there are few, and one allocation
		if kept.alloc.ID == alloc.ID {
			previous = kept.alloc
		}
	}
	if previous != nil && alloc.ModifyIndex <= previous.ModifyIndex {
		return false
	}
	e.kept = append(e.kept, &event{alloc, kindOf(previous, alloc)})
	e.states += len(alloc.TaskStates)
	for len(e.kept) > keptEvents || e.states > keptStates && len(e.kept) > 1 {
		e.states -= len(e.kept[0].alloc.TaskStates)
		e.kept[0] = nil
		e.kept = e.kept[1:]
		e.first++
	}
	return true
}

// kindOf returns why there is another version of an allocation; previous is nil when none is known.
func kindOf(previous, now *api.Allocation) string {
	switch {
	case previous == nil && now.ModifyIndex == now.CreateIndex:
		return eventPlanned
	case previous == nil:
		return eventUpdated
	case previous.DesiredStatus != now.DesiredStatus:
		return eventDesired
	case jobIndexOf(previous) != jobIndexOf(now):
		return eventPlanned
	}
	return eventUpdated
}

func jobIndexOf(alloc *api.Allocation) uint64 {
	if alloc.Job == nil {
		return 0
	}
	return valueOf(alloc.Job.JobModifyIndex)
}

// reader is one reader's place among the events: the number of the next one.
type reader struct {
	events *Events
	next   uint64
}

// reader returns a reader from the oldest event on.
func (e *Events) reader() *reader {
	e.mu.Lock()
	defer e.mu.Unlock()
	return &reader{e, e.first}
}

// read returns the events since the last read, and what is closed when there are more. ok is false for a slow reader: events that it has
// not read were dropped.
func (r *reader) read() (batch []*event, more <-chan struct{}, ok bool) {
	e := r.events
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.next < e.first {
		return nil, nil, false
	}
	batch = append(batch, e.kept[r.next-e.first:]...)
	r.next += uint64(len(batch))
	return batch, e.changed, true
}
