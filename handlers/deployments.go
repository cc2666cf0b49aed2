package handlers

import (
	"context"
	"slices"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/handlers/apierror"
)

// deployments returns the deployments of the caller's allocation; none without a Deployer. Call it after the allocation
// was read.
func (a *API) deployments(r *request) []*api.Deployment {
	found, _ := r.visible()
	if alloc, ok := found.(interfaces.Deployer); ok {
		return alloc.Deployments()
	}
	return nil
}

// deploymentList answers GET /v1/deployments and GET /v1/job/:job/deployments, those of the latest versions of the
// caller's job.
func (a *API) deploymentList(ctx context.Context, r *request) (answer, error) {
	list, err := newList(r, listing[*api.Deployment]{
		order: byCreateIndex, uuid: true,
		id:        func(d *api.Deployment) string { return d.ID },
		namespace: func(d *api.Deployment) string { return d.Namespace },
		created:   func(d *api.Deployment) uint64 { return d.CreateIndex },
		stub:      func(d *api.Deployment) any { return wireDeploymentOf(d) },
	})
	if err != nil {
		return answer{}, err
	}
	current, err := a.withJob(ctx, r)
	if err != nil {
		return answer{}, err
	}
	if job := r.param("job"); job != "" && job != current.JobID {
		return list.answer(nil, current.ModifyIndex)
	}
	return list.answer(a.deployments(r), current.ModifyIndex)
}

// deploymentOf returns the deployment that the path names, with the caller's allocation. Errors: NoDeployment.
func (a *API) deploymentOf(r *request) (*api.Deployment, Alloc, error) {
	id := r.param("deployment")
	if err := checkUUID("deployment ID", id); err != nil {
		return nil, nil, err
	}
	for _, d := range a.deployments(r) {
		if d.ID == id {
			alloc, _ := r.visible()
			return d, alloc, nil
		}
	}
	return nil, nil, apierror.New(apierror.NoDeployment)
}

// deploymentGet answers GET /v1/deployment/:deployment. A query with an index waits for a change of the deployment, not
// of the allocation.
func (a *API) deploymentGet(ctx context.Context, r *request) (answer, error) {
	d, alloc, err := a.deploymentOf(r)
	if err != nil {
		return answer{}, err
	}
	err = r.awaitShared(ctx, d.ModifyIndex, func(ctx context.Context, after uint64) error {
		for now := alloc.Snapshot(); ctx.Err() == nil; now = alloc.Wait(ctx, now.ModifyIndex) {
			if latest, _, err := a.deploymentOf(r); err != nil || latest.ModifyIndex > after {
				return err
			}
			if a.config.Answered != nil { // the agent's end need not wait for this client
				a.config.Answered(r.server.owner, now.ModifyIndex)
			}
		}
		return nil
	})
	if err == nil {
		d, _, err = a.deploymentOf(r)
	}
	if err != nil {
		return answer{}, err
	}
	encoded, err := encode(wireDeploymentOf(d))
	return answer{body: encoded, index: d.ModifyIndex, shared: true}, err
}

// deploymentAllocations answers GET /v1/deployment/allocations/:deployment: the caller's allocation, while it is the
// deployment's.
func (a *API) deploymentAllocations(ctx context.Context, r *request) (answer, error) {
	list, err := newAllocList(r)
	if err != nil {
		return answer{}, err
	}
	current, err := a.withJob(ctx, r)
	if err != nil {
		return answer{}, err
	}
	found, _, err := a.deploymentOf(r)
	if err != nil {
		return answer{}, err
	}
	if found.ID != current.DeploymentID {
		return list.answer(nil, current.ModifyIndex)
	}
	return list.answer([]*api.Allocation{current}, current.ModifyIndex)
}

// latestDeployment answers GET /v1/job/:job/deployment: null, as in Nomad, for a job without one, and for another job.
func (a *API) latestDeployment(ctx context.Context, r *request) (answer, error) {
	query, err := r.values()
	if err != nil {
		return answer{}, err
	}
	current, err := a.withJob(ctx, r)
	if err != nil {
		return answer{}, err
	}
	var latest *wireDeployment
	own := r.param("job") == current.JobID && inNamespace(current, query.Get("namespace"))
	if all := a.deployments(r); own && len(all) > 0 {
		latest = wireDeploymentOf(all[0])
	}
	encoded, err := encode(latest)
	return answer{body: encoded, index: current.ModifyIndex}, err
}

