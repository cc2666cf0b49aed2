package machine

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/list"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
	"taskapi/internal/ptr"
)

// member is an allocation's part of a deployment of its job.
type member struct {
	alloc *api.Allocation
	own   *api.Deployment
}

// rollout is a deployment of a whole job: that of each allocation which got one version by one submission. They have
// one ID.
type rollout struct {
	*api.Deployment
	members []member
}

// rollouts returns the deployments of allocations. A process that does not answer has none.
func (h *handlers) rollouts(ctx context.Context, all []*api.Allocation) []*rollout {
	found := each(all, func(alloc *api.Allocation) (own []*api.Deployment) {
		if alloc.ClientTerminalStatus() {
			return slices.DeleteFunc(h.Machine.Deployments(alloc.ID), func(d *api.Deployment) bool {
				return d.ID != alloc.DeploymentID
			})
		}
		_ = h.exchange(ctx, alloc.ID, http.MethodGet, &url.URL{Path: "/v1/deployments"}, nil, &own)
		return own
	})
	byID := map[string]*rollout{}
	var rollouts []*rollout
	for i, alloc := range all {
		for _, d := range found[i] {
			if byID[d.ID] == nil {
				byID[d.ID] = &rollout{}
				rollouts = append(rollouts, byID[d.ID])
			}
			byID[d.ID].add(member{alloc, d})
		}
	}
	for _, r := range rollouts {
		r.sum()
	}
	return rollouts
}

// add adds a member, which takes the place of an older allocation with the same name.
func (r *rollout) add(m member) {
	i := slices.IndexFunc(r.members, func(known member) bool { return known.alloc.Name == m.alloc.Name })
	switch {
	case i < 0:
		r.members = append(r.members, m)
	case r.members[i].alloc.CreateTime < m.alloc.CreateTime:
		r.members[i] = m
	}
}

// sum makes the deployment of the whole job from those of its members. Its indexes are times in milliseconds, as the
// machine's are.
func (r *rollout) sum() {
	slices.SortFunc(r.members, func(a, b member) int {
		return cmp.Or(cmp.Compare(a.own.CreateTime, b.own.CreateTime), cmp.Compare(a.alloc.ID, b.alloc.ID))
	})
	d := *r.members[0].own
	d.TaskGroups = map[string]*api.DeploymentState{}
	with := map[string]*api.Deployment{} // the first member's with a status
	var job *api.Job
	lives := false
	for _, m := range r.members {
		d.ModifyTime = max(d.ModifyTime, m.own.ModifyTime)
		if with[m.own.Status] == nil {
			with[m.own.Status] = m.own
		}
		if m.alloc.DeploymentID == d.ID {
			job = m.alloc.Job
		}
		lives = lives || !m.alloc.ClientTerminalStatus()
		for name, part := range m.own.TaskGroups {
			group := d.TaskGroups[name]
			if group == nil {
				group = &api.DeploymentState{AutoRevert: part.AutoRevert, ProgressDeadline: part.ProgressDeadline}
				d.TaskGroups[name] = group
			}
			group.DesiredTotal += part.DesiredTotal
			group.PlacedAllocs += part.PlacedAllocs
			group.HealthyAllocs += part.HealthyAllocs
			group.UnhealthyAllocs += part.UnhealthyAllocs
			if part.RequireProgressBy.After(group.RequireProgressBy) {
				group.RequireProgressBy = part.RequireProgressBy
			}
		}
	}
	d.CreateIndex, d.ModifyIndex = uint64(d.CreateTime/1e6), uint64(d.ModifyTime/1e6)
	r.Deployment = &d
	status := api.DeploymentStatusSuccessful
	for _, worst := range []string{
		api.DeploymentStatusFailed, api.DeploymentStatusCancelled, api.DeploymentStatusRunning,
	} {
		if with[worst] != nil {
			status = worst
			break
		}
	}
	if missing, overdue := r.await(job); missing && lives && status == api.DeploymentStatusSuccessful {
		d.Status, d.StatusDescription = api.DeploymentStatusRunning, "Deployment is running"
		if overdue {
			d.Status, d.StatusDescription = api.DeploymentStatusFailed, "Failed due to progress deadline"
		}
		return
	}
	d.Status, d.StatusDescription = status, with[status].StatusDescription
}

// await sets how many allocations of each group the job's present version is to get; nil for an earlier version. It
// reports whether one is missing, and whether its group has got none for longer than its progress_deadline.
func (r *rollout) await(job *api.Job) (missing, overdue bool) {
	if job == nil {
		return false, false
	}
	for _, tg := range job.TaskGroups {
		count, name := interfaces.CountOf(job, tg), ptr.Deref(tg.Name)
		if tg.Update == nil || ptr.Deref(tg.Update.MaxParallel) == 0 || count == 0 {
			continue
		}
		if r.TaskGroups[name] == nil {
			r.TaskGroups[name] = &api.DeploymentState{ProgressDeadline: ptr.Deref(tg.Update.ProgressDeadline)}
		}
		group := r.TaskGroups[name]
		group.DesiredTotal = max(count, group.PlacedAllocs)
		if group.PlacedAllocs < group.DesiredTotal {
			missing = true
			overdue = overdue || !group.RequireProgressBy.IsZero() && time.Now().After(group.RequireProgressBy)
		}
	}
	return missing, overdue
}

