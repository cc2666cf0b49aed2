package jobs

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec/jobdiff"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
	"taskapi/internal/ptr"
)

// plan answers PUT /v1/job/:job/plan: what a registration of the job would do.
func (h *handlers) plan(ctx context.Context, r *route.Request) (route.Answer, error) {
	var want api.JobPlanRequest
	if err := h.jobBody(r, &want, func() *api.Job { return want.Job }); err != nil {
		return route.Answer{}, err
	}
	if *want.Job.ID != r.Param("job") {
		return route.Answer{}, apierror.New(apierror.JobMismatch)
	}
	current, err := r.WithJob(ctx)
	if err != nil {
		return route.Answer{}, err
	}
	planned, err := h.Registrar.Plan(ctx, want.Job)
	if err != nil {
		return route.Answer{}, fmt.Errorf("plan: %w", ofUpdate(err))
	}
	response := wirePlan{
		JobPlanResponse: &api.JobPlanResponse{
			JobModifyIndex: ptr.Deref(current.Job.JobModifyIndex),
			Annotations: &api.PlanAnnotations{
				DesiredTGUpdates: map[string]*api.DesiredUpdates{current.TaskGroup: desiredUpdates(planned.Changes)},
			},
			Warnings: planned.Warnings,
		},
		Index: current.ModifyIndex,
	}
	if want.Diff {
		response.Diff = jobDiffOf(current, planned.Changes)
	}
	return route.Indexed(response, current.ModifyIndex)
}

// wirePlan says of a job that is not periodic that it is never launched.
type wirePlan struct {
	*api.JobPlanResponse
	NextPeriodicLaunch *time.Time
	Index              uint64
}

// desiredUpdates returns the counts of a plan for the one allocation.
func desiredUpdates(changes []jobdiff.Change) *api.DesiredUpdates {
	switch {
	case len(changes) == 0:
		return &api.DesiredUpdates{Ignore: 1}
	case slices.ContainsFunc(changes, func(c jobdiff.Change) bool { return !c.InPlace }):
		return &api.DesiredUpdates{DestructiveUpdate: 1}
	}
	return &api.DesiredUpdates{InPlaceUpdate: 1}
}

// Nomad's words in a plan, which its command line colours.
const (
	diffNone          = "None"
	diffEdited        = "Edited"
	forcesInPlace     = "forces in-place update"
	forcesDestructive = "forces create/destroy update"
)

// jobDiffOf returns the changes as fields of the job, under their whole paths. Values are in the text of a change, if
// they may be shown.
func jobDiffOf(current *api.Allocation, changes []jobdiff.Change) *api.JobDiff {
	diff := &api.JobDiff{Type: diffNone, ID: current.JobID}
	group := &api.TaskGroupDiff{Type: diffNone, Name: current.TaskGroup, Updates: map[string]uint64{updateWord(changes): 1}}
	if len(changes) > 0 {
		diff.Type, group.Type = diffEdited, diffEdited
	}
	for _, change := range changes {
		annotation := forcesInPlace
		if !change.InPlace {
			annotation = forcesDestructive
		}
		diff.Fields = append(diff.Fields, &api.FieldDiff{
			Type: diffEdited, Name: change.Path, New: change.Text, Annotations: []string{annotation},
		})
	}
	diff.TaskGroups = []*api.TaskGroupDiff{group}
	return diff
}

// updateWord returns Nomad's word for a plan.
func updateWord(changes []jobdiff.Change) string {
	switch desired := desiredUpdates(changes); {
	case desired.Ignore > 0:
		return "ignore"
	case desired.InPlaceUpdate > 0:
		return "in-place update"
	}
	return "create/destroy update"
}
