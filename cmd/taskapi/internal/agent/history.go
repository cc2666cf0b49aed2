package agent

import (
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/deployment"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec/jobdiff"
	"taskapi/handlers"
)

// history keeps the latest versions of an allocation's job in memory: an agent that resumes the allocation knows the
// present one alone.
type history struct {
	mu     sync.Mutex // guards the fields below
	runner interfaces.AllocRunner
	kept   []handlers.JobVersion // the latest first
}

var _ handlers.History = (*history)(nil)

// follow makes this the history of another runner, and notes its present version with the text that it was made from.
func (h *history) follow(runner interfaces.AllocRunner, submission *api.JobSubmission) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.runner = runner
	h.noteLocked(submission)
}

// note adds the present version, if it is new, with the text that it was made from. It was submitted now, or, if it is the first, with the
// allocation.
func (h *history) note(submission *api.JobSubmission) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noteLocked(submission)
}

func (h *history) noteLocked(submission *api.JobSubmission) {
	alloc := h.runner.Alloc()
	if len(h.kept) > 0 && versionNumber(h.kept[0].Job) == versionNumber(alloc.Job) {
		if submission != nil {
			h.kept[0].Submission = submission
		}
		if stable := alloc.Job.Stable; stable != nil && *stable { // what was returned before does not change
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
	h.kept = slices.Insert(h.kept, 0, handlers.JobVersion{Job: &job, Submission: submission})
	h.kept = h.kept[:min(len(h.kept), deployment.Kept)]
}

func versionNumber(job *api.Job) uint64 {
	if job.Version == nil {
		return 0
	}
	return *job.Version
}

// Versions returns those that are kept, the present one first.
func (h *history) Versions() []handlers.JobVersion {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noteLocked(nil)
	return slices.Clone(h.kept)
}

// Compare returns what a version changes of an earlier one.
func (h *history) Compare(earlier, later *api.Job) []jobdiff.Change {
	h.mu.Lock()
	defer h.mu.Unlock()
	return jobdiff.Changes(earlier, later, h.runner.Alloc().TaskGroup)
}