// latest returns the newest of rollouts, nil for none.
func latest(all []*rollout) *rollout {
	if len(all) == 0 {
		return nil
	}
	return slices.MaxFunc(all, func(a, b *rollout) int { return cmp.Compare(a.CreateTime, b.CreateTime) })
}

// deployments answers GET /v1/deployments and GET /v1/job/:job/deployments.
func (h *handlers) deployments(ctx context.Context, r *route.Request) (route.Answer, error) {
	l, err := list.New(r, list.Listing[*rollout]{
		Order: list.ByCreateIndex, UUID: true,
		ID:        func(d *rollout) string { return d.ID },
		Namespace: func(d *rollout) string { return d.Namespace },
		Created:   func(d *rollout) uint64 { return d.CreateIndex },
		Matched:   func(d *rollout) any { return d.Deployment },
		Stub:      func(d *rollout) any { return wire.DeploymentOf(d.Deployment) },
	})
	if err != nil {
		return route.Answer{}, err
	}
	index := h.Machine.Index()
	all, err := h.named(ctx, r)
	if err != nil {
		return route.Answer{}, err
	}
	answer, err := l.Answer(h.rollouts(ctx, all), index)
	answer.Shared = true
	return answer, err
}

// latestDeployment answers GET /v1/job/:job/deployment: null, as in Nomad, for a job without one.
func (h *handlers) latestDeployment(ctx context.Context, r *route.Request) (route.Answer, error) {
	index := h.Machine.Index()
	all, err := h.named(ctx, r)
	if err != nil {
		return route.Answer{}, err
	}
	if d := latest(h.rollouts(ctx, all)); d != nil {
		return route.Shared(wire.DeploymentOf(d.Deployment), index)
	}
	return route.Shared(nil, index)
}

// deployment answers GET /v1/deployment/:deployment.
func (h *handlers) deployment(ctx context.Context, r *route.Request) (route.Answer, error) {
	index := h.Machine.Index()
	d, err := h.rollout(ctx, r)
	if err != nil {
		return route.Answer{}, err
	}
	return route.Shared(wire.DeploymentOf(d.Deployment), index)
}

// rollout returns the deployment that the path names. Errors: NoDeployment.
func (h *handlers) rollout(ctx context.Context, r *route.Request) (*rollout, error) {
	id := r.Param("deployment")
	if err := route.CheckUUID("deployment ID", id); err != nil {
		return nil, err
	}
	all, err := h.Machine.Allocations(ctx)
	if err != nil {
		return nil, err
	}
	// The processes of one job know it, if an allocation still has it.
	at := slices.IndexFunc(all, func(alloc *api.Allocation) bool { return alloc.DeploymentID == id })
	of := all
	if at >= 0 {
		of = slices.DeleteFunc(slices.Clone(all), func(alloc *api.Allocation) bool {
			return alloc.JobID != all[at].JobID || alloc.Namespace != all[at].Namespace
		})
	}
	for _, d := range h.rollouts(ctx, of) {
		if d.ID == id {
			return d, nil
		}
	}
	return nil, apierror.New(apierror.NoDeployment)
}

// deploymentAllocations answers GET /v1/deployment/allocations/:deployment.
func (h *handlers) deploymentAllocations(ctx context.Context, r *route.Request) (route.Answer, error) {
	return h.answerAllocations(ctx, r, h.selecting(func(alloc *api.Allocation) bool {
		return alloc.DeploymentID == r.Param("deployment")
	}))
}

// changeDeployment answers what changes a deployment: the processes of its members change their parts.
func (h *handlers) changeDeployment(
	ctx context.Context, r *route.Request, want *api.DeploymentAllocHealthRequest,
) (route.Answer, error) {
	d, err := h.rollout(ctx, r)
	if err != nil {
		return route.Answer{}, err
	}
	var answer route.Answer
	changed := false
	named := slices.Concat(want.HealthyAllocationIDs, want.UnhealthyAllocationIDs)
	for _, id := range named {
		if !slices.ContainsFunc(d.members, func(m member) bool { return m.alloc.ID == id && m.alloc.DeploymentID == d.ID }) {
			return answer, route.Invalid("allocation %s is not in deployment %s", route.Clip(id), d.ID)
		}
	}
	for _, m := range d.members {
		only := func(ids []string) []string {
			return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return id != m.alloc.ID })
		}
		one := *want
		one.HealthyAllocationIDs, one.UnhealthyAllocationIDs = only(want.HealthyAllocationIDs),
			only(want.UnhealthyAllocationIDs)
		concerns := m.own.Status == api.DeploymentStatusRunning && !m.alloc.ClientTerminalStatus()
		if len(named) > 0 {
			concerns = len(one.HealthyAllocationIDs)+len(one.UnhealthyAllocationIDs) > 0
		}
		if !concerns {
			continue
		}
		if answer, err = h.passValue(ctx, r, m.alloc, one); err != nil || answer.Status != http.StatusOK {
			return answer, err
		}
		changed = true
	}
	if !changed {
		return answer, route.Invalid("deployment %s is %s: only one that runs can be changed", d.ID, d.Status)
	}
	return answer, nil
}