// changeDeployment changes the deployment that the path and the body name, and answers with an evaluation that has
// nothing to do. The deployment must be running.
func (a *API) changeDeployment(
	r *request, want any, named *string, change func(interfaces.Deployer, *api.Deployment) error,
) (answer, error) {
	if err := r.decode(want, false); err != nil {
		return answer{}, err
	}
	d, alloc, err := a.deploymentOf(r)
	switch {
	case err != nil:
		return answer{}, err
	case *named == "":
		return answer{}, invalid("DeploymentID must be specified")
	case *named != d.ID:
		return answer{}, invalid("Deployment ID does not match")
	case d.Status != api.DeploymentStatusRunning:
		return answer{}, invalid("deployment %s is %s: only one that runs can be changed", d.ID, d.Status)
	}
	if err := change(alloc.(interfaces.Deployer), d); err != nil { // it has deployments
		return answer{}, err
	}
	now := alloc.Snapshot()
	by := Registration{DeploymentID: d.ID}
	encoded, err := encode(wireDeploymentUpdate{
		EvalID:          a.evaluations.addFor("deployment-watcher", now, api.DesiredUpdates{Ignore: 1}, by),
		EvalCreateIndex: now.ModifyIndex, DeploymentModifyIndex: now.ModifyIndex, Index: now.ModifyIndex,
	})
	return answer{body: encoded, index: now.ModifyIndex}, err
}

// deploymentFail answers PUT /v1/deployment/fail/:deployment. The allocation runs on with its version: there is no
// other to go back to.
func (a *API) deploymentFail(_ context.Context, r *request) (answer, error) {
	want := api.DeploymentFailRequest{}
	return a.changeDeployment(r, &want, &want.DeploymentID, func(alloc interfaces.Deployer, d *api.Deployment) error {
		alloc.FailDeployment(d.ID)
		return nil
	})
}

// deploymentPromote answers PUT /v1/deployment/promote/:deployment: the one allocation is no canary.
func (a *API) deploymentPromote(_ context.Context, r *request) (answer, error) {
	want := api.DeploymentPromoteRequest{}
	return a.changeDeployment(r, &want, &want.DeploymentID, func(interfaces.Deployer, *api.Deployment) error {
		return invalid("no canaries to promote")
	})
}

// deploymentHealth answers PUT /v1/deployment/allocation-health/:deployment.
func (a *API) deploymentHealth(_ context.Context, r *request) (answer, error) {
	want := api.DeploymentAllocHealthRequest{}
	return a.changeDeployment(r, &want, &want.DeploymentID, func(alloc interfaces.Deployer, d *api.Deployment) error {
		now := alloc.(Alloc).Snapshot()
		for _, id := range slices.Concat(want.HealthyAllocationIDs, want.UnhealthyAllocationIDs) {
			if id != now.ID || d.ID != now.DeploymentID {
				return invalid("allocation %s is not in deployment %s", clip(id), d.ID)
			}
		}
		healthy := len(want.HealthyAllocationIDs) > 0
		if healthy == (len(want.UnhealthyAllocationIDs) > 0) {
			return invalid("name the allocation in HealthyAllocationIDs or in UnhealthyAllocationIDs")
		}
		alloc.SetHealth(healthy)
		return nil
	})
}

// wireDeployment has what the SDK lacks.
type wireDeployment struct {
	*api.Deployment
	TaskGroups   map[string]*wireDeploymentState
	EvalPriority int
}

type wireDeploymentState struct {
	*api.DeploymentState
	AutoPromote bool
}

func wireDeploymentOf(d *api.Deployment) *wireDeployment {
	w := &wireDeployment{Deployment: d, TaskGroups: map[string]*wireDeploymentState{}}
	for name, state := range d.TaskGroups {
		w.TaskGroups[name] = &wireDeploymentState{DeploymentState: state}
	}
	return w
}

// wireDeploymentUpdate is Nomad's answer to a change of a deployment.
type wireDeploymentUpdate struct {
	EvalID                string
	EvalCreateIndex       uint64
	DeploymentModifyIndex uint64
	RevertedJobVersion    *uint64
	Index                 uint64
}

func deploymentNote(d *api.Deployment) note {
	kind := eventDeployment
	if d.CreateIndex == d.ModifyIndex {
		kind = eventPlanned
	}
	return note{
		topic: api.TopicDeployment, kind: kind, key: d.ID, filterKeys: []string{d.JobID}, namespace: d.Namespace,
		payload: wirePayload{Deployment: wireDeploymentOf(d)},
	}
}
