package handlers

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// jobStatuses answers GET and POST /v1/jobs/statuses: the caller's job with its allocation and its latest deployment. A
// body names the jobs that are wanted.
func (a *API) jobStatuses(ctx context.Context, r *request) (answer, error) {
	var want api.JobStatusesRequest
	if err := r.decode(&want, true); err != nil {
		return answer{}, err
	}
	if r.Method == http.MethodPost && len(want.Jobs) == 0 {
		return answer{}, invalid("no jobs in request")
	}
	list, err := newList(r, listing[*api.Allocation]{
		order:     byNamespaceID,
		id:        func(alloc *api.Allocation) string { return alloc.JobID },
		namespace: func(alloc *api.Allocation) string { return alloc.Namespace },
		stub:      func(alloc *api.Allocation) any { return wireStatusOf(alloc, a.deployments(r)) },
		matched:   func(alloc *api.Allocation) any { return jobNow(alloc) },
	})
	if err != nil {
		return answer{}, err
	}
	current, err := a.withJob(ctx, r)
	if err != nil {
		return answer{}, err
	}
	named := func(id api.NamespacedID) bool {
		return id.ID == current.JobID && cmp.Or(id.Namespace, api.DefaultNamespace) == current.Namespace
	}
	if len(want.Jobs) > 0 && !slices.ContainsFunc(want.Jobs, named) {
		return list.answer(nil, current.ModifyIndex)
	}
	return list.answer([]*api.Allocation{current}, current.ModifyIndex)
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
	job := jobNow(alloc)
	shown := wireAllocStatus{
		ID: alloc.ID, Group: alloc.TaskGroup, ClientStatus: alloc.ClientStatus, NodeID: alloc.NodeID,
		JobVersion: valueOf(job.Version), FollowupEvalID: alloc.FollowupEvalID,
	}
	if health := alloc.DeploymentStatus; health != nil {
		shown.DeploymentStatus.Canary, shown.DeploymentStatus.Healthy = health.Canary, health.Healthy
	}
	w := &wireStatus{
		ID: alloc.JobID, Namespace: alloc.Namespace, Name: valueOf(job.Name), Type: valueOf(job.Type),
		NodePool: nodePool, Datacenters: job.Datacenters, Priority: valueOf(job.Priority), Version: valueOf(job.Version),
		SubmitTime: valueOf(job.SubmitTime), ModifyIndex: valueOf(job.ModifyIndex),
		Allocs: []wireAllocStatus{shown}, GroupCountSum: 1,
		ParentID: valueOf(job.ParentID), Stop: valueOf(job.Stop), Status: valueOf(job.Status),
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

// emptyList answers with an empty list, which never changes. A query with an index waits in vain.
func (a *API) emptyList(ctx context.Context, r *request) (answer, error) {
	return r.constant(ctx, []any{})
}

// nodePools answers GET /v1/node/pools: the one machine is in Nomad's default pool.
func (a *API) nodePools(ctx context.Context, r *request) (answer, error) {
	return r.constant(ctx, []wirePool{{wirePoolFields: wirePoolFields{
		Name: nodePool, Description: "Default node pool", CreateIndex: 1, ModifyIndex: 1,
	}}})
}

// constant answers with a value that never changes.
func (r *request) constant(ctx context.Context, value any) (answer, error) {
	const index = 1
	err := r.awaitShared(ctx, index, func(ctx context.Context, _ uint64) error {
		<-ctx.Done()
		return nil
	})
	if err != nil {
		return answer{}, err
	}
	encoded, err := encode(value)
	return answer{body: encoded, index: index, shared: true}, err
}

// wirePool has a number for a duration, which the SDK would write in words.
type wirePool struct {
	wirePoolFields
	Hash []byte
}

type wirePoolFields api.NodePool
