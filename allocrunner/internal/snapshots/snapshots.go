// Package snapshots holds the latest version of an allocation.
package snapshots

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// Snapshots holds the latest version of one allocation. Each change makes a new value: readers share one and never lock.
type Snapshots struct {
	current atomic.Pointer[api.Allocation]

	mu      sync.Mutex    // guards changes and the field below
	changed chan struct{} // closed by the next change
}

// firstIndex is the index of an allocation's creation. An index of 0 means "now" to a blocking query, so it is never one.
const firstIndex = 1

// Init begins with an allocation as it is before anything has run.
func (s *Snapshots) Init(given *api.Allocation) {
	alloc := *given
	now := time.Now().UnixNano()
	alloc.CreateIndex, alloc.ModifyIndex, alloc.AllocModifyIndex = firstIndex, firstIndex, firstIndex
	alloc.CreateTime, alloc.ModifyTime = now, now
	alloc.DesiredStatus = api.AllocDesiredStatusRun
	alloc.ClientStatus, alloc.ClientDescription = api.AllocClientStatusPending, "No tasks have started"
	job, index := *alloc.Job, uint64(firstIndex)
	job.Version, job.CreateIndex, job.ModifyIndex, job.JobModifyIndex = new(uint64), &index, &index, &index
	alloc.Job, alloc.TaskStates = &job, nil
	alloc.TaskStates = statesOf(&alloc)
	s.changed = make(chan struct{})
	s.current.Store(&alloc)
}

// statesOf returns the state of every task of the allocation's group: pending for a task that has none, or whose record was lost.
func statesOf(alloc *api.Allocation) map[string]*api.TaskState {
	states := map[string]*api.TaskState{}
	if group := alloc.GetTaskGroup(); group != nil {
		for _, t := range group.Tasks {
			if states[t.Name] = alloc.TaskStates[t.Name]; states[t.Name] == nil {
				states[t.Name] = &api.TaskState{State: "pending"}
			}
		}
	}
	return states
}

// unseenChanges is more changes than an earlier runner can have shown and not saved: those of a few seconds, during a write.
const unseenChanges = 10_000

// Restore begins with an allocation that was saved, with an index above all that a client can have seen.
func (s *Snapshots) Restore(saved *interfaces.Saved) {
	alloc := *saved.Alloc
	alloc.ModifyIndex += unseenChanges
	alloc.TaskStates = statesOf(&alloc)
	s.changed = make(chan struct{})
	s.current.Store(&alloc)
}

// Latest returns the latest version, which nobody changes any more.
func (s *Snapshots) Latest() *api.Allocation { return s.current.Load() }

// Change makes a new snapshot from the latest: edit gets a copy whose maps are still shared, and replaces what it changes.
func (s *Snapshots) Change(edit func(*api.Allocation)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	alloc := *s.current.Load()
	edit(&alloc)
	alloc.ModifyIndex++
	alloc.ModifyTime = time.Now().UnixNano()
	s.current.Store(&alloc)
	close(s.changed)
	s.changed = make(chan struct{})
}

// Wait returns the allocation once its index is above index, or when ctx ends.
func (s *Snapshots) Wait(ctx context.Context, index uint64) *api.Allocation {
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if alloc := s.Latest(); alloc.ModifyIndex > index {
			return alloc
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return s.Latest()
		}
	}
}

// Stop applies a request to stop. It reports whether that has changed anything.
func (s *Snapshots) Stop(how interfaces.StopRequest) (changed bool) {
	if latest := *s.Latest(); !how.Apply(&latest) {
		return false
	}
	s.Change(func(a *api.Allocation) { changed = how.Apply(a) })
	return changed
}
