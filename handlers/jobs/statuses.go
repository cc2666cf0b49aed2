package jobs

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"taskapi/handlers/internal/list"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
	"taskapi/internal/ptr"

	"github.com/hashicorp/nomad/api"
)

// statuses answers GET and POST /v1/jobs/statuses: the caller's job with its allocation and its latest deployment. A
// body names the jobs that are wanted.
func (h *handlers) statuses(ctx context.Context, r *route.Request) (route.Answer, error) {
	var want api.JobStatusesRequest
	if err := r.Decode(&want, true); err != nil {
		return route.Answer{}, err
	}
	if r.Method == http.MethodPost && len(want.Jobs) == 0 {
		return route.Answer{}, route.Invalid("no jobs in request")
	}
	of := jobListing(r)
	of.Stub = func(alloc *api.Allocation) any { return wireStatusOf(alloc, Deployments(r)) }
	l, err := list.New(r, of)
	if err != nil {
		return route.Answer{}, err
	}
	current, err := r.WithJob(ctx)
	if err != nil {
		return route.Answer{}, err
	}
	named := func(id api.NamespacedID) bool {
		return id.ID == current.JobID && cmp.Or(id.Namespace, api.DefaultNamespace) == current.Namespace
	}
	if len(want.Jobs) > 0 && !slices.ContainsFunc(want.Jobs, named) {
		return l.Answer(nil, current.ModifyIndex)
	}
	return l.Answer([]*api.Allocation{current}, current.ModifyIndex)
}

// wireStatus is one job, which the SDK has no type for.
type wireStatus struct {
	ID, Namespace    string
	Name, Type       string
	NodePool         string
	Datacenters      []string
	Priority         int
	Version          uint64
	SubmitTime       int64
	ModifyIndex      uint64
	Allocs           []wireAllocStatus
	GroupCountSum    int // there is one allocation in all
	ChildStatuses    []string
	ParentID         string
	LatestDeployment *wireLatestDeployment
	Stop, IsPack     bool
	Status           string
}

type wireAllocStatus struct {
	ID, Group, ClientStatus, NodeID string
	DeploymentStatus                struct {
		Canary  bool
		Healthy *bool
	}
	JobVersion     uint64
	FollowupEvalID string
	HasPausedTask  bool
}

type wireLatestDeployment struct {
	ID                                string
	IsActive                          bool
	JobVersion                        uint64
	Status, StatusDescription         string
	AllAutoPromote, RequiresPromotion bool
}

func wireStatusOf(alloc *api.Allocation, deployments []*api.Deployment) *wireStatus {
	job := wire.JobNow(alloc)
	shown := wireAllocStatus{
		ID: alloc.ID, Group: alloc.TaskGroup, ClientStatus: alloc.ClientStatus, NodeID: alloc.NodeID,
		JobVersion: ptr.Deref(job.Version), FollowupEvalID: alloc.FollowupEvalID,
	}
	if health := alloc.DeploymentStatus; health != nil {
		shown.DeploymentStatus.Canary, shown.DeploymentStatus.Healthy = health.Canary, health.Healthy
	}
	w := &wireStatus{
		ID: alloc.JobID, Namespace: alloc.Namespace, Name: ptr.Deref(job.Name), Type: ptr.Deref(job.Type),
		NodePool: wire.NodePool, Datacenters: job.Datacenters, Priority: ptr.Deref(job.Priority), Version: ptr.Deref(job.Version),
		SubmitTime: ptr.Deref(job.SubmitTime), ModifyIndex: ptr.Deref(job.ModifyIndex),
		Allocs: []wireAllocStatus{shown}, GroupCountSum: 1,
		ParentID: ptr.Deref(job.ParentID), Stop: ptr.Deref(job.Stop), Status: ptr.Deref(job.Status),
	}
	if len(deployments) > 0 {
		d := deployments[0]
		w.LatestDeployment = &wireLatestDeployment{
			ID: d.ID, IsActive: d.Status == api.DeploymentStatusRunning, JobVersion: d.JobVersion,
			Status: d.Status, StatusDescription: d.StatusDescription,
		}
	}
	return w
}
