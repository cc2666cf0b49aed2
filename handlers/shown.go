package handlers

import (
	"hash/maphash"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers/internal/redact"
)

// views is how many tasks' views of the allocation are kept. Two tasks that share a place replace each other's view,
// which makes them slower.
const views = 8

// view is an allocation as one task is shown it.
type view struct {
	whole, shown *api.Allocation
	task         string
}

// viewSeed spreads the names of tasks over the places of a table.
var viewSeed = maphash.MakeSeed()

// viewOf returns the place of the caller's view.
func (r *request) viewOf() int { return int(maphash.String(viewSeed, r.Principal.Claims.Task) % views) }

// shown returns an allocation as the caller is shown it. Answers, searches and filters see no more than that.
func (r *request) shown(whole *api.Allocation) *api.Allocation {
	if r.Principal.SeesWholeJob() || whole.Job == nil {
		return whole
	}
	kept, task := &r.server.views[r.viewOf()], r.Principal.Claims.Task
	if v := kept.Load(); v != nil && v.whole == whole && v.task == task {
		return v.shown
	}
	alloc := *whole
	alloc.Job = shownJob(r.Principal, whole.Job)
	kept.Store(&view{whole, &alloc, task})
	return &alloc
}

// shownJob returns a version of the job as a caller is shown it.
func shownJob(caller *auth.Principal, whole *api.Job) *api.Job {
	if caller.SeesWholeJob() {
		return whole
	}
	return redact.Job(whole, caller.TaskGroup, caller.Claims.Task)
}
