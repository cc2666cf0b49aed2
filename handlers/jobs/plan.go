package jobs

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec/jobdiff"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
	"taskapi/internal/ptr"
)

// plan answers PUT /v1/job/:job/plan: the changes that a registration of the job would make.
func (h *handlers) plan(ctx context.Context, r *route.Request, want *api.JobPlanRequest) (route.Answer, error) {
	if err := checkJob(want.Job); err != nil {
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
	_, updates := outcome(planned.Changes)
	response := wirePlan{
		JobPlanResponse: &api.JobPlanResponse{
			JobModifyIndex: ptr.Deref(current.Job.JobModifyIndex),
			Annotations: &api.PlanAnnotations{
				DesiredTGUpdates: map[string]*api.DesiredUpdates{current.TaskGroup: &updates},
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

// wirePlan has null for the next launch: the job is not periodic.
type wirePlan struct {
	*api.JobPlanResponse
	NextPeriodicLaunch *time.Time
	Index              uint64
}

// outcome returns Nomad's word for the effect of the changes, and the counts of a plan for the one allocation.
func outcome(changes []jobdiff.Change) (word string, updates api.DesiredUpdates) {
	switch {
	case len(changes) == 0:
		return "ignore", api.DesiredUpdates{Ignore: 1}
	case slices.ContainsFunc(changes, func(c jobdiff.Change) bool { return !c.InPlace }):
		return "create/destroy update", api.DesiredUpdates{DestructiveUpdate: 1}
	}
	return "in-place update", api.DesiredUpdates{InPlaceUpdate: 1}
}

// Nomad's words in a plan, which its command line colours.
const (
	diffNone          = "None"
	diffEdited        = "Edited"
	forcesInPlace     = "forces in-place update"
	forcesDestructive = "forces create/destroy update"
)

// jobDiffOf returns the changes as fields of the job, under their whole paths. The text of a change has the values, if
// they may be shown.
func jobDiffOf(current *api.Allocation, changes []jobdiff.Change) *api.JobDiff {
	diff := &api.JobDiff{Type: diffNone, ID: current.JobID}
	word, _ := outcome(changes)
	group := &api.TaskGroupDiff{Type: diffNone, Name: current.TaskGroup, Updates: map[string]uint64{word: 1}}
	if len(changes) > 0 {
		diff.Type, group.Type = diffEdited, diffEdited
	}
	for _, change := range changes {
		annotation := forcesInPlace
		if !change.InPlace {
			annotation = forcesDestructive
		}
		field := &api.FieldDiff{Type: diffEdited, Name: change.Path, New: change.Text, Annotations: []string{annotation}}
		if change.RestartSuffices(current) {
			field.Annotations = append(field.Annotations, jobdiff.RestartAnnotation+strconv.Quote(change.Task))
		}
		diff.Fields = append(diff.Fields, field)
	}
	diff.TaskGroups = []*api.TaskGroupDiff{group}
	return diff
}
