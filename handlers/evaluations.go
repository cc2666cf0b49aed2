package handlers

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// maxEvaluations is how many of the latest evaluations are kept: a client reads one right after the answer that named it.
const maxEvaluations = 64

// What triggers evaluations.
const (
	triggerRegister   = "job-register"
	triggerDeregister = "job-deregister"
	triggerStop       = "alloc-stop"
)

// evaluations are those of stops and registrations. A cluster's scheduler would work on them; here everything is done when the answer
// goes out, so each is complete from the start. Clients such as nomad alloc stop wait for that.
type evaluations struct {
	made func(e *api.Evaluation, of *api.Allocation) // is called for each; nil for nobody

	mu     sync.Mutex // guards latest
	latest []*api.Evaluation
}

// add records what has just been done to an allocation and returns the evaluation's ID.
func (e *evaluations) add(triggeredBy string, alloc *api.Allocation, done api.DesiredUpdates) string {
	return e.addFor(triggeredBy, alloc, done, Registration{})
}

// addFor is add with the IDs of a registration: those of its evaluation and its deployment.
func (e *evaluations) addFor(
	triggeredBy string, alloc *api.Allocation, done api.DesiredUpdates, by Registration,
) string {
	now := time.Now().UnixNano()
	made := completed(alloc, done)
	made.ID, made.DeploymentID, made.Type = cmp.Or(by.EvalID, uuid.NewString()), by.DeploymentID, api.JobTypeService
	made.TriggeredBy = triggeredBy
	made.CreateIndex, made.ModifyIndex, made.CreateTime, made.ModifyTime = alloc.ModifyIndex, alloc.ModifyIndex, now, now
	made.SnapshotIndex = alloc.ModifyIndex
	if alloc.Job != nil {
		made.Type, made.Priority, made.JobModifyIndex = valueOf(alloc.Job.Type), valueOf(alloc.Job.Priority), valueOf(alloc.Job.JobModifyIndex)
	}
	e.keep(made)
	if e.made != nil {
		e.made(made, alloc)
	}
	return made.ID
}

// completed returns an evaluation of an allocation after which nothing is left to do.
func completed(alloc *api.Allocation, done api.DesiredUpdates) *api.Evaluation {
	return &api.Evaluation{
		Namespace: alloc.Namespace, JobID: alloc.JobID, Status: api.EvalStatusComplete,
		QueuedAllocations: map[string]int{alloc.TaskGroup: 0},
		PlanAnnotations:   &api.PlanAnnotations{DesiredTGUpdates: map[string]*api.DesiredUpdates{alloc.TaskGroup: &done}},
	}
}

func (e *evaluations) keep(made *api.Evaluation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.latest) == maxEvaluations {
		e.latest = e.latest[1:]
	}
	e.latest = append(e.latest, made)
}

// find returns the evaluation with the ID, or nil.
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

// of returns those of a job.
func (e *evaluations) of(job string) []*api.Evaluation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(e.latest), func(known *api.Evaluation) bool { return known.JobID != job })
}

// forget drops all of them.
func (e *evaluations) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.latest = nil
}

// evaluated records what a registration has just done to the caller's allocation and returns the evaluation's ID.
func (a *API) evaluated(r *request, done api.DesiredUpdates, by Registration) string {
	alloc, ok := r.visible()
	if !ok {
		return uuid.NewString() // with its allocation gone, nobody could read it
	}
	return a.evaluations.addFor(triggerRegister, alloc.Snapshot(), done, by)
}

