package machine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/evaluations"
	"taskapi/handlers/internal/list"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
	"taskapi/handlers/jobs"
)

// mostEvaluations is how many of the latest evaluations are kept.
const mostEvaluations = 256

// Evaluations are those of registrations and stops on this socket.
type Evaluations struct {
	mu     sync.Mutex // guards latest; an element is replaced, never changed
	latest []*api.Evaluation
}

// evaluationOf returns a complete evaluation.
func evaluationOf(id, namespace, job, trigger string, index uint64) *api.Evaluation {
	now := time.Now().UnixNano()
	return &api.Evaluation{
		ID: id, Namespace: namespace, JobID: job, TriggeredBy: trigger, Type: api.JobTypeService, Priority: 50,
		Status: api.EvalStatusComplete, CreateIndex: index, ModifyIndex: index, SnapshotIndex: index,
		JobModifyIndex: index, CreateTime: now, ModifyTime: now,
	}
}

// Add keeps an evaluation, or a later version of it.
func (e *Evaluations) Add(made *api.Evaluation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if i := slices.IndexFunc(e.latest, func(known *api.Evaluation) bool { return known.ID == made.ID }); i >= 0 {
		e.latest[i] = made
		return
	}
	e.latest = append(e.latest[max(0, len(e.latest)-mostEvaluations+1):], made)
}

// All returns the evaluations of a namespace.
func (e *Evaluations) All(namespace string) []*api.Evaluation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(e.latest), func(known *api.Evaluation) bool {
		return !route.InNamespace(namespace, known.Namespace)
	})
}

func (e *Evaluations) find(id string) *api.Evaluation {
	for _, known := range e.All(route.AllNamespaces) {
		if known.ID == id {
			return known
		}
	}
	return nil
}

// found returns the evaluation that the path names: one of this socket, or one that has placed an allocation.
func (h *handlers) found(ctx context.Context, r *route.Request) (*api.Evaluation, error) {
	id := r.Param("eval")
	if known := h.Evaluations.find(id); known != nil {
		return known, nil
	}
	if err := route.CheckUUID("evaluation ID", id); err != nil {
		return nil, err
	}
	all, err := h.Machine.Allocations(ctx)
	if err != nil {
		return nil, err
	}
	for _, alloc := range all {
		if alloc.EvalID == id {
			return evaluations.Placement(alloc), nil
		}
	}
	return nil, apierror.New(apierror.NoEval)
}

// evaluation answers GET /v1/evaluation/:id.
func (h *handlers) evaluation(ctx context.Context, r *route.Request) (route.Answer, error) {
	e, err := h.found(ctx, r)
	if err != nil {
		return route.Answer{}, err
	}
	return route.Shared(wire.Sparse(e), h.Machine.Index())
}

// evaluationAllocations answers GET /v1/evaluation/:id/allocations with those of the evaluation's job.
func (h *handlers) evaluationAllocations(ctx context.Context, r *route.Request) (route.Answer, error) {
	e, err := h.found(ctx, r)
	if err != nil {
		return route.Answer{}, err
	}
	return h.answerAllocations(ctx, r, h.selecting(func(alloc *api.Allocation) bool {
		return alloc.JobID == e.JobID && alloc.Namespace == e.Namespace
	}))
}

// evaluationList answers GET /v1/evaluations, GET /v1/evaluations/count and GET /v1/job/:job/evaluations.
func (h *handlers) evaluationList(ctx context.Context, r *route.Request) (route.Answer, error) {
	l, err := list.New(r, jobs.EvaluationListing(r))
	if err != nil {
		return route.Answer{}, err
	}
	index := h.Machine.Index()
	all, err := h.named(ctx, r)
	if err != nil {
		return route.Answer{}, err
	}
	namespace := r.Query().Get("namespace")
	if r.Param("job") != "" && namespace == "" {
		namespace = api.DefaultNamespace
	}
	if len(all) > 0 && r.Param("job") != "" {
		namespace = all[0].Namespace
	}
	found := h.Evaluations.All(namespace)
	known := map[string]bool{}
	for _, e := range found {
		known[e.ID] = true
	}
	for _, alloc := range all {
		if alloc.EvalID != "" && !known[alloc.EvalID] {
			known[alloc.EvalID] = true
			found = append(found, evaluations.Placement(alloc))
		}
	}
	found = jobs.EvaluationsFor(r, found)
	if strings.HasSuffix(r.URL.Path, "/count") {
		return jobs.CountEvaluations(l, found, index)
	}
	answer, err := l.Answer(found, index)
	answer.Shared = true
	return answer, err
}
