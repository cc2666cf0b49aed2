package agent

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/deployment"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec/jobdiff"
	"taskapi/allocrunner/jobspec/review"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/handlers/apierror"
	"taskapi/handlers/jobs"
	"taskapi/internal/ptr"
)

// registrar gives the allocation other versions of its job, for the API.
type registrar struct {
	runner   interfaces.AllocRunner
	agent    *Agent
	settings Settings
	allocs   string // the directory of all allocations
	events   Events
	history  *history
}

var _ jobs.Registrar = registrar{}

// jobUpdate is another version of the job, canonical as from a job file, and what it means for the allocation.
type jobUpdate struct {
	wanted   *api.Allocation
	current  allocrunner.Current
	decision allocrunner.Decision // if it is forced
	changes  []jobdiff.Change
	warnings string
}

// MessageLeaving is the error of an agent that is detaching, for a client with another version of the job. The client
// sends it to the next agent.
const MessageLeaving = "this taskapi is leaving the allocation to another: try again"

// review makes a job that a client has sent canonical, reviews it as run does, and compares it with the present job, or
// with that of an accepted replacement.
func (j registrar) review(sent *api.Job) (jobUpdate, error) {
	now := j.agent.present()
	if now.detach {
		return jobUpdate{}, apierror.New(apierror.Conflict, MessageLeaving)
	}
	u := jobUpdate{current: allocrunner.Current{Alloc: j.runner.Alloc(), Terminal: j.runner.Terminal()}}
	if now.replacement != nil {
		u.current = allocrunner.Current{Alloc: now.replacement, Pending: true}
	}
	alloc := u.current.Alloc
	if sent.ID == nil || *sent.ID != alloc.JobID {
		return jobUpdate{}, apierror.New(apierror.OtherJob, alloc.JobID)
	}
	job, err := canonical(sent)
	if err != nil {
		return jobUpdate{}, apierror.New(apierror.Invalid, err)
	}
	group, findings, err := j.settings.Review(job, alloc.TaskGroup)
	if err != nil {
		return jobUpdate{}, apierror.New(apierror.Invalid, err)
	}
	u.wanted = NewAllocation(alloc.ID, job, group)
	u.wanted.Name = alloc.Name
	if u.decision, u.changes, err = allocrunner.Plan(u.current, u.wanted, true); err != nil {
		return jobUpdate{}, err
	}
	if u.decision >= allocrunner.Replace && !review.AnyRefused(findings) { // before the old processes are stopped
		findings = append(findings, j.settings.CheckTasks(u.wanted, j.allocs)...)
	}
	u.warnings = findingLines(findings)
	if review.AnyRefused(findings) {
		return jobUpdate{}, apierror.New(apierror.Invalid, u.warnings)
	}
	if err := j.settings.CheckUsers(group); err != nil {
		return jobUpdate{}, apierror.New(apierror.Invalid, err)
	}
	if v, ok := j.runner.(interfaces.Validator); ok && u.decision == allocrunner.InPlace {
		err = v.Validate(job)
	}
	return u, err
}

// findingLines returns findings, a line each.
func findingLines(findings []review.Finding) string {
	lines := make([]string, len(findings))
	for i, f := range findings {
		lines[i] = linewriter.OneLine(f.String())
	}
	return strings.Join(lines, "\n")
}

// Plan returns what Register would do.
func (j registrar) Plan(_ context.Context, sent *api.Job) (jobs.Plan, error) {
	u, err := j.review(sent)
	if err != nil {
		return jobs.Plan{}, err
	}
	return jobs.Plan{Changes: u.changes, Warnings: u.warnings}, nil
}

// Register gives the allocation another version of its job.
func (j registrar) Register(
	ctx context.Context, sent *api.Job, submission *api.JobSubmission, allowed jobs.Allowed,
) (jobs.Registration, error) {
	j.history.note(nil) // before the present version becomes the earlier one
	u, err := j.review(sent)
	if err != nil {
		return jobs.Registration{}, err
	}
	decision, err := j.update(ctx, u, submission, allowed)
	if err != nil {
		return jobs.Registration{}, err
	}
	now := j.runner.Alloc()
	registration := jobs.Registration{Warnings: u.warnings, DeploymentID: now.DeploymentID}
	switch {
	case decision >= allocrunner.Replace:
		registration.EvalID, registration.DeploymentID = u.wanted.EvalID, u.wanted.DeploymentID
	case decision == allocrunner.Unchanged && (now.DeploymentStatus != nil || u.current.Pending): // it is over
		registration.DeploymentID = ""
	}
	if index := now.Job.JobModifyIndex; index != nil {
		registration.Index = *index
	}
	return registration, nil
}

