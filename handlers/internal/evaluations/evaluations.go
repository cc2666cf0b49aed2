// Package evaluations keeps the latest evaluations: what Nomad's scheduler would have worked on after a registration, a
// stop or a change of a deployment. Here everything is done when the answer goes out, so each is complete from the
// start.
package evaluations

import (
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/internal/ptr"
)

// maxEvaluations is how many of the latest evaluations are kept: a client reads one right after the answer that named
// it.
const maxEvaluations = 64

// What triggers evaluations.
const (
	TriggerRegister   = "job-register"
	TriggerDeregister = "job-deregister"
	TriggerStop       = "alloc-stop"
)

// Store keeps the evaluations of stops, registrations and changes of deployments. Clients such as nomad alloc stop wait
// until an evaluation is complete.
type Store struct {
	made func(e *api.Evaluation, of *api.Allocation) // is called for each

	mu     sync.Mutex // guards latest
	latest []*api.Evaluation
}

// New returns an empty store, which calls made for each evaluation that is added.
func New(made func(e *api.Evaluation, of *api.Allocation)) *Store {
	return &Store{made: made}
}

// Add records what has just been done to an allocation and returns the evaluation's ID.
func (e *Store) Add(triggeredBy string, alloc *api.Allocation, done api.DesiredUpdates) string {
	return e.AddFor(triggeredBy, alloc, done, "", "")
}

// AddFor is add for an evaluation that has an ID, and a deployment; each may be empty.
func (e *Store) AddFor(
	triggeredBy string, alloc *api.Allocation, done api.DesiredUpdates, id, deploymentID string,
) string {
	now := time.Now().UnixNano()
	made := completed(alloc, done)
	if id == "" {
		id = uuid.NewString()
	}
	made.ID, made.DeploymentID, made.Type, made.TriggeredBy = id, deploymentID, api.JobTypeService, triggeredBy
	made.CreateIndex, made.ModifyIndex, made.CreateTime, made.ModifyTime = alloc.ModifyIndex, alloc.ModifyIndex, now, now
	made.SnapshotIndex = alloc.ModifyIndex
	if alloc.Job != nil {
		made.Type, made.Priority = ptr.Deref(alloc.Job.Type), ptr.Deref(alloc.Job.Priority)
		made.JobModifyIndex = JobIndexOf(alloc)
	}
	e.mu.Lock()
	e.latest = append(e.latest[max(0, len(e.latest)-maxEvaluations+1):], made)
	e.mu.Unlock()
	e.made(made, alloc)
	return id
}

// completed returns an evaluation of an allocation after which nothing is left to do.
func completed(alloc *api.Allocation, done api.DesiredUpdates) *api.Evaluation {
	return &api.Evaluation{
		Namespace: alloc.Namespace, JobID: alloc.JobID, Status: api.EvalStatusComplete,
		QueuedAllocations: map[string]int{alloc.TaskGroup: 0},
		PlanAnnotations:   &api.PlanAnnotations{DesiredTGUpdates: map[string]*api.DesiredUpdates{alloc.TaskGroup: &done}},
	}
}

// Find returns the evaluation with the ID that is of the allocation's job: one of add, or the one that placed the
// allocation. It returns nil for none.
func (e *Store) Find(id string, of *api.Allocation) *api.Evaluation {
	for _, known := range e.All(of) {
		if known.ID == id {
			return known
		}
	}
	return nil
}

// All returns the evaluations of the allocation's job: those of add, and the one that placed the allocation.
func (e *Store) All(of *api.Allocation) []*api.Evaluation {
	e.mu.Lock()
	defer e.mu.Unlock()
	ofJob := slices.DeleteFunc(slices.Clone(e.latest), func(known *api.Evaluation) bool { return known.JobID != of.JobID })
	if of.EvalID != "" {
		ofJob = append(ofJob, Placement(of))
	}
	return ofJob
}

// Forget drops all of them.
func (e *Store) Forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.latest = nil
}

// Placement returns the evaluation that placed the allocation. It names the deployment until the job changes.
func Placement(current *api.Allocation) *api.Evaluation {
	placed := completed(current, api.DesiredUpdates{Place: 1})
	placed.ID, placed.TriggeredBy = current.EvalID, TriggerRegister
	placed.Type, placed.Priority = ptr.Deref(current.Job.Type), ptr.Deref(current.Job.Priority)
	placed.JobModifyIndex, placed.SnapshotIndex = ptr.Deref(current.Job.CreateIndex), current.CreateIndex
	placed.CreateIndex, placed.ModifyIndex = current.CreateIndex, current.CreateIndex
	placed.CreateTime, placed.ModifyTime = current.CreateTime, current.CreateTime
	if JobIndexOf(current) == current.CreateIndex {
		placed.DeploymentID = current.DeploymentID
	}
	return placed
}

// JobIndexOf returns the JobModifyIndex of the allocation's job, 0 without one.
func JobIndexOf(alloc *api.Allocation) uint64 {
	if alloc.Job == nil {
		return 0
	}
	return ptr.Deref(alloc.Job.JobModifyIndex)
}
