package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/handlers"
	"taskapi/handlers/apierror"
)

// jobs takes other versions of the job that an allocation runs, for the API.
type jobs struct {
	runner   interfaces.AllocRunner
	validate func(*api.Job) error // says whether the runner could go on with a job in place
	control  control
	settings Settings
	allocs   string // the directory of all allocations
	events   Events
}

var _ handlers.Jobs = jobs{}

// jobUpdate is another version of the job, as a job file would have given it, and what it changes of the one that runs, or that is about
// to.
type jobUpdate struct {
	job      *api.Job
	anew     bool // the one that it changes has not begun yet
	group    *api.TaskGroup
	changes  []jobspec.Change
	warnings string
}

// MessageLeaving is what a client is told that has another version of the job for a taskapi on its way out: the next one takes it.
const MessageLeaving = "this taskapi is leaving the allocation to another: try again"

// read makes a job that a client has sent canonical, reviews it as run does, and compares it with the one that runs.
func (j jobs) read(sent *api.Job) (jobUpdate, error) {
	now := j.control.present()
	if now.detach {
		return jobUpdate{}, apierror.New(apierror.Conflict, MessageLeaving)
	}
	alloc := j.runner.Alloc()
	next := now.next
	if next != nil {
		alloc = next
	}
	if sent.ID == nil || *sent.ID != alloc.JobID {
		return jobUpdate{}, apierror.New(apierror.OtherJob, alloc.JobID)
	}
	body, err := json.Marshal(sent)
	if err != nil {
		return jobUpdate{}, fmt.Errorf("encode job: %w", err)
	}
	job, err := jobspec.Parse(jobspec.Config{Filename: "job.json", Body: body})
	if err != nil {
		return jobUpdate{}, apierror.New(apierror.Invalid, err)
	}
	group, findings, err := jobspec.Review(job, alloc.TaskGroup, allocrunner.Drivers)
	if err != nil {
		return jobUpdate{}, apierror.New(apierror.Invalid, err)
	}
	changes := jobspec.Changes(alloc.Job, job, alloc.TaskGroup)
	if len(jobspec.Destructive(changes)) > 0 && !jobspec.AnyRefused(findings) { // there would be new processes: better to know before the old ones are stopped
		findings = append(findings, allocrunner.CheckTasks(NewAllocation(alloc.ID, job, group), j.allocs)...)
	}
	said := findingLines(findings)
	if jobspec.AnyRefused(findings) {
		return jobUpdate{}, apierror.New(apierror.Invalid, said)
	}
	if err := j.settings.CheckUsers(group); err != nil {
		return jobUpdate{}, apierror.New(apierror.Invalid, err)
	}
	v := jobUpdate{job, next != nil, group, changes, said}
	if !v.anew && len(jobspec.Destructive(v.changes)) == 0 {
		err = j.validate(job)
	}
	return v, updateError(err)
}

// findingLines is what a review says, a line each.
func findingLines(findings []jobspec.Finding) string {
	lines := make([]string, len(findings))
	for i, f := range findings {
		lines[i] = linewriter.OneLine(f.String())
	}
	return strings.Join(lines, "\n")
}

// Plan implements handlers.Jobs.
func (j jobs) Plan(_ context.Context, sent *api.Job) (handlers.Plan, error) {
	v, err := j.read(sent)
	if err != nil {
		return handlers.Plan{}, err
	}
	plan := handlers.Plan{Warnings: v.warnings}
	for _, c := range v.changes {
		plan.Changes = append(plan.Changes, handlers.JobChange{Path: c.Path, InPlace: c.InPlace, Text: c.Text})
	}
	return plan, nil
}

// Register implements handlers.Jobs.
func (j jobs) Register(ctx context.Context, sent *api.Job, force bool) (handlers.Registration, error) {
	v, err := j.read(sent)
	if err != nil {
		return handlers.Registration{}, err
	}
	registration := handlers.Registration{Warnings: v.warnings}
	if len(v.changes) > 0 {
		if err := j.take(ctx, v, force); err != nil {
			return handlers.Registration{}, err
		}
	}
	if index := j.runner.Alloc().Job.JobModifyIndex; index != nil {
		registration.Index = *index
	}
	return registration, nil
}

// take has the runner go on with the job, or another one begin with it when that is what it takes and force allows it.
func (j jobs) take(ctx context.Context, v jobUpdate, force bool) error {
	destructive := jobspec.Destructive(v.changes)
	switch {
	case v.anew && (force || len(destructive) == 0):
	case len(destructive) == 0:
		err := j.runner.Update(ctx, v.job)
		if err == nil {
			sayUpdated(j.events, v.changes)
		}
		return updateError(err)
	case !force:
		return apiError(&interfaces.DestructiveError{Changes: changeLines(destructive)})
	}
	return updateError(j.control.replace(ctx, NewAllocation(j.runner.Alloc().ID, v.job, v.group), v.changes))
}

func changeLines(changes []jobspec.Change) []string {
	lines := make([]string, len(changes))
	for i, c := range changes {
		lines[i] = c.String()
	}
	return lines
}
