// Package deployment decides the status of an allocation's deployments, as a pure function, State.Next. A deployment
// rolls out one version of a service job. It runs until the allocation is healthy with that version, or can't become
// healthy any more.
//
//	                the allocation is healthy
//	running ──┬───────────────────────────────────────────────────► successful
//	          │     it is unhealthy, has ended, its progress_deadline has passed, or an operator says so
//	          ├───────────────────────────────────────────────────► failed
//	          │     the job is stopped, or has a newer version
//	          └───────────────────────────────────────────────────► cancelled
//
// Other packages decide whether the allocation is healthy, and by when: its DeploymentStatus says so.
package deployment

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/ptr"
)

// Kept is how many deployments of an allocation are kept: Nomad's job_tracked_versions.
const Kept = 6

// Nomad's descriptions of a deployment's status.
const (
	descriptionRunning    = "Deployment is running"
	descriptionSuccessful = "Deployment completed successfully"
	descriptionStopped    = "Cancelled because job is stopped"
	descriptionNewer      = "Cancelled due to newer version of job"
	descriptionUnhealthy  = "Failed due to unhealthy allocations"
	descriptionMarked     = "Deployment marked as failed"
	descriptionOverdue    = "Failed due to progress deadline"
)

// State is an allocation's deployments, the latest first.
type State []*api.Deployment

// Event is what happens to an allocation's deployments: one of these types, or nil for nothing.
type Event any

type (
	// Changed: the allocation has this version now.
	Changed struct{ Alloc *api.Allocation }
	// Accepted: Next will replace the allocation under its ID. The DeploymentID of Next and the Version of its job are
	// known.
	Accepted struct {
		Next *api.Allocation
		At   Moment
	}
	// Failed: an operator has failed a deployment, or, when it is Overdue, its deadline has passed.
	Failed struct {
		ID      string
		Overdue bool
		At      Moment
	}
)

// Moment is when something happens, as the allocation's index and as a time in Unix nanoseconds.
type Moment struct {
	Index uint64
	Time  int64
}

// NewID returns an ID for the deployment of a version of a canonical job. Allocations that get a version by one
// submission, at its SubmitTime, have one ID. The ID is empty where there is no deployment: for a batch or a system
// job, and when the group's max_parallel is 0.
func NewID(job *api.Job, group *api.TaskGroup) string {
	if ptr.Deref(job.Type) != api.JobTypeService ||
		group == nil || group.Update == nil || ptr.Deref(group.Update.MaxParallel) == 0 {
		return ""
	}
	if job.SubmitTime == nil {
		return uuid.NewString()
	}
	return uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "taskapi deployment %q %q %d %d", ptr.Deref(job.Namespace),
		ptr.Deref(job.ID), ptr.Deref(job.Version), *job.SubmitTime)).String()
}

// Next returns the state after an event. It changes neither the list nor a deployment in it: it returns the same list
// when nothing changes. It returns no effects, since other packages only show deployments.
func (s State) Next(e Event) State {
	switch e := e.(type) {
	case Changed:
		at := Moment{e.Alloc.ModifyIndex, e.Alloc.ModifyTime}
		return s.with(e.Alloc, at, func(d *api.Deployment) { follow(d, e.Alloc) })
	case Accepted:
		return s.with(e.Next, e.At, func(d *api.Deployment) {
			if d.ID != e.Next.DeploymentID {
				end(d, api.DeploymentStatusCancelled, descriptionNewer)
			}
		})
	case Failed:
		description := descriptionMarked
		if e.Overdue {
			description = descriptionOverdue
		}
		return s.with(nil, e.At, func(d *api.Deployment) {
			if d.ID == e.ID {
				end(d, api.DeploymentStatusFailed, description)
			}
		})
	}
	return s
}

// Deadline returns the ID of the allocation's running deployment, and the time at which the deployment fails if it
// still runs. The ID is empty if there is none, or if it has no progress_deadline.
func (s State) Deadline() (id string, by time.Time) {
	for _, d := range s {
		for _, state := range d.TaskGroups {
			if d.Status == api.DeploymentStatusRunning && !state.RequireProgressBy.IsZero() {
				return d.ID, state.RequireProgressBy
			}
		}
	}
	return "", time.Time{}
}

// Succeeded reports whether a deployment was successful. Its version of the job is then stable.
func (s State) Succeeded(id string) bool {
	return slices.ContainsFunc(s, func(d *api.Deployment) bool {
		return d.ID == id && d.Status == api.DeploymentStatusSuccessful
	})
}

