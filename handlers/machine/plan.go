package machine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
	"taskapi/internal/ptr"
)

// plan answers PUT /v1/job/:job/plan: what a registration of the job would do with the allocations that run, and which
// ones would start.
func (h *handlers) plan(ctx context.Context, r *route.Request, want *api.JobPlanRequest) (route.Answer, error) {
	switch {
	case want.Job == nil:
		return route.Answer{}, apierror.New(apierror.JobMissing)
	case ptr.Deref(want.Job.ID) != r.Param("job"):
		return route.Answer{}, apierror.New(apierror.JobMismatch)
	}
	setNamespace(r, want.Job)
	judged, err := h.judge(ctx, want.Job)
	if err != nil {
		return route.Answer{}, err
	}
	all, err := h.Machine.OfJob(ctx, *want.Job.Namespace, *want.Job.ID)
	if err != nil {
		return route.Answer{}, err
	}
	index := h.Machine.Index()
	p, err := newPlanned(want.Job, all)
	if err != nil {
		return route.Answer{}, err
	}
	p.Warnings, p.Index = judged.Warnings, index
	if err := p.ask(ctx, h); err != nil {
		return route.Answer{}, err
	}
	if p.sum(); !want.Diff {
		p.Diff = nil
	}
	return route.Indexed(p.plan, index)
}

// plan has null for the next launch of a job that is not periodic, as in Nomad.
type plan struct {
	*api.JobPlanResponse
	NextPeriodicLaunch *time.Time
	Index              uint64
}

// planned is what a registration would do.
type planned struct {
	plan
	job     *api.Job
	running []*api.Allocation
	ended   []*api.Allocation
	wanted  map[string]string // the group of each allocation that the job asks for, by name
	changes *changes
}

// newPlanned returns what a registration would do. Errors: those of CheckCounts.
func newPlanned(job *api.Job, all []*api.Allocation) (*planned, error) {
	p := &planned{job: job, wanted: map[string]string{}, changes: newChanges(*job.ID),
		plan: plan{JobPlanResponse: &api.JobPlanResponse{
			Annotations: &api.PlanAnnotations{DesiredTGUpdates: map[string]*api.DesiredUpdates{}},
		}}}
	p.Diff = p.changes.JobDiff
	at := slices.IndexFunc(all, (*api.Allocation).ClientTerminalStatus)
	if at < 0 {
		at = len(all)
	}
	p.running, p.ended = all[:at], all[at:]
	if p.Diff.Type = "Added"; len(p.running) > 0 {
		p.Diff.Type = "None"
		p.JobModifyIndex = ptr.Deref(p.running[0].Job.JobModifyIndex)
	}
	if job.Periodic != nil && job.Periodic.SpecType != nil && ptr.Deref(job.Periodic.Enabled) {
		if next, err := job.Periodic.Next(time.Now()); err == nil && !next.IsZero() {
			p.NextPeriodicLaunch = &next
		}
	}
	if !interfaces.IsParent(job) {
		if err := interfaces.CheckCounts(job, job.TaskGroups); err != nil {
			return nil, route.Invalid("%v", err)
		}
	}
	for _, tg := range job.TaskGroups {
		count := interfaces.CountOf(job, tg)
		if interfaces.IsParent(job) { // it starts nothing by itself
			count = min(len(p.running), 1)
		}
		for i := range count {
			p.wanted[fmt.Sprintf("%s.%s[%d]", *job.ID, ptr.Deref(tg.Name), i)] = ptr.Deref(tg.Name)
		}
		p.group(ptr.Deref(tg.Name))
	}
	return p, nil
}

// group returns the difference of a group.
func (p *planned) group(name string) *api.TaskGroupDiff {
	if p.Annotations.DesiredTGUpdates[name] == nil {
		p.Annotations.DesiredTGUpdates[name] = &api.DesiredUpdates{}
	}
	return p.changes.group(name)
}

