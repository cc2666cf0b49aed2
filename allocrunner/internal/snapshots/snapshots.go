// Package snapshots holds the latest version of an allocation, with its deployments.
package snapshots

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/deployment"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/ptr"
)

// Snapshots holds the latest version of one allocation. Each change makes a new value: readers share one and never
// lock.
type Snapshots struct {
	current atomic.Pointer[api.Allocation]
	// deployments is stored before current, so that a reader of a version sees its deployments.
	deployments atomic.Pointer[deployment.State]

	mu      sync.Mutex    // guards changes and the field below
	changed chan struct{} // closed by the next change
}

// firstIndex is the index of an allocation's creation. An index of 0 means "now" to a blocking query, so it is never
// one.
const firstIndex = 1

// Init begins with an allocation that has not run yet. An allocation that replaces previous under its ID continues the
// indexes, the job's versions and the deployments of previous.
func (s *Snapshots) Init(given *api.Allocation, previous *interfaces.Saved) {
	alloc, index, job := *given, uint64(firstIndex), *given.Job
	job.Version, job.CreateIndex = new(ptr.Deref(job.Version)), &index
	var deployments deployment.State
	if previous != nil && previous.Alloc.Job != nil {
		index += previous.Alloc.ModifyIndex + unseenChanges
		was := previous.Alloc.Job
		job.Version, job.CreateIndex = new(max(ptr.Deref(was.Version)+1, ptr.Deref(given.Job.Version))), was.CreateIndex
		deployments = previous.Deployments
	}
	now := time.Now().UnixNano()
	alloc.CreateIndex, alloc.ModifyIndex, alloc.AllocModifyIndex = index, index, index
	alloc.CreateTime, alloc.ModifyTime = now, now
	alloc.DesiredStatus = api.AllocDesiredStatusRun
	alloc.ClientStatus, alloc.ClientDescription = api.AllocClientStatusPending, "No tasks have started"
	job.ModifyIndex, job.JobModifyIndex, job.Stable = &index, &index, new(bool)
	alloc.Job, alloc.TaskStates = &job, nil
	alloc.TaskStates = statesOf(&alloc)
	s.begin(&alloc, deployments.Next(deployment.Changed{Alloc: &alloc}))
}

// statesOf returns the state of every task of the allocation's group. A task that has none, or whose saved state was
// lost, is pending.
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

// unseenChanges is more than the changes that an earlier runner can have shown and not saved: those of a few seconds,
// during a write.
const unseenChanges = 10_000

// Restore begins with an allocation that was saved, with an index above all that a client can have seen.
func (s *Snapshots) Restore(saved *interfaces.Saved) {
	alloc := *saved.Alloc
	alloc.ModifyIndex += unseenChanges
	alloc.TaskStates = statesOf(&alloc)
	s.begin(&alloc, saved.Deployments)
}

func (s *Snapshots) begin(alloc *api.Allocation, deployments deployment.State) {
	s.changed = make(chan struct{})
	s.deployments.Store(&deployments)
	s.current.Store(alloc)
}

// Latest returns the latest version. It must not be changed.
func (s *Snapshots) Latest() *api.Allocation { return s.current.Load() }

// Deployments returns the deployments of the job's latest versions, the latest first. They must not be changed.
func (s *Snapshots) Deployments() deployment.State { return *s.deployments.Load() }

// Change makes a new snapshot from the latest: edit gets a copy whose maps are still shared, and replaces what it
// changes.
func (s *Snapshots) Change(edit func(*api.Allocation)) {
	s.change(func(a *api.Allocation) deployment.Event {
		edit(a)
		return nil
	})
}

// change does what Change does. edit returns an event for the deployments, nil for none.
func (s *Snapshots) change(edit func(*api.Allocation) deployment.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	alloc := *s.current.Load()
	alloc.ModifyTime = time.Now().UnixNano()
	event := edit(&alloc)
	alloc.ModifyIndex++
	deployments := s.Deployments().Next(event).Next(deployment.Changed{Alloc: &alloc})
	if deployments.Succeeded(alloc.DeploymentID) && !ptr.Deref(alloc.Job.Stable) {
		job := *alloc.Job
		job.Stable, alloc.Job = new(true), &job
	}
	s.deployments.Store(&deployments)
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
	if latest := *s.Latest(); !how.Apply(&latest) && how.ReplacedBy == nil {
		return false
	}
	s.change(func(a *api.Allocation) deployment.Event {
		changed = how.Apply(a)
		if how.ReplacedBy == nil {
			return nil
		}
		return deployment.Accepted{Next: how.ReplacedBy, At: after(a)}
	})
	return changed || how.ReplacedBy != nil
}

// FailDeployment ends a running deployment, because an operator asks for it or because it is overdue.
func (s *Snapshots) FailDeployment(id string, overdue bool) {
	s.change(func(a *api.Allocation) deployment.Event {
		return deployment.Failed{ID: id, Overdue: overdue, At: after(a)}
	})
}

// AwaitOverdue waits until a running deployment has passed its deadline, and returns its ID; empty when ctx ends.
func (s *Snapshots) AwaitOverdue(ctx context.Context) (id string) {
	for ctx.Err() == nil {
		index, until, end := s.Latest().ModifyIndex, ctx, context.CancelFunc(func() {})
		id, by := s.Deployments().Deadline()
		if id != "" {
			until, end = context.WithDeadline(ctx, by)
		}
		s.Wait(until, index)
		passed := until.Err() != nil && ctx.Err() == nil
		end()
		if now, _ := s.Deployments().Deadline(); passed && now == id {
			return id
		}
	}
	return ""
}

// after returns the moment of a change that makes the next version of an allocation.
func after(a *api.Allocation) deployment.Moment {
	return deployment.Moment{Index: a.ModifyIndex + 1, Time: a.ModifyTime}
}

// WithJob returns the allocation with another version of its job. Whether it is healthy with that version is not known
// yet.
func WithJob(alloc *api.Allocation, job *api.Job) *api.Allocation {
	next, version := *alloc, *job
	index := alloc.ModifyIndex + 1
	number := max(ptr.Deref(alloc.Job.Version)+1, ptr.Deref(job.Version))
	version.Version, version.JobModifyIndex, version.ModifyIndex = &number, &index, &index
	version.CreateIndex, version.Stable = alloc.Job.CreateIndex, new(bool)
	next.Job, next.DeploymentStatus = &version, nil
	next.DeploymentID = deployment.NewID(&version, next.GetTaskGroup())
	next.AllocModifyIndex = index
	return &next
}