// update gives the runner the job, or does what is allowed if the changes need new processes. It returns which it did;
// the restart of some tasks is an update in place.
func (j registrar) update(
	ctx context.Context, u jobUpdate, text *api.JobSubmission, allowed jobs.Allowed,
) (allocrunner.Decision, error) {
	if u.decision == allocrunner.Replace && allowed.Restarts && !u.current.Pending {
		updater, ok := j.runner.(interfaces.TaskUpdater)
		if tasks, suffices := jobdiff.ByRestarts(u.current.Alloc, u.changes); ok && suffices && len(tasks) > 0 {
			err := updater.UpdateTasks(ctx, u.wanted.Job, tasks)
			if err == nil {
				j.history.note(text)
				sayUpdated(j.events, u.changes)
			}
			return allocrunner.InPlace, err
		}
	}
	decision, changes, err := allocrunner.Plan(u.current, u.wanted, allowed.Replace)
	switch {
	case err != nil:
	case decision == allocrunner.Unchanged:
		if !u.current.Pending {
			j.history.note(text)
		}
	case decision == allocrunner.InPlace:
		if err = j.runner.Update(ctx, u.wanted.Job); err == nil {
			j.history.note(text)
			sayUpdated(j.events, changes)
		}
	default:
		was := u.current.Alloc.Job
		job := u.wanted.Job
		job.Version, job.CreateIndex = new(max(ptr.Deref(was.Version)+1, ptr.Deref(job.Version))), was.CreateIndex
		u.wanted.DeploymentID = deployment.NewID(job, u.wanted.GetTaskGroup())
		err = j.agent.replace(ctx, u.wanted, !allowed.Restarts, text, changes)
	}
	return decision, err
}

// history keeps the latest versions of an allocation's job in memory. An agent that resumes the allocation knows only
// the present version.
type history struct {
	mu     sync.Mutex // guards the fields below
	runner interfaces.AllocRunner
	kept   []jobs.Version // the latest first
}

var _ jobs.History = (*history)(nil)

// follow makes this the history of another runner, and notes the present version with the text of its job.
func (h *history) follow(runner interfaces.AllocRunner, submission *api.JobSubmission) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.runner = runner
	h.noteLocked(submission)
}

// note adds the present version, if it is new, with the text of its job. The first version was submitted with the
// allocation, a later one now.
func (h *history) note(submission *api.JobSubmission) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noteLocked(submission)
}

func (h *history) noteLocked(submission *api.JobSubmission) {
	alloc := h.runner.Alloc()
	if len(h.kept) > 0 && ptr.Deref(h.kept[0].Job.Version) == ptr.Deref(alloc.Job.Version) {
		if submission != nil {
			h.kept[0].Submission = submission
		}
		if stable := alloc.Job.Stable; stable != nil && *stable { // callers have the old value, so it must not change
			job := *h.kept[0].Job
			job.Stable, h.kept[0].Job = stable, &job
		}
		return
	}
	job, submitted := *alloc.Job, alloc.CreateTime
	if len(h.kept) > 0 {
		submitted = time.Now().UnixNano()
	}
	if job.SubmitTime = &submitted; job.Stable == nil {
		job.Stable = new(bool)
	}
	h.kept = slices.Insert(h.kept, 0, jobs.Version{Job: &job, Submission: submission})
	h.kept = h.kept[:min(len(h.kept), deployment.Kept)]
}

// Versions returns the versions that are kept, the present one first.
func (h *history) Versions() []jobs.Version {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noteLocked(nil)
	return slices.Clone(h.kept)
}

// Compare returns the changes from an earlier version to a later one.
func (h *history) Compare(earlier, later *api.Job) []jobdiff.Change {
	h.mu.Lock()
	defer h.mu.Unlock()
	return jobdiff.Changes(earlier, later, h.runner.Alloc().TaskGroup)
}
