package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
	"taskapi/internal/ptr"
)

var noJob = apierror.New(apierror.NoJob)

// registered is Nomad's answer to a registration, and to the end of a job.
type registered struct {
	EvalID          string
	EvalCreateIndex uint64
	JobModifyIndex  uint64
	Warnings        string
	wire.Meta
}

// register answers PUT /v1/jobs and PUT /v1/job/:job: the allocations of the job start, or those that run get another
// version of it. The evaluation is complete when all of that is done.
func (h *handlers) register(ctx context.Context, r *route.Request, want *api.JobRegisterRequest) (route.Answer, error) {
	switch {
	case want.Job == nil:
		return route.Answer{}, apierror.New(apierror.JobMissing)
	case ptr.Deref(want.Job.ID) == "":
		return route.Answer{}, apierror.New(apierror.JobWithoutID)
	case r.Param("job") != "" && r.Param("job") != *want.Job.ID:
		return route.Answer{}, apierror.New(apierror.JobMismatch)
	}
	setNamespace(r, want.Job)
	if err := r.TakeTurn(ctx, h.registering); err != nil {
		return route.Answer{}, err
	}
	defer h.registering.Leave()
	if err := h.enforceIndex(ctx, want); err != nil {
		return route.Answer{}, err
	}
	judged, err := h.Parser.Validate(ctx, want.Job)
	if err == nil {
		err = errorsOf(judged.Errors)
	}
	if err != nil {
		return route.Answer{}, err
	}
	result, err := h.Machine.Register(ctx, want.Job)
	if err != nil {
		return route.Answer{}, err
	}
	index := h.Machine.Index()
	e := evaluationOf(uuid.NewString(), *want.Job.Namespace, *want.Job.ID, "job-register", index)
	e.Type, e.Priority = cmp.Or(ptr.Deref(want.Job.Type), e.Type), cmp.Or(ptr.Deref(want.Job.Priority), e.Priority)
	e.Status = api.EvalStatusPending
	h.evaluations.add(e)
	wait := time.NewTimer(registerTime)
	defer wait.Stop()
	select {
	case err := <-result:
		h.finish(e, err)
	case <-wait.C:
		go func() { h.finish(e, <-result) }() // ends with the work
	}
	return route.Indexed(registered{
		EvalID: e.ID, EvalCreateIndex: index, JobModifyIndex: index, Warnings: judged.Warnings, Meta: wire.Meta{Index: index},
	}, index)
}

// setNamespace gives a job without a namespace that of the query.
func setNamespace(r *route.Request, job *api.Job) {
	if ptr.Deref(job.Namespace) != "" {
		return
	}
	namespace := r.Query().Get("namespace")
	if namespace == "" || namespace == route.AllNamespaces {
		namespace = api.DefaultNamespace
	}
	job.Namespace = &namespace
}

// registerTime is how long an answer to a registration waits for the tasks to start.
const registerTime = 5 * time.Second

// finish ends an evaluation.
func (h *handlers) finish(e *api.Evaluation, err error) {
	ended := *e
	ended.Status, ended.ModifyIndex, ended.ModifyTime = api.EvalStatusComplete, h.Machine.Index(), time.Now().UnixNano()
	if err != nil {
		ended.Status, ended.StatusDescription = api.EvalStatusFailed, err.Error()
	}
	h.evaluations.add(&ended)
}

// errorsOf returns what keeps a job from running here as one error.
func errorsOf(all []string) error {
	switch len(all) {
	case 0:
		return nil
	case 1:
		return apierror.New(apierror.Invalid, all[0])
	}
	var errs []error
	for _, text := range all {
		errs = append(errs, errors.New(text))
	}
	return apierror.New(apierror.Invalid,
		fmt.Sprintf("%d things of the job can't run here:\n%v", len(all), errors.Join(errs...)))
}

// revert answers PUT /v1/job/:job/revert: all allocations of the job get an earlier version of it, as if it were
// registered again.
func (h *handlers) revert(ctx context.Context, r *route.Request, want *api.JobRevertRequest) (route.Answer, error) {
	if want.JobID != "" && want.JobID != r.Param("job") {
		return route.Answer{}, apierror.New(apierror.JobMismatch)
	}
	all, err := h.Machine.OfJob(ctx, r.Query().Get("namespace"), r.Param("job"))
	if err != nil {
		return route.Answer{}, err
	}
	switch {
	case len(all) == 0:
		return route.Answer{}, noJob
	case all[0].ClientTerminalStatus():
		return route.Answer{}, route.Invalid("job %q has ended: register the version that is to run", r.Param("job"))
	}
	var kept struct{ Versions []*api.Job } // the present one first
	path := "/v1/job/" + url.PathEscape(r.Param("job")) + "/versions?namespace=" + url.QueryEscape(all[0].Namespace)
	if err := h.ask(ctx, all[0].ID, path, &kept); err != nil || len(kept.Versions) == 0 {
		why := fmt.Sprintf("the taskapi of allocation %s does not say its versions; try again", all[0].ID)
		return route.Answer{}, apierror.New(apierror.Unavailable, why).Because(err)
	}
	now := ptr.Deref(kept.Versions[0].Version)
	if prior := want.EnforcePriorVersion; prior != nil && now != *prior {
		why := fmt.Sprintf("Current job has version %d; enforcing version %d", now, *prior)
		return route.Answer{}, apierror.New(apierror.Conflict, why)
	}
	found := slices.IndexFunc(kept.Versions, func(j *api.Job) bool { return ptr.Deref(j.Version) == want.JobVersion })
	switch {
	case found == 0:
		return route.Answer{}, route.Invalid("can't revert to version %d: it is the present one", want.JobVersion)
	case found < 0:
		return route.Answer{}, apierror.New(apierror.NoVersion, r.Param("job"), want.JobVersion)
	}
	job := kept.Versions[found]
	job.SubmitTime = nil // it is submitted now
	return h.register(ctx, r, &api.JobRegisterRequest{Job: job})
}

