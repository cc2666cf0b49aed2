package machine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
	"taskapi/internal/ptr"
)

// scale answers PUT /v1/job/:job/scale: the job is registered with another count of a group.
func (h *handlers) scale(ctx context.Context, r *route.Request, want *api.ScalingRequest) (route.Answer, error) {
	group := want.Target["Group"]
	switch {
	case want.Target["Job"] != "" && want.Target["Job"] != r.Param("job"):
		return route.Answer{}, apierror.New(apierror.JobMismatch)
	case group == "":
		return route.Answer{}, route.Invalid("missing task group name for scaling action: Target needs a Group")
	case want.Error:
		return route.Answer{}, route.Invalid("scaling events are not kept here: leave out Error")
	case want.Count == nil:
		return route.Answer{}, route.Invalid("Count is missing: scaling events without one are not kept here")
	case *want.Count < 0 || *want.Count > math.MaxInt32:
		return route.Answer{}, route.Invalid("Count must be a number of allocations, not %d", *want.Count)
	}
	running, err := h.running(ctx, r)
	if err != nil {
		return route.Answer{}, err
	}
	job, err := copyOf(running.Job)
	if err != nil {
		return route.Answer{}, err
	}
	i := slices.IndexFunc(job.TaskGroups, func(tg *api.TaskGroup) bool { return ptr.Deref(tg.Name) == group })
	switch {
	case i < 0:
		return route.Answer{}, route.Invalid("task group %s specified for scaling does not exist in job", route.Clip(group))
	case ptr.Deref(job.Type) == api.JobTypeSystem:
		return route.Answer{}, route.Invalid("a job of type system runs one allocation of each group on a machine")
	}
	if policy := job.TaskGroups[i].Scaling; policy != nil {
		if least := ptr.Deref(policy.Min); *want.Count < least {
			return route.Answer{}, route.Invalid("group count was less than scaling policy minimum: %d < %d", *want.Count, least)
		}
		if policy.Max != nil && *want.Count > *policy.Max {
			return route.Answer{}, route.Invalid("group count was greater than scaling policy maximum: %d > %d",
				*want.Count, *policy.Max)
		}
	}
	count := int(*want.Count)
	job.TaskGroups[i].Count, job.SubmitTime = &count, nil // it is submitted now
	return h.register(ctx, r, &api.JobRegisterRequest{
		Job: job, EnforceIndex: true, JobModifyIndex: cmp.Or(want.JobModifyIndex, ptr.Deref(job.JobModifyIndex)),
	})
}

// readScale answers GET /v1/job/:job/scale.
func (h *handlers) readScale(ctx context.Context, r *route.Request) (route.Answer, error) {
	index := h.Machine.Index()
	all, err := h.named(ctx, r)
	switch {
	case err != nil:
		return route.Answer{}, err
	case len(all) == 0 || all[0].Job == nil:
		return route.Answer{}, noJob
	}
	job := wire.JobNow(all[0])
	status := api.JobScaleStatusResponse{
		JobID: all[0].JobID, Namespace: all[0].Namespace, JobCreateIndex: ptr.Deref(job.CreateIndex),
		JobModifyIndex: ptr.Deref(job.JobModifyIndex), JobStopped: ptr.Deref(job.Stop),
		TaskGroups: map[string]api.TaskGroupScaleStatus{},
	}
	for _, tg := range job.TaskGroups {
		group := api.TaskGroupScaleStatus{Desired: 1}
		if tg.Count != nil {
			group.Desired = *tg.Count
		}
		for _, alloc := range all {
			if alloc.TaskGroup != ptr.Deref(tg.Name) || alloc.ClientTerminalStatus() {
				continue
			}
			group.Placed++
			if alloc.ClientStatus == api.AllocClientStatusRunning {
				group.Running++
			}
			if health := alloc.DeploymentStatus; health != nil && health.Healthy != nil {
				if *health.Healthy {
					group.Healthy++
				} else {
					group.Unhealthy++
				}
			}
		}
		status.TaskGroups[ptr.Deref(tg.Name)] = group
	}
	return route.Shared(status, index)
}

// running returns the allocation of the path's job that knows most versions of it. Errors: none runs.
func (h *handlers) running(ctx context.Context, r *route.Request) (*api.Allocation, error) {
	all, err := h.named(ctx, r)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, noJob
	}
	if all[0].ClientTerminalStatus() || all[0].Job == nil {
		return nil, apierror.New(apierror.Conflict,
			fmt.Sprintf("no allocation of job %q runs: register the job that is to run", r.Param("job")))
	}
	return all[0], nil
}

// copyOf returns a copy of a job that can be changed.
func copyOf(job *api.Job) (*api.Job, error) {
	text, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	var copied api.Job
	return &copied, json.Unmarshal(text, &copied)
}
