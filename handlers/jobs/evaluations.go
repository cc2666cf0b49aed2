package jobs

import (
	"cmp"
	"context"
	"slices"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/evaluations"
	"taskapi/handlers/internal/list"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
	"taskapi/internal/ptr"
)

// evaluationOf returns the evaluation of the caller's job that the path names.
func (h *handlers) evaluationOf(r *route.Request, current *api.Allocation) (*api.Evaluation, error) {
	id := r.Param("eval")
	if found := h.Evaluations.Find(id, current); found != nil {
		return found, nil
	}
	return nil, cmp.Or(route.CheckUUID("evaluation ID", id), error(apierror.New(apierror.NoEval)))
}

// evaluationGet is GET /v1/evaluation/:id.
func (h *handlers) evaluationGet(r *route.Request, current *api.Allocation) (any, error) {
	found, err := h.evaluationOf(r, current)
	if err != nil {
		return nil, err
	}
	return wire.Sparse(found), nil
}

// ofEvaluation reports whether the path names an evaluation of the caller's job. That of a child is about the child's
// allocation, which another process serves.
func (h *handlers) ofEvaluation(r *route.Request, current *api.Allocation) (bool, error) {
	found, err := h.evaluationOf(r, current)
	return err == nil && found.JobID == current.JobID, err
}

// EvaluationListing says how evaluations are listed.
func EvaluationListing(*route.Request) list.Listing[*api.Evaluation] {
	return list.Listing[*api.Evaluation]{
		Order: list.ByCreateIndex, UUID: true,
		ID:        func(e *api.Evaluation) string { return e.ID },
		Namespace: func(e *api.Evaluation) string { return e.Namespace },
		Created:   func(e *api.Evaluation) uint64 { return e.CreateIndex },
		Stub:      wire.Sparse[api.Evaluation],
	}
}

// evaluationList is GET /v1/evaluations and GET /v1/job/:job/evaluations: those of the caller's job. job and status
// select among them, as in Nomad, where a job that is gone has none.
func (h *handlers) evaluationList(r *route.Request, current *api.Allocation) ([]*api.Evaluation, error) {
	return EvaluationsFor(r, h.Evaluations.All(current)), nil
}

// EvaluationsFor returns the evaluations that a request's path and query select.
func EvaluationsFor(r *route.Request, all []*api.Evaluation) []*api.Evaluation {
	path, job, status := r.Param("job"), r.Query().Get("job"), r.Query().Get("status")
	return slices.DeleteFunc(all, func(e *api.Evaluation) bool {
		return path != "" && e.JobID != path || job != "" && e.JobID != job || status != "" && e.Status != status
	})
}

// evaluationCount answers GET /v1/evaluations/count.
func (h *handlers) evaluationCount(ctx context.Context, r *route.Request) (route.Answer, error) {
	l, err := list.New(r, EvaluationListing(r))
	if err != nil {
		return route.Answer{}, err
	}
	current, err := r.WithJob(ctx)
	if err != nil {
		return route.Answer{}, err
	}
	return CountEvaluations(l, EvaluationsFor(r, h.Evaluations.All(current)), current.ModifyIndex)
}

// CountEvaluations answers with the number of the evaluations that a list selects.
func CountEvaluations(l *list.List[*api.Evaluation], all []*api.Evaluation, index uint64) (route.Answer, error) {
	page, _, err := l.Page(all)
	if err != nil {
		return route.Answer{}, err
	}
	return route.Indexed(struct {
		Count int
		wire.Meta
	}{len(page), wire.Meta{Index: index, KnownLeader: true}}, index)
}

// evaluate answers PUT /v1/job/:job/evaluate: the job's one allocation has its place, so the evaluation is complete at
// once.
func (h *handlers) evaluate(ctx context.Context, r *route.Request, want *api.JobEvaluateRequest) (route.Answer, error) {
	current, err := r.OwnJob(ctx)
	switch {
	case err != nil:
		return route.Answer{}, err
	case want.JobID != "" && want.JobID != current.JobID:
		return route.Answer{}, apierror.New(apierror.JobMismatch)
	case want.EvalOptions.ForceReschedule:
		return route.Answer{}, apierror.New(apierror.NotImplemented,
			"an allocation is not rescheduled here: run the job again when it has failed")
	}
	return route.Indexed(wireRegistered{
		EvalID:          h.Evaluations.Add(evaluations.TriggerRegister, current, api.DesiredUpdates{Ignore: 1}),
		EvalCreateIndex: current.ModifyIndex, JobModifyIndex: ptr.Deref(current.Job.JobModifyIndex),
		Meta: wire.Meta{Index: current.ModifyIndex},
	}, current.ModifyIndex)
}
