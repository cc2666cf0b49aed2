package jobs

import (
	"context"
	"slices"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/list"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
)

// Deployments returns the deployments of the caller's allocation; none for one without deployments. Call it after the
// allocation was read.
func Deployments(r *route.Request) []*api.Deployment {
	found, _ := r.Visible()
	if alloc, ok := found.(interfaces.Deployer); ok {
		return alloc.Deployments()
	}
	return nil
}

func deploymentListing(*route.Request) list.Listing[*api.Deployment] {
	return list.Listing[*api.Deployment]{
		Order: list.ByCreateIndex, UUID: true,
		ID:        func(d *api.Deployment) string { return d.ID },
		Namespace: func(d *api.Deployment) string { return d.Namespace },
		Created:   func(d *api.Deployment) uint64 { return d.CreateIndex },
		Stub:      func(d *api.Deployment) any { return wire.DeploymentOf(d) },
	}
}

// deploymentList is GET /v1/deployments and GET /v1/job/:job/deployments, those of the latest versions of the caller's
// job.
func deploymentList(r *route.Request, current *api.Allocation) ([]*api.Deployment, error) {
	if job := r.Param("job"); job != "" && job != current.JobID {
		return nil, nil
	}
	return Deployments(r), nil
}

// deploymentOf returns the deployment that the path names, with the caller's allocation. Errors: NoDeployment.
func deploymentOf(r *route.Request) (*api.Deployment, route.Alloc, error) {
	id := r.Param("deployment")
	if err := route.CheckUUID("deployment ID", id); err != nil {
		return nil, nil, err
	}
	for _, d := range Deployments(r) {
		if d.ID == id {
			alloc, _ := r.Visible()
			return d, alloc, nil
		}
	}
	return nil, nil, apierror.New(apierror.NoDeployment)
}

// deploymentGet answers GET /v1/deployment/:deployment. A query with an index waits for a change of the deployment, not
// of the allocation.
func deploymentGet(ctx context.Context, r *route.Request) (route.Answer, error) {
	d, alloc, err := deploymentOf(r)
	if err != nil {
		return route.Answer{}, err
	}
	err = r.AwaitChange(ctx, d.ModifyIndex, func(ctx context.Context, after uint64) error {
		for now := alloc.Snapshot(); ctx.Err() == nil; now = alloc.Wait(ctx, now.ModifyIndex) {
			if latest, _, err := deploymentOf(r); err != nil || latest.ModifyIndex > after {
				return err
			}
			r.Answered(now.ModifyIndex) // the agent's end need not wait for this client
		}
		return nil
	})
	if err != nil {
		return route.Answer{}, err
	}
	if d, _, err = deploymentOf(r); err != nil {
		return route.Answer{}, err
	}
	return route.Shared(wire.DeploymentOf(d), d.ModifyIndex)
}

// ofDeployment reports whether the caller's allocation is that of the deployment which the path names.
func ofDeployment(r *route.Request, current *api.Allocation) (bool, error) {
	found, _, err := deploymentOf(r)
	return err == nil && found.ID == current.DeploymentID, err
}

// latestDeployment is GET /v1/job/:job/deployment: null, as in Nomad, for a job without one, and for another job.
func latestDeployment(r *route.Request, current *api.Allocation) (any, error) {
	own := r.Param("job") == current.JobID && route.InNamespace(r.Query().Get("namespace"), current.Namespace)
	if all := Deployments(r); own && len(all) > 0 {
		return wire.DeploymentOf(all[0]), nil
	}
	return nil, nil
}

// changeDeployment changes the deployment that the path and the body name, and answers with an evaluation that has
// nothing to do. The deployment must be running.
func (h *handlers) changeDeployment(change func(deployer, *deploymentChange) error) route.Handler {
	return route.Decoded(false, func(_ context.Context, r *route.Request, want *deploymentChange) (route.Answer, error) {
		d, alloc, err := deploymentOf(r)
		switch {
		case err != nil:
			return route.Answer{}, err
		case want.DeploymentID == "":
			return route.Answer{}, route.Invalid("DeploymentID must be specified")
		case want.DeploymentID != d.ID:
			return route.Answer{}, route.Invalid("Deployment ID does not match")
		case d.Status != api.DeploymentStatusRunning:
			return route.Answer{}, route.Invalid("deployment %s is %s: only one that runs can be changed", d.ID, d.Status)
		}
		if err := change(alloc.(deployer), want); err != nil { // it has deployments
			return route.Answer{}, err
		}
		now := alloc.Snapshot()
		return route.Indexed(wireDeploymentUpdate{
			EvalID:          h.Evaluations.AddFor("deployment-watcher", now, api.DesiredUpdates{Ignore: 1}, "", d.ID),
			EvalCreateIndex: now.ModifyIndex, DeploymentModifyIndex: now.ModifyIndex, Index: now.ModifyIndex,
		}, now.ModifyIndex)
	})
}

// deploymentChange is the body of every change of a deployment: that of its allocation's health has all fields.
type deploymentChange = api.DeploymentAllocHealthRequest

// deployer is an allocation with deployments.
type deployer interface {
	route.Alloc
	interfaces.Deployer
}

// deploymentFail answers PUT /v1/deployment/fail/:deployment. The allocation runs on with its version: there is no
// other to go back to.
func deploymentFail(alloc deployer, want *deploymentChange) error {
	alloc.FailDeployment(want.DeploymentID)
	return nil
}

// deploymentPromote answers PUT /v1/deployment/promote/:deployment: the one allocation is no canary.
func deploymentPromote(deployer, *deploymentChange) error {
	return route.Invalid("no canaries to promote")
}

// deploymentHealth answers PUT /v1/deployment/allocation-health/:deployment.
func deploymentHealth(alloc deployer, want *deploymentChange) error {
	now := alloc.Snapshot()
	for _, id := range slices.Concat(want.HealthyAllocationIDs, want.UnhealthyAllocationIDs) {
		if id != now.ID || want.DeploymentID != now.DeploymentID {
			return route.Invalid("allocation %s is not in deployment %s", route.Clip(id), want.DeploymentID)
		}
	}
	healthy := len(want.HealthyAllocationIDs) > 0
	if healthy == (len(want.UnhealthyAllocationIDs) > 0) {
		return route.Invalid("name the allocation in HealthyAllocationIDs or in UnhealthyAllocationIDs")
	}
	alloc.SetHealth(healthy)
	return nil
}

type wireDeploymentUpdate struct {
	EvalID                string
	EvalCreateIndex       uint64
	DeploymentModifyIndex uint64
	RevertedJobVersion    *uint64
	Index                 uint64
}