// ask asks the process of each allocation that runs on what the job would change.
func (p *planned) ask(ctx context.Context, h *handlers) error {
	body, err := json.Marshal(api.JobPlanRequest{Job: p.job, Diff: true})
	if err != nil {
		return err
	}
	type result struct {
		api.JobPlanResponse
		err error
	}
	of := each(p.running, func(alloc *api.Allocation) (of result) {
		if p.wanted[alloc.Name] == "" {
			return of
		}
		of.err = h.exchange(ctx, alloc.ID, http.MethodPut, jobURL(alloc.JobID, "/plan", nil), body, &of)
		return of
	})
	for i, alloc := range p.running {
		group := p.group(alloc.TaskGroup)
		updates := p.Annotations.DesiredTGUpdates[alloc.TaskGroup]
		if p.wanted[alloc.Name] == "" {
			updates.Stop++
			continue
		}
		delete(p.wanted, alloc.Name)
		if of[i].err != nil {
			return of[i].err
		}
		for _, one := range of[i].Annotations.DesiredTGUpdates {
			updates.Ignore += one.Ignore
			updates.InPlaceUpdate += one.InPlaceUpdate
			updates.DestructiveUpdate += one.DestructiveUpdate
		}
		for _, field := range of[i].Diff.Fields {
			if field.Name != fmt.Sprintf("group %q > count", alloc.TaskGroup) { // show compares the counts
				p.changes.add(group, field)
			}
		}
	}
	return nil
}

// sum counts what starts, and adds the groups to the difference.
func (p *planned) sum() {
	runs := len(p.running) > 0
	for name, group := range p.wanted {
		updates := p.Annotations.DesiredTGUpdates[group]
		done := func(alloc *api.Allocation) bool {
			return alloc.Name == name && alloc.DesiredStatus != api.AllocDesiredStatusStop
		}
		if strings.HasSuffix(ptr.Deref(p.job.Type), "batch") && runs && updates.DestructiveUpdate == 0 &&
			slices.ContainsFunc(p.ended, done) {
			updates.Ignore++ // it has done its work
			continue
		}
		updates.Place++
	}
	for _, tg := range p.job.TaskGroups {
		p.show(ptr.Deref(tg.Name))
	}
	for _, alloc := range p.running {
		p.show(alloc.TaskGroup)
	}
}

// show adds a group to the difference.
func (p *planned) show(name string) {
	group, updates := p.group(name), p.Annotations.DesiredTGUpdates[name]
	if slices.Contains(p.Diff.TaskGroups, group) {
		return
	}
	for word, n := range map[string]uint64{
		"ignore": updates.Ignore, "create": updates.Place, "destroy": updates.Stop,
		"in-place update": updates.InPlaceUpdate, "create/destroy update": updates.DestructiveUpdate,
	} {
		if n > 0 {
			group.Updates[word] = n
		}
	}
	has := func(alloc *api.Allocation) bool { return alloc.TaskGroup == name }
	asks := func(tg *api.TaskGroup) bool { return ptr.Deref(tg.Name) == name }
	was, is := slices.IndexFunc(p.running, has), slices.IndexFunc(p.job.TaskGroups, asks)
	if was >= 0 && is >= 0 {
		old := interfaces.CountOf(p.running[was].Job, p.running[was].GetTaskGroup())
		now := interfaces.CountOf(p.job, p.job.TaskGroups[is])
		annotation := "forces create"
		if old > now {
			annotation = "forces destroy"
		}
		if old != now {
			group.Type, group.Fields = "Edited", append(group.Fields, &api.FieldDiff{Type: "Edited", Name: "count",
				Old: strconv.Itoa(old), New: strconv.Itoa(now), Annotations: []string{annotation}})
		}
	}
	switch {
	case was < 0:
		group.Type = "Added"
	case is < 0:
		group.Type = "Deleted"
	case updates.Place+updates.Stop > 0:
		group.Type = "Edited"
	}
	if group.Type != "None" && p.Diff.Type == "None" {
		p.Diff.Type = "Edited"
	}
	p.Diff.TaskGroups = append(p.Diff.TaskGroups, group)
}