// enforceIndex refuses a job that was made from another version than the present one.
func (h *handlers) enforceIndex(ctx context.Context, want *api.JobRegisterRequest) error {
	if !want.EnforceIndex {
		return nil
	}
	all, err := h.Machine.OfJob(ctx, *want.Job.Namespace, *want.Job.ID)
	if err != nil {
		return err
	}
	var index uint64
	if len(all) > 0 && !all[0].ClientTerminalStatus() && all[0].Job != nil {
		index = ptr.Deref(all[0].Job.JobModifyIndex)
	}
	switch want.JobModifyIndex {
	case index:
		return nil
	case 0:
		return apierror.New(apierror.EnforcedMissing)
	}
	return apierror.New(apierror.EnforcedIndex, want.JobModifyIndex, index)
}

// deregister answers DELETE /v1/job/:job: its allocations begin to stop. purge=true removes all of the job's
// allocations when they have ended.
func (h *handlers) deregister(ctx context.Context, r *route.Request) (route.Answer, error) {
	purge := r.Flag("purge", false)
	if purge && r.Unrecorded != nil {
		return route.Answer{}, r.Unrecorded
	}
	all, err := h.named(ctx, r)
	if err != nil {
		return route.Answer{}, err
	}
	if len(all) == 0 {
		return route.Answer{}, noJob
	}
	if err := h.Machine.Stop(ctx, all, r.Flag("no_shutdown_delay", false), purge); err != nil {
		return route.Answer{}, err
	}
	index := h.Machine.Index()
	e := evaluationOf(uuid.NewString(), all[0].Namespace, all[0].JobID, "job-deregister", index)
	h.evaluations.add(e)
	return route.Indexed(registered{
		EvalID: e.ID, EvalCreateIndex: index, JobModifyIndex: index, Meta: wire.Meta{Index: index},
	}, index)
}

// plan answers PUT /v1/job/:job/plan: by the process that runs an allocation of the job or, for a job that does not
// run, with the allocations that would start.
func (h *handlers) plan(ctx context.Context, r *route.Request, want *api.JobPlanRequest) (route.Answer, error) {
	switch {
	case want.Job == nil:
		return route.Answer{}, apierror.New(apierror.JobMissing)
	case ptr.Deref(want.Job.ID) != r.Param("job"):
		return route.Answer{}, apierror.New(apierror.JobMismatch)
	}
	setNamespace(r, want.Job)
	all, err := h.Machine.OfJob(ctx, *want.Job.Namespace, r.Param("job"))
	if err != nil {
		return route.Answer{}, err
	}
	if len(all) > 0 && !all[0].ClientTerminalStatus() {
		return h.passValue(ctx, r, all[0], want)
	}
	judged, err := h.Parser.Validate(ctx, want.Job)
	if err == nil {
		err = errorsOf(judged.Errors)
	}
	if err != nil {
		return route.Answer{}, err
	}
	index := h.Machine.Index()
	planned := plan{JobPlanResponse: &api.JobPlanResponse{
		Annotations: &api.PlanAnnotations{DesiredTGUpdates: map[string]*api.DesiredUpdates{}}, Warnings: judged.Warnings,
	}, Index: index}
	diff := &api.JobDiff{Type: "Added", ID: *want.Job.ID}
	for _, group := range want.Job.TaskGroups {
		count := uint64(max(0, ptr.Deref(group.Count)))
		if group.Count == nil || ptr.Deref(want.Job.Type) == api.JobTypeSystem {
			count = 1
		}
		planned.Annotations.DesiredTGUpdates[ptr.Deref(group.Name)] = &api.DesiredUpdates{Place: count}
		diff.TaskGroups = append(diff.TaskGroups, &api.TaskGroupDiff{
			Type: "Added", Name: ptr.Deref(group.Name), Updates: map[string]uint64{"create": count},
		})
	}
	if want.Diff {
		planned.Diff = diff
	}
	return route.Indexed(planned, index)
}

// plan has null for the next launch, as in Nomad for a job that is not periodic.
type plan struct {
	*api.JobPlanResponse
	NextPeriodicLaunch *time.Time
	Index              uint64
}
