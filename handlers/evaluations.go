package handlers

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// maxEvaluations is how many evaluations are remembered, the latest: a client asks for one right after the answer that named it.
const maxEvaluations = 64

// evaluations are what stops and registrations have been answered with. A cluster's scheduler would work on them; here all is done when
// the answer goes out, so each is complete from its birth. Clients such as nomad alloc stop wait for that.
type evaluations struct {
	mu     sync.Mutex // guards latest
	latest []*api.Evaluation
}

// add makes an evaluation of what has just been done to an allocation and gives its ID.
func (e *evaluations) add(triggeredBy string, alloc *api.Allocation) string {
	now := time.Now().UnixNano()
	made := &api.Evaluation{
		ID: uuid.NewString(), Type: api.JobTypeService, TriggeredBy: triggeredBy, Namespace: alloc.Namespace, JobID: alloc.JobID,
		Status: api.EvalStatusComplete, CreateIndex: alloc.ModifyIndex, ModifyIndex: alloc.ModifyIndex, CreateTime: now, ModifyTime: now,
	}
	if alloc.Job != nil {
		made.Type, made.Priority, made.JobModifyIndex = valueOf(alloc.Job.Type), valueOf(alloc.Job.Priority), valueOf(alloc.Job.JobModifyIndex)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.latest) == maxEvaluations {
		e.latest = e.latest[1:]
	}
	e.latest = append(e.latest, made)
	return made.ID
}

// find is the evaluation of that ID, nil when it is not remembered.
func (e *evaluations) find(id string) *api.Evaluation {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, known := range e.latest {
		if known.ID == id {
			return known
		}
	}
	return nil
}

// evaluated is the ID of an evaluation of what has just been done to the caller's allocation.
func (a *API) evaluated(triggeredBy string, r *request) string {
	alloc, ok := r.visible()
	if !ok {
		return uuid.NewString() // that of an allocation that is gone would not be found either
	}
	return a.evaluations.add(triggeredBy, alloc.Snapshot())
}

// evaluationOf is the evaluation that the path names, of the caller's own allocation, which also has one that placed it.
func (a *API) evaluationOf(ctx context.Context, r *request) (*api.Evaluation, *api.Allocation, error) {
	current, err := a.ownAllocation(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	id := r.param("eval")
	if found := a.evaluations.find(id); found != nil && found.JobID == current.JobID {
		return found, current, nil
	}
	if id != current.EvalID {
		return nil, nil, apierror.New(apierror.NoEval)
	}
	return &api.Evaluation{
		ID: id, Type: valueOf(current.Job.Type), Priority: valueOf(current.Job.Priority), TriggeredBy: "job-register", Namespace: current.Namespace,
		JobID: current.JobID, Status: api.EvalStatusComplete, CreateIndex: current.CreateIndex, ModifyIndex: current.CreateIndex,
		CreateTime: current.CreateTime, ModifyTime: current.CreateTime,
	}, current, nil
}

// evaluationGet is GET /v1/evaluation/:id.
func (a *API) evaluationGet(ctx context.Context, r *request) (answer, error) {
	found, current, err := a.evaluationOf(ctx, r)
	if err != nil {
		return answer{}, err
	}
	encoded, err := encode(found)
	return answer{body: encoded, index: current.ModifyIndex}, err
}

// evaluationAllocations is GET /v1/evaluation/:id/allocations: the one that there is.
func (a *API) evaluationAllocations(ctx context.Context, r *request) (answer, error) {
	_, current, err := a.evaluationOf(ctx, r)
	if err != nil {
		return answer{}, err
	}
	encoded, err := encode([]*wireStub{wireStubOf(current, false, true)})
	return answer{body: encoded, index: current.ModifyIndex}, err
}
