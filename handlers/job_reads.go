package handlers

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// ownJob returns the caller's allocation, as withJob does, when its job is the one that the path names. Errors: NoJob.
func (a *API) ownJob(ctx context.Context, r *request) (*api.Allocation, error) {
	current, err := a.withJob(ctx, r)
	if err != nil {
		return nil, err
	}
	query, err := r.values()
	if err != nil {
		return nil, err
	}
	if r.param("job") != current.JobID || !inNamespace(current, query.Get("namespace")) {
		return nil, apierror.New(apierror.NoJob)
	}
	return current, nil
}

// jobRead returns a handler of what is read of the caller's job.
func (a *API) jobRead(read func(*api.Allocation) any) handlerFunc {
	return func(ctx context.Context, r *request) (answer, error) {
		current, err := a.ownJob(ctx, r)
		if err != nil {
			return answer{}, err
		}
		encoded, err := encode(read(current))
		return answer{body: encoded, index: current.ModifyIndex}, err
	}
}

// readJob is GET /v1/job/:job: the job in its present version.
func readJob(current *api.Allocation) any { return wireJobOf(jobNow(current)) }

// readSummary is GET /v1/job/:job/summary.
func readSummary(current *api.Allocation) any { return jobSummaryOf(current) }

// readScale is GET /v1/job/:job/scale: the group that runs here has one allocation, until it stops, and the job's others have none.
func readScale(current *api.Allocation) any {
	job := jobNow(current)
	status := api.JobScaleStatusResponse{
		JobID: current.JobID, Namespace: current.Namespace, JobCreateIndex: valueOf(job.CreateIndex), JobModifyIndex: valueOf(job.ModifyIndex),
		JobStopped: valueOf(job.Stop), TaskGroups: map[string]api.TaskGroupScaleStatus{},
	}
	for _, group := range job.TaskGroups {
		status.TaskGroups[valueOf(group.Name)] = api.TaskGroupScaleStatus{}
	}
	var group api.TaskGroupScaleStatus
	if !status.JobStopped {
		group.Desired = 1
	}
	if !current.ClientTerminalStatus() {
		group.Placed = 1
	}
	if current.ClientStatus == api.AllocClientStatusRunning {
		group.Running = 1
	}
	if health := current.DeploymentStatus; health != nil && health.Healthy != nil {
		if *health.Healthy {
			group.Healthy = 1
		} else {
			group.Unhealthy = 1
		}
	}
	status.TaskGroups[current.TaskGroup] = group
	return status
}
