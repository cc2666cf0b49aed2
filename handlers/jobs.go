package handlers

import (
	"cmp"
	"context"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// jobList answers GET /v1/jobs: the caller's own job. meta=true adds its meta.
func (a *API) jobList(ctx context.Context, r *request) (answer, error) {
	meta, err := r.flag("meta", false)
	if err != nil {
		return answer{}, err
	}
	list, err := newList(r, listing[*api.Allocation]{
		order:     byNamespaceID,
		id:        func(alloc *api.Allocation) string { return alloc.JobID },
		namespace: func(alloc *api.Allocation) string { return alloc.Namespace },
		stub:      func(alloc *api.Allocation) any { return jobStubOf(alloc, meta) },
		matched:   func(alloc *api.Allocation) any { return jobNow(alloc) },
	})
	if err != nil {
		return answer{}, err
	}
	current, err := a.withJob(ctx, r)
	if err != nil {
		return answer{}, err
	}
	return list.answer([]*api.Allocation{current}, current.ModifyIndex)
}

// withJob returns the caller's allocation with its job, as snapshot does. A job changes only with its allocation, so that the
// allocation's index is that of both.
func (a *API) withJob(ctx context.Context, r *request) (*api.Allocation, error) {
	alloc, ok := r.visible()
	if !ok {
		return nil, apierror.New(apierror.NoJob)
	}
	current, err := r.snapshot(ctx, alloc)
	if err == nil && current.Job == nil {
		err = apierror.New(apierror.NoJob)
	}
	return current, err
}

// inNamespace reports whether the allocation is in the namespace of a query, which may be empty.
func inNamespace(alloc *api.Allocation, namespace string) bool {
	return inQueriedNamespace(namespace, alloc.Namespace)
}

// submitted returns the allocation's job as it was submitted, nil for none.
func submitted(alloc *api.Allocation) *api.Job {
	if alloc.Job == nil {
		return nil
	}
	job := *alloc.Job
	if valueOf(job.Status) == "" {
		job.Status = new("pending")
	}
	if job.SubmitTime == nil { // nomad job status needs one
		job.SubmitTime = &alloc.CreateTime
	}
	return &job
}

// jobNow returns the allocation's job with its present status.
func jobNow(alloc *api.Allocation) *api.Job {
	job := submitted(alloc)
	status := jobStatus(alloc.ClientStatus)
	job.Status = &status
	if alloc.DesiredStatus == api.AllocDesiredStatusStop {
		stopped := true
		job.Stop = &stopped
	}
	return job
}

func jobStatus(clientStatus string) string {
	switch clientStatus {
	case api.AllocClientStatusPending, "":
		return "pending"
	case api.AllocClientStatusRunning, api.AllocClientStatusUnknown:
		return "running"
	}
	return "dead"
}

// wireJobStub adds what the SDK lacks.
type wireJobStub struct {
	*api.JobListStub
	NodePool    string
	Multiregion *api.Multiregion
}

func jobStubOf(alloc *api.Allocation, meta bool) wireJobStub {
	job := jobNow(alloc)
	stub := &api.JobListStub{
		ID: alloc.JobID, ParentID: valueOf(job.ParentID), Name: valueOf(job.Name), Namespace: alloc.Namespace,
		Datacenters: job.Datacenters, Type: valueOf(job.Type), Priority: valueOf(job.Priority), Stop: valueOf(job.Stop),
		Status: valueOf(job.Status), StatusDescription: valueOf(job.StatusDescription), JobSummary: jobSummaryOf(alloc),
		CreateIndex: valueOf(job.CreateIndex), ModifyIndex: valueOf(job.ModifyIndex), JobModifyIndex: valueOf(job.JobModifyIndex),
		SubmitTime: valueOf(job.SubmitTime),
	}
	if meta {
		stub.Meta = job.Meta
	}
	return wireJobStub{stub, valueOf(job.NodePool), job.Multiregion}
}

// jobSummaryOf counts the one allocation under its status. A job's other groups have none.
func jobSummaryOf(alloc *api.Allocation) *api.JobSummary {
	summary := map[string]api.TaskGroupSummary{}
	for _, group := range alloc.Job.TaskGroups {
		summary[valueOf(group.Name)] = api.TaskGroupSummary{}
	}
	var count api.TaskGroupSummary
	switch alloc.ClientStatus {
	case api.AllocClientStatusRunning:
		count.Running = 1
	case api.AllocClientStatusComplete:
		count.Complete = 1
	case api.AllocClientStatusFailed:
		count.Failed = 1
	case api.AllocClientStatusLost:
		count.Lost = 1
	case api.AllocClientStatusUnknown:
		count.Unknown = 1
	default:
		count.Starting = 1
	}
	summary[alloc.TaskGroup] = count
	return &api.JobSummary{
		JobID: alloc.JobID, Namespace: alloc.Namespace, Summary: summary, Children: &api.JobChildrenSummary{},
		CreateIndex: alloc.CreateIndex, ModifyIndex: alloc.ModifyIndex,
	}
}

// valueOf returns what p points to, or the zero value.
func valueOf[T any](p *T) T { return *cmp.Or(p, new(T)) }
