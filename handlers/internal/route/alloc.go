package route

import (
	"context"
	"fmt"
	"hash/maphash"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers/apierror"
)

// Allocs finds allocations.
type Allocs interface {
	// Get returns the allocation with the ID, in lower case, and whether there is one.
	Get(id string) (Alloc, bool)
}

// Alloc is one allocation. Small interfaces, each beside the handlers that use it, have its further operations. If an
// allocation lacks a route's interface, the route is NoRoute. The errors of their methods are *apierror.Error, wrapped
// or not; anything else is a fault.
type Alloc interface {
	// Snapshot returns the allocation as it stands. It is shared and not changed; ModifyIndex grows with every change.
	Snapshot() *api.Allocation
	// Wait returns the allocation once its ModifyIndex is above index, or as it stands when ctx ends.
	Wait(ctx context.Context, index uint64) *api.Allocation
}

// Alloc returns the allocation that the path names. If the caller may not see the allocation, the error is the same as
// for a missing one, which depends on the endpoint. Errors: Invalid when the text is no UUID, unknown.
func (r *Request) Alloc(unknown apierror.Kind) (Alloc, error) {
	id := r.Param("alloc")
	if r.subject != nil && strings.EqualFold(id, r.subject.Snapshot().ID) {
		return r.subject, nil
	}
	if r.Principal.MaySee(id) {
		if alloc, ok := r.socket.config.Allocs.Get(strings.ToLower(id)); ok {
			return alloc, nil
		}
	}
	if err := CheckUUID("allocation ID", id); err != nil {
		return nil, err
	}
	missing := apierror.New(unknown, id)
	if elsewhere := r.socket.config.Elsewhere; elsewhere != nil && r.Principal.Operator() {
		if where := elsewhere(r.Context(), strings.ToLower(id)); where != "" {
			missing.Message += ": " + where
		}
	}
	return nil, missing
}

// Resource returns the allocation that the path names as the interface of a resource. Errors: those of Request.Alloc,
// NoRoute when it has none.
func Resource[T any](r *Request, unknown apierror.Kind) (found T, err error) {
	alloc, err := r.Alloc(unknown)
	if err != nil {
		return found, err
	}
	found, ok := alloc.(T)
	if !ok {
		return found, apierror.New(apierror.NoRoute)
	}
	return found, nil
}

// About makes an allocation the one that the request is about, in place of the caller's own.
func (r *Request) About(alloc Alloc) { r.subject = alloc }

// Visible returns the allocation that the caller may see in lists: the one of its token, or that of About.
func (r *Request) Visible() (Alloc, bool) {
	if r.subject != nil {
		return r.subject, true
	}
	return r.socket.config.Allocs.Get(r.Principal.Claims.AllocationID)
}

// Index returns the ModifyIndex of the allocation that is visible, 0 for none.
func (r *Request) Index() uint64 {
	alloc, ok := r.Visible()
	if !ok {
		return 0
	}
	return alloc.Snapshot().ModifyIndex
}

// Snapshot returns the allocation as the caller may see it. When the query has an index, it first waits until the
// ModifyIndex has passed that index; see AwaitChange, with its errors.
func (r *Request) Snapshot(ctx context.Context, alloc Alloc) (*api.Allocation, error) {
	now := alloc.Snapshot()
	err := r.AwaitChange(ctx, now.ModifyIndex, func(ctx context.Context, after uint64) error {
		now = alloc.Wait(ctx, after)
		return nil
	})
	return r.shown(now), err
}

// WithJob returns the caller's allocation with its job, as snapshot does. A job changes only with its allocation, so
// the allocation's index is that of both. Errors: NoJob, those of snapshot.
func (r *Request) WithJob(ctx context.Context) (*api.Allocation, error) {
	alloc, ok := r.Visible()
	if !ok {
		return nil, apierror.New(apierror.NoJob)
	}
	current, err := r.Snapshot(ctx, alloc)
	if err == nil && current.Job == nil {
		err = apierror.New(apierror.NoJob)
	}
	return current, err
}

// OwnJob is withJob for a path that must name the caller's job. Errors: NoJob.
func (r *Request) OwnJob(ctx context.Context) (*api.Allocation, error) {
	current, err := r.WithJob(ctx)
	if err != nil {
		return nil, err
	}
	if r.Param("job") != current.JobID || !InNamespace(r.Query().Get("namespace"), current.Namespace) {
		return nil, apierror.New(apierror.NoJob)
	}
	return current, nil
}

// Reading returns a handler that answers with the value that read returns for the caller's allocation, which has a job.
func Reading(read func(r *Request, current *api.Allocation) (any, error)) Handler {
	return reading((*Request).WithJob, read)
}

// ReadingJob is Reading for a path that must name the caller's job.
func ReadingJob(read func(r *Request, current *api.Allocation) (any, error)) Handler {
	return reading((*Request).OwnJob, read)
}

func reading(
	find func(*Request, context.Context) (*api.Allocation, error),
	read func(*Request, *api.Allocation) (any, error),
) Handler {
	return func(ctx context.Context, r *Request) (Answer, error) {
		current, err := find(r, ctx)
		if err != nil {
			return Answer{}, err
		}
		value, err := read(r, current)
		if err != nil {
			return Answer{}, err
		}
		return Indexed(value, current.ModifyIndex)
	}
}

// AllNamespaces stands for every namespace in a query.
const AllNamespaces = "*"

// InNamespace reports whether a namespace is one that a query asks for.
func InNamespace(queried, namespace string) bool {
	return queried == "" || queried == AllNamespaces || queried == namespace
}

// Views is the number of slots for tasks' views of the allocation. Two tasks that share a slot replace each other's
// view, which makes them slower.
const Views = 8

// view is an allocation as one task may see it.
type view struct {
	whole, shown *api.Allocation
	task         string
}

// viewSeed spreads the names of tasks over the places of a table.
var viewSeed = maphash.MakeSeed()

// ViewOf returns the place of the caller's view.
func (r *Request) ViewOf() int { return int(maphash.String(viewSeed, r.Principal.Claims.Task) % Views) }

// shown returns an allocation as the caller may see it. Answers, searches and filters use nothing else.
func (r *Request) shown(whole *api.Allocation) *api.Allocation {
	if r.Principal.SeesWholeJob() || whole.Job == nil {
		return whole
	}
	kept, task := &r.socket.views[r.ViewOf()], r.Principal.Claims.Task
	if v := kept.Load(); v != nil && v.whole == whole && v.task == task {
		return v.shown
	}
	alloc := *whole
	alloc.Job = ShownJob(r.Principal, whole.Job)
	kept.Store(&view{whole, &alloc, task})
	return &alloc
}

// ShownJob returns a version of the job as a caller may see it.
func ShownJob(caller *auth.Principal, whole *api.Job) *api.Job {
	if caller.SeesWholeJob() {
		return whole
	}
	return redact(whole, caller.TaskGroup, caller.Claims.Task)
}

// Collect removes the caller's allocation, with its directory, if it has ended.
func (r *Request) Collect(ctx context.Context) error {
	found, _ := r.Visible()
	alloc, ok := found.(interface{ Collect(context.Context) error })
	if !ok {
		return nil
	}
	err := alloc.Collect(ctx)
	if err == nil || apierror.Of(err).Kind == apierror.NotCollectable {
		return nil
	}
	return fmt.Errorf("collect: %w", err)
}