// with adds the allocation's deployment, if it is new, and edits a copy of each deployment. An older deployment that is
// no longer kept is not new.
func (s State) with(alloc *api.Allocation, at Moment, edit func(*api.Deployment)) State {
	next, changed := slices.Clone(s), false
	own := func(d *api.Deployment) bool { return d.ID == alloc.DeploymentID }
	isLatest := func() bool { return len(s) == 0 || ptr.Deref(alloc.Job.Version) >= s[0].JobVersion }
	if alloc != nil && alloc.DeploymentID != "" && !slices.ContainsFunc(s, own) && isLatest() {
		next, changed = slices.Insert(next, 0, begin(alloc, at)), true
		next = next[:min(len(next), Kept)]
	}
	for i, d := range next {
		edited := *d
		edited.TaskGroups = map[string]*api.DeploymentState{}
		for name, state := range d.TaskGroups {
			edited.TaskGroups[name] = new(*state)
		}
		if edit(&edited); !reflect.DeepEqual(d, &edited) {
			edited.ModifyIndex, edited.ModifyTime = at.Index, at.Time
			next[i], changed = &edited, true
		}
	}
	if !changed {
		return s
	}
	return next
}

// begin returns the deployment of the allocation's version of the job. It uses little of the update block, most of
// which is for groups of many allocations, such as canaries.
func begin(alloc *api.Allocation, at Moment) *api.Deployment {
	state := &api.DeploymentState{DesiredTotal: 1}
	if group := alloc.GetTaskGroup(); group != nil && group.Update != nil {
		state.ProgressDeadline = max(0, ptr.Deref(group.Update.ProgressDeadline))
	}
	return &api.Deployment{
		ID: alloc.DeploymentID, Namespace: alloc.Namespace, JobID: alloc.JobID, JobVersion: ptr.Deref(alloc.Job.Version),
		JobModifyIndex: at.Index, JobSpecModifyIndex: at.Index, JobCreateIndex: ptr.Deref(alloc.Job.CreateIndex),
		TaskGroups: map[string]*api.DeploymentState{alloc.TaskGroup: state},
		Status:     api.DeploymentStatusRunning, StatusDescription: descriptionRunning,
		CreateIndex: at.Index, ModifyIndex: at.Index, CreateTime: at.Time, ModifyTime: at.Time,
	}
}

// follow brings a deployment up to date with a version of the allocation. The deployment of a later version of the job
// waits until the allocation is replaced.
func follow(d *api.Deployment, alloc *api.Allocation) {
	version, stopping := ptr.Deref(alloc.Job.Version), alloc.DesiredStatus == api.AllocDesiredStatusStop
	if d.ID != alloc.DeploymentID {
		switch {
		case d.JobVersion <= version:
			end(d, api.DeploymentStatusCancelled, descriptionNewer)
		case !stopping || !interfaces.Replaced(alloc):
			end(d, api.DeploymentStatusCancelled, descriptionStopped)
		}
		return
	}
	d.JobCreateIndex, d.JobModifyIndex = ptr.Deref(alloc.Job.CreateIndex), ptr.Deref(alloc.Job.ModifyIndex)
	d.JobSpecModifyIndex = ptr.Deref(alloc.Job.JobModifyIndex)
	state := d.TaskGroups[alloc.TaskGroup]
	if state.PlacedAllocs == 0 && state.ProgressDeadline > 0 {
		state.RequireProgressBy = time.Unix(0, alloc.ModifyTime).Add(state.ProgressDeadline).UTC()
	}
	state.PlacedAllocs, state.HealthyAllocs, state.UnhealthyAllocs = 1, 0, 0
	var healthy *bool
	if alloc.DeploymentStatus != nil {
		healthy = alloc.DeploymentStatus.Healthy
	}
	switch {
	case healthy != nil && *healthy:
		state.HealthyAllocs = 1
		end(d, api.DeploymentStatusSuccessful, descriptionSuccessful)
	case healthy != nil:
		state.UnhealthyAllocs = 1
		end(d, api.DeploymentStatusFailed, descriptionUnhealthy)
	case stopping && interfaces.Replaced(alloc):
		end(d, api.DeploymentStatusCancelled, descriptionNewer)
	case stopping:
		end(d, api.DeploymentStatusCancelled, descriptionStopped)
	case alloc.ClientTerminalStatus():
		end(d, api.DeploymentStatusFailed, descriptionUnhealthy)
	}
}

// end ends a deployment that runs.
func end(d *api.Deployment, status, description string) {
	if d.Status == api.DeploymentStatusRunning {
		d.Status, d.StatusDescription = status, description
	}
}
