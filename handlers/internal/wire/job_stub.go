package wire

import (
	"cmp"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/ptr"
)

// submitted returns the allocation's job as it was submitted, nil for none.
func submitted(alloc *api.Allocation) *api.Job {
	if alloc.Job == nil {
		return nil
	}
	job := *alloc.Job
	if ptr.Deref(job.Status) == "" {
		job.Status = new("pending")
	}
	if job.SubmitTime == nil { // nomad job status needs one
		job.SubmitTime = &alloc.CreateTime
	}
	return &job
}

// JobNow returns the allocation's job with its present status.
func JobNow(alloc *api.Allocation) *api.Job {
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

// JobStub adds what the SDK lacks.
type JobStub struct {
	*api.JobListStub
	NodePool    string
	Multiregion *api.Multiregion
}

func JobStubOf(alloc *api.Allocation, meta bool) JobStub {
	job := JobNow(alloc)
	stub := &api.JobListStub{
		ID: alloc.JobID, ParentID: ptr.Deref(job.ParentID), Name: ptr.Deref(job.Name), Namespace: alloc.Namespace,
		Datacenters: job.Datacenters, Type: ptr.Deref(job.Type), Priority: ptr.Deref(job.Priority), Stop: ptr.Deref(job.Stop),
		Status: ptr.Deref(job.Status), StatusDescription: ptr.Deref(job.StatusDescription), JobSummary: JobSummaryOf(alloc),
		CreateIndex: ptr.Deref(job.CreateIndex), ModifyIndex: ptr.Deref(job.ModifyIndex), JobModifyIndex: ptr.Deref(job.JobModifyIndex),
		SubmitTime: ptr.Deref(job.SubmitTime),
	}
	if meta {
		stub.Meta = job.Meta
	}
	return JobStub{stub, ptr.Deref(job.NodePool), job.Multiregion}
}

// JobSummaryOf counts the one allocation under its status. A job's other groups have none.
func JobSummaryOf(alloc *api.Allocation) *api.JobSummary {
	summary := map[string]api.TaskGroupSummary{}
	for _, group := range alloc.Job.TaskGroups {
		summary[ptr.Deref(group.Name)] = api.TaskGroupSummary{}
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