// evaluationOf returns the evaluation that the path names, with the caller's allocation: one of add, or the one that placed the allocation.
func (a *API) evaluationOf(ctx context.Context, r *request) (*api.Evaluation, *api.Allocation, error) {
	current, err := a.withJob(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	id := r.param("eval")
	if found := a.evaluations.find(id); found != nil && found.JobID == current.JobID {
		return found, current, nil
	}
	if id != current.EvalID {
		return nil, nil, cmp.Or(checkUUID("evaluation ID", id), error(apierror.New(apierror.NoEval)))
	}
	return placementEvaluation(current), current, nil
}

// placementEvaluation returns the evaluation that placed the allocation. It names the deployment until the job changes.
func placementEvaluation(current *api.Allocation) *api.Evaluation {
	placed := completed(current, api.DesiredUpdates{Place: 1})
	placed.ID, placed.TriggeredBy = current.EvalID, triggerRegister
	placed.Type, placed.Priority = valueOf(current.Job.Type), valueOf(current.Job.Priority)
	placed.JobModifyIndex, placed.SnapshotIndex = valueOf(current.Job.CreateIndex), current.CreateIndex
	placed.CreateIndex, placed.ModifyIndex = current.CreateIndex, current.CreateIndex
	placed.CreateTime, placed.ModifyTime = current.CreateTime, current.CreateTime
	if jobIndexOf(current) == current.CreateIndex {
		placed.DeploymentID = current.DeploymentID
	}
	return placed
}

// evaluationGet answers GET /v1/evaluation/:id.
func (a *API) evaluationGet(ctx context.Context, r *request) (answer, error) {
	found, current, err := a.evaluationOf(ctx, r)
	if err != nil {
		return answer{}, err
	}
	encoded, err := encode(sparse(found))
	return answer{body: encoded, index: current.ModifyIndex}, err
}

// evaluationAllocations answers GET /v1/evaluation/:id/allocations.
func (a *API) evaluationAllocations(ctx context.Context, r *request) (answer, error) {
	list, err := newAllocList(r)
	if err != nil {
		return answer{}, err
	}
	_, current, err := a.evaluationOf(ctx, r)
	if err != nil {
		return answer{}, err
	}
	return list.answer([]*api.Allocation{current}, current.ModifyIndex)
}

// evaluationsOf returns all evaluations of the caller's job: the one that placed the allocation, and those of add.
func (a *API) evaluationsOf(current *api.Allocation) []*api.Evaluation {
	all := a.evaluations.of(current.JobID)
	if current.EvalID != "" {
		all = append(all, placementEvaluation(current))
	}
	return all
}

// newEvaluationList reads what the request asks of a list of evaluations; job and status select among them, as in Nomad.
func newEvaluationList(r *request) (list *list[*api.Evaluation], selected func([]*api.Evaluation) []*api.Evaluation, err error) {
	query, err := r.values()
	if err != nil {
		return nil, nil, err
	}
	list, err = newList(r, listing[*api.Evaluation]{
		order: byCreateIndex, uuid: true,
		id:        func(e *api.Evaluation) string { return e.ID },
		namespace: func(e *api.Evaluation) string { return e.Namespace },
		created:   func(e *api.Evaluation) uint64 { return e.CreateIndex },
		stub:      sparse[api.Evaluation],
	})
	job, status := query.Get("job"), query.Get("status")
	return list, func(all []*api.Evaluation) []*api.Evaluation {
		return slices.DeleteFunc(all, func(e *api.Evaluation) bool {
			return job != "" && e.JobID != job || status != "" && e.Status != status
		})
	}, err
}

// evaluationList answers GET /v1/evaluations and GET /v1/job/:job/evaluations.
func (a *API) evaluationList(ctx context.Context, r *request) (answer, error) {
	list, selected, err := newEvaluationList(r)
	if err != nil {
		return answer{}, err
	}
	current, err := a.withJob(ctx, r)
	if err != nil {
		return answer{}, err
	}
	if job := r.param("job"); job != "" && job != current.JobID {
		return list.answer(nil, current.ModifyIndex) // as in Nomad, where a job that is gone has none
	}
	return list.answer(selected(a.evaluationsOf(current)), current.ModifyIndex)
}

// evaluationCount answers GET /v1/evaluations/count.
func (a *API) evaluationCount(ctx context.Context, r *request) (answer, error) {
	list, selected, err := newEvaluationList(r)
	if err != nil {
		return answer{}, err
	}
	current, err := a.withJob(ctx, r)
	if err != nil {
		return answer{}, err
	}
	page, _, err := list.page(selected(a.evaluationsOf(current)))
	if err != nil {
		return answer{}, err
	}
	encoded, err := encode(struct {
		Count int
		wireMeta
	}{len(page), wireMeta{Index: current.ModifyIndex, KnownLeader: true}})
	return answer{body: encoded, index: current.ModifyIndex}, err
}

// evaluate answers PUT /v1/job/:job/evaluate: the job's one allocation has its place, so the evaluation is complete at once.
func (a *API) evaluate(ctx context.Context, r *request) (answer, error) {
	var want api.JobEvaluateRequest
	if err := r.decode(&want, true); err != nil {
		return answer{}, err
	}
	current, err := a.ownJob(ctx, r)
	switch {
	case err != nil:
		return answer{}, err
	case want.JobID != "" && want.JobID != current.JobID:
		return answer{}, apierror.New(apierror.JobMismatch)
	case want.EvalOptions.ForceReschedule:
		return answer{}, apierror.New(apierror.NotImplemented, "an allocation is not rescheduled here: run the job again when it has failed")
	}
	encoded, err := encode(wireRegistered{
		EvalID:          a.evaluations.add(triggerRegister, current, api.DesiredUpdates{Ignore: 1}),
		EvalCreateIndex: current.ModifyIndex, JobModifyIndex: valueOf(current.Job.JobModifyIndex),
		wireMeta: wireMeta{Index: current.ModifyIndex},
	})
	return answer{body: encoded, index: current.ModifyIndex}, err
}
