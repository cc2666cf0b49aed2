// Package evaluations keeps the latest evaluations: what Nomad's scheduler would have worked on after a registration, a
// stop or a change of a deployment. Here everything is done when the answer goes out, so each is complete from the
// start.
package evaluations

import (
	"cmp"
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
	TriggerPeriodic   = "periodic-job"
)

// Store keeps the evaluations of stops, registrations and changes of deployments. Clients such as nomad alloc stop wait
// until an evaluation is complete.
type Store struct {
	made func(e *api.Evaluation, of *api.Allocation) // is called for each

	mu     sync.Mutex // guards latest
	latest []entry
}

// entry is an evaluation, and the job whose clients find it.
type entry struct {
	*api.Evaluation
	finders string
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
	made := completed(alloc, done, cmp.Or(id, uuid.NewString()), triggeredBy, alloc.ModifyIndex, time.Now().UnixNano())
	made.DeploymentID = deploymentID
	return e.add(made, alloc)
}

// AddChild records that a job has started a child, as an evaluation of that child, and returns the evaluation's ID.
func (e *Store) AddChild(triggeredBy string, parent *api.Allocation, job string) string {
	made := completed(parent, api.DesiredUpdates{Place: 1}, uuid.NewString(), triggeredBy, parent.ModifyIndex,
		time.Now().UnixNano())
	made.JobID = job
	return e.add(made, parent)
}

func (e *Store) add(made *api.Evaluation, of *api.Allocation) string {
	e.mu.Lock()
	e.latest = append(e.latest[max(0, len(e.latest)-maxEvaluations+1):], entry{made, of.JobID})
	e.mu.Unlock()
	e.made(made, of)
	return made.ID
}

// completed returns an evaluation of an allocation after which nothing is left to do, of an index and a time.
func completed(
	alloc *api.Allocation, done api.DesiredUpdates, id, triggeredBy string, index uint64, at int64,
) *api.Evaluation {
	e := &api.Evaluation{
		ID: id, TriggeredBy: triggeredBy, Type: api.JobTypeService,
		Namespace: alloc.Namespace, JobID: alloc.JobID, Status: api.EvalStatusComplete,
		CreateIndex: index, ModifyIndex: index, SnapshotIndex: index, CreateTime: at, ModifyTime: at,
		QueuedAllocations: map[string]int{alloc.TaskGroup: 0},
		PlanAnnotations:   &api.PlanAnnotations{DesiredTGUpdates: map[string]*api.DesiredUpdates{alloc.TaskGroup: &done}},
	}
	if alloc.Job != nil {
		e.Type, e.Priority, e.JobModifyIndex = ptr.Deref(alloc.Job.Type), ptr.Deref(alloc.Job.Priority), JobIndexOf(alloc)
	}
	return e
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

// All returns the evaluations of the allocation's job and of its children: those of add, and the one that placed the
// allocation.
func (e *Store) All(of *api.Allocation) []*api.Evaluation {
	e.mu.Lock()
	defer e.mu.Unlock()
	var ofJob []*api.Evaluation
	for _, known := range e.latest {
		if known.finders == of.JobID {
			ofJob = append(ofJob, known.Evaluation)
		}
	}
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
	placed := completed(current, api.DesiredUpdates{Place: 1}, current.EvalID, TriggerRegister,
		current.CreateIndex, current.CreateTime)
	if current.Job != nil {
		placed.JobModifyIndex = ptr.Deref(current.Job.CreateIndex)
	}
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
