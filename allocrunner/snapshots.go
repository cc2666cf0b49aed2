package allocrunner

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// snapshots holds the latest version of the allocation. Each change makes a new value: readers share one and never lock.
type snapshots struct {
	current atomic.Pointer[api.Allocation]

	mu      sync.Mutex    // guards changes and the field below
	changed chan struct{} // closed by the next change
}

// firstIndex is the index of an allocation's creation. An index of 0 means "now" to a blocking query, so it is never one.
const firstIndex = 1

func (s *snapshots) init(given *api.Allocation) {
	alloc := *given
	now := time.Now().UnixNano()
	alloc.CreateIndex, alloc.ModifyIndex, alloc.AllocModifyIndex = firstIndex, firstIndex, firstIndex
	alloc.CreateTime, alloc.ModifyTime = now, now
	alloc.DesiredStatus = api.AllocDesiredStatusRun
	alloc.ClientStatus, alloc.ClientDescription = api.AllocClientStatusPending, "No tasks have started"
	alloc.TaskStates = nil
	alloc.Job = firstVersion(alloc.Job)
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

// firstVersion returns a job as it is registered first.
func firstVersion(given *api.Job) *api.Job {
	job, index := *given, uint64(firstIndex)
	job.Version, job.CreateIndex, job.ModifyIndex, job.JobModifyIndex = new(uint64), &index, &index, &index
	return &job
}

// unseenChanges is more changes than an earlier runner can have shown and not saved: those of a few seconds, during a write.
const unseenChanges = 10_000

// restore begins with an allocation that was saved, with an index above all that a client can have seen.
func (s *snapshots) restore(saved *interfaces.Saved) {
	alloc := *saved.Alloc
	alloc.ModifyIndex += unseenChanges
	alloc.TaskStates = statesOf(&alloc)
	s.changed = make(chan struct{})
	s.current.Store(&alloc)
}

func (s *snapshots) latest() *api.Allocation { return s.current.Load() }

// change makes a new snapshot from the latest: edit gets a copy whose maps are still shared, and replaces what it changes.
func (s *snapshots) change(edit func(*api.Allocation)) {
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

// wait returns the allocation once its index is above index, or when ctx ends.
func (s *snapshots) wait(ctx context.Context, index uint64) *api.Allocation {
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if alloc := s.latest(); alloc.ModifyIndex > index {
			return alloc
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return s.latest()
		}
	}
}

// stop applies a request to stop. It reports whether that has changed anything.
func (s *snapshots) stop(how interfaces.StopRequest) (changed bool) {
	if latest := *s.latest(); !how.Apply(&latest) {
		return false
	}
	s.change(func(a *api.Allocation) { changed = how.Apply(a) })
	return changed
}

// failBefore ends an allocation that never began, with the states of its tasks and the reason.
func (s *snapshots) failBefore(states map[string]*api.TaskState, reason error) {
	s.change(func(a *api.Allocation) {
		a.ClientStatus, a.ClientDescription, a.TaskStates = api.AllocClientStatusFailed, reason.Error(), states
	})
}
