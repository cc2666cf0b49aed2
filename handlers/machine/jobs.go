package machine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
	"taskapi/handlers/jobs"
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

// register answers PUT /v1/jobs and PUT /v1/job/:job. The allocations of the job start, or running allocations get the
// new version of the job. The evaluation is complete when all work is done.
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
	judged, err := h.judgeInTurn(ctx, r, want.Job)
	if err != nil {
		return route.Answer{}, err
	}
	wait := time.NewTimer(registerTime)
	defer wait.Stop()
	var before string
	result, err := h.Machine.Register(ctx, want.Job, func(now []*api.Allocation) error {
		before = h.deploymentID(ctx, *want.Job.Namespace, *want.Job.ID)
		return enforceIndex(want, now)
	})
	if err != nil {
		return route.Answer{}, err
	}
	index := h.Machine.Index()
	e := evaluationOf(uuid.NewString(), *want.Job.Namespace, *want.Job.ID, "job-register", index)
	e.Type, e.Priority = cmp.Or(ptr.Deref(want.Job.Type), e.Type), cmp.Or(ptr.Deref(want.Job.Priority), e.Priority)
	e.Status = api.EvalStatusPending
	h.Evaluations.Add(e)
	modified := index
	select {
	case err := <-result:
		h.finish(ctx, e, before, err)
		if now, err := h.Machine.OfJob(ctx, *want.Job.Namespace, *want.Job.ID); err == nil {
			modified = cmp.Or(modifyIndex(now), index)
		}
	case <-wait.C:
		go func() { h.finish(context.WithoutCancel(ctx), e, before, <-result) }() // ends with the work
	}
	return route.Indexed(registered{
		EvalID: e.ID, EvalCreateIndex: index, JobModifyIndex: modified, Warnings: judged.Warnings,
		Meta: wire.Meta{Index: index},
	}, index)
}

// setNamespace gives a job without a namespace that of the query.
func setNamespace(r *route.Request, job *api.Job) {
	if ptr.Deref(job.Namespace) != "" {
		return
	}
	job.Namespace = new(namespaceOf(r))
}

// namespaceOf returns the namespace of the query, the default one without it.
func namespaceOf(r *route.Request) string {
	namespace := r.Query().Get("namespace")
	if namespace == "" || namespace == route.AllNamespaces {
		return api.DefaultNamespace
	}
	return namespace
}

// registerTime is how long an answer to a registration waits for the tasks to start.
const registerTime = 5 * time.Second

// finish ends an evaluation of a registration. It names the job's deployment, if that is not the one before.
func (h *handlers) finish(ctx context.Context, e *api.Evaluation, before string, err error) {
	ended := *e
	ended.Status, ended.ModifyIndex, ended.ModifyTime = api.EvalStatusComplete, h.Machine.Index(), time.Now().UnixNano()
	if err != nil {
		ended.Status, ended.StatusDescription = api.EvalStatusFailed, err.Error()
	}
	if id := h.deploymentID(ctx, e.Namespace, e.JobID); id != before {
		ended.DeploymentID = id
	}
	h.Evaluations.Add(&ended)
}

// deploymentID returns the ID of a job's latest deployment, empty for none.
func (h *handlers) deploymentID(ctx context.Context, namespace, job string) string {
	all, err := h.Machine.OfJob(ctx, namespace, job)
	if err != nil || len(all) == 0 {
		return ""
	}
	for _, alloc := range all { // of the latest version, of which a group may have none
		if alloc.DeploymentID != "" && ptr.Deref(alloc.Job.Version) == ptr.Deref(all[0].Job.Version) {
			return alloc.DeploymentID
		}
	}
	return ""
}

// judgeInTurn is judge for one registration at a time, since a job may take many times its size in memory.
func (h *handlers) judgeInTurn(ctx context.Context, r *route.Request, job *api.Job) (jobs.Validation, error) {
	if err := r.TakeTurn(ctx, h.registering); err != nil {
		return jobs.Validation{}, err
	}
	defer h.registering.Release(1)
	return h.judge(ctx, job)
}

// judge returns what a registration of a job would say. Errors: *apierror.Error for a job that can't run here.
func (h *handlers) judge(ctx context.Context, job *api.Job) (jobs.Validation, error) {
	judged, err := h.Parser.Validate(ctx, job)
	if err != nil {
		return judged, err
	}
	switch all := judged.Errors; len(all) {
	case 0:
		return judged, nil
	case 1:
		return judged, apierror.New(apierror.Invalid, all[0])
	default:
		return judged, apierror.New(apierror.Invalid,
			fmt.Sprintf("%d parts of the job can't run here:\n%s", len(all), strings.Join(all, "\n")))
	}
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
	of, versions := h.history(ctx, all)
	if len(versions) == 0 {
		return route.Answer{}, apierror.New(apierror.Unavailable,
			fmt.Sprintf("the taskapi of allocation %s does not say its versions; try again", of.ID))
	}
	now := ptr.Deref(versions[0].Version)
	if prior := want.EnforcePriorVersion; prior != nil && now != *prior {
		why := fmt.Sprintf("Current job has version %d; enforcing version %d", now, *prior)
		return route.Answer{}, apierror.New(apierror.Conflict, why)
	}
	found := slices.IndexFunc(versions, func(j *api.Job) bool { return ptr.Deref(j.Version) == want.JobVersion })
	switch {
	case found == 0:
		return route.Answer{}, route.Invalid("can't revert to version %d: it is the present one", want.JobVersion)
	case found < 0:
		return route.Answer{}, apierror.New(apierror.NoVersion, r.Param("job"), want.JobVersion)
	}
	job := versions[found]
	job.SubmitTime = nil // it is submitted now
	return h.register(ctx, r, &api.JobRegisterRequest{Job: job})
}

// enforceIndex refuses a job that was made from another version than the present one.
func enforceIndex(want *api.JobRegisterRequest, all []*api.Allocation) error {
	if !want.EnforceIndex {
		return nil
	}
	index := modifyIndex(all)
	switch want.JobModifyIndex {
	case index:
		return nil
	case 0:
		return apierror.New(apierror.EnforcedMissing)
	}
	return apierror.New(apierror.EnforcedIndex, want.JobModifyIndex, index)
}

// modifyIndex returns the index of a job's present version, 0 for a job of which no allocation runs.
func modifyIndex(all []*api.Allocation) uint64 {
	if len(all) == 0 || all[0].ClientTerminalStatus() || all[0].Job == nil {
		return 0
	}
	return ptr.Deref(all[0].Job.JobModifyIndex)
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
	namespace, job := namespaceOf(r), r.Param("job") // of a registration that has begun nothing yet
	if len(all) > 0 {
		namespace, job = all[0].Namespace, all[0].JobID
	}
	found, err := h.Machine.Stop(ctx, namespace, job, r.Flag("no_shutdown_delay", false), purge)
	if err != nil {
		return route.Answer{}, err
	}
	if !found {
		return route.Answer{}, noJob
	}
	index := h.Machine.Index()
	e := evaluationOf(uuid.NewString(), namespace, job, "job-deregister", index)
	h.Evaluations.Add(e)
	return route.Indexed(registered{
		EvalID: e.ID, EvalCreateIndex: index, JobModifyIndex: index, Meta: wire.Meta{Index: index},
	}, index)
}
