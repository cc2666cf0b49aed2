package machine

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/internal/list"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
	"taskapi/internal/ptr"
)

// ofMachine returns a handler that first waits, when the query has an index, until something has changed on the
// machine. A client that waits for one job is also woken by others, and compares, as Nomad's clients do.
func (h *handlers) ofMachine(handle route.Handler) route.Handler {
	return func(ctx context.Context, r *route.Request) (route.Answer, error) {
		r.About(h.Machine.Self())
		if r.Method == http.MethodGet && r.Answers() == route.JSON {
			err := r.AwaitChange(ctx, h.Machine.Index(), func(ctx context.Context, after uint64) error {
				h.Machine.Wait(ctx, after)
				return nil
			})
			if err != nil {
				return route.Answer{}, err
			}
		}
		return handle(ctx, r)
	}
}

// answerAllocations lists the allocations of this machine that a function selects.
func (h *handlers) answerAllocations(
	ctx context.Context, r *route.Request, selects func(*api.Allocation) bool,
) (route.Answer, error) {
	return h.listAllocations(ctx, r, selects, h.Machine.Allocations)
}

func (h *handlers) listAllocations(
	ctx context.Context, r *route.Request, selects func(*api.Allocation) bool,
	read ...func(context.Context) ([]*api.Allocation, error),
) (route.Answer, error) {
	l, err := list.New(r, list.AllocationListing(r))
	if err != nil {
		return route.Answer{}, err
	}
	if err := r.EnterMaking(ctx); err != nil { // there may be thousands
		return route.Answer{}, err
	}
	index := h.Machine.Index() // what changes meanwhile wakes the next query
	var all []*api.Allocation
	for _, of := range read {
		some, err := of(ctx)
		if err != nil {
			return route.Answer{}, fmt.Errorf("list allocations: %w", err)
		}
		all = append(all, some...)
	}
	all = slices.DeleteFunc(all, func(alloc *api.Allocation) bool { return !selects(alloc) })
	answer, err := l.Answer(all, index)
	answer.Shared = true
	return answer, err
}

// allocations answers GET /v1/allocations: those of this machine, and of the others of a cluster.
func (h *handlers) allocations(ctx context.Context, r *route.Request) (route.Answer, error) {
	any := func(*api.Allocation) bool { return true }
	return h.listAllocations(ctx, r, any, h.Machine.Allocations, h.Machine.Elsewhere)
}

// jobAllocations answers GET /v1/job/:job/allocations.
func (h *handlers) jobAllocations(ctx context.Context, r *route.Request) (route.Answer, error) {
	return h.answerAllocations(ctx, r, func(alloc *api.Allocation) bool { return alloc.JobID == r.Param("job") })
}

// nodeAllocations answers GET /v1/node/:node/allocations.
func (h *handlers) nodeAllocations(ctx context.Context, r *route.Request) (route.Answer, error) {
	if err := r.EnterMaking(ctx); err != nil {
		return route.Answer{}, err
	}
	index := h.Machine.Index()
	all, err := h.Machine.Allocations(ctx)
	if err != nil {
		return route.Answer{}, err
	}
	found := []*wire.Allocation{}
	for _, alloc := range all {
		if strings.EqualFold(alloc.NodeID, r.Param("node")) {
			found = append(found, wire.AllocationOf(alloc, h.KeyID()))
		}
	}
	return route.Shared(found, index)
}

// ofOneJob are the allocations of a job, in the order of Sort.
type ofOneJob []*api.Allocation

// byJob returns allocations by their jobs.
func byJob(all []*api.Allocation) (jobs []ofOneJob) {
	at := map[api.NamespacedID]int{}
	for _, alloc := range all {
		id := api.NamespacedID{Namespace: alloc.Namespace, ID: alloc.JobID}
		i, known := at[id]
		if !known {
			i = len(jobs)
			at[id], jobs = i, append(jobs, nil)
		}
		jobs[i] = append(jobs[i], alloc)
	}
	for _, job := range jobs {
		Sort(job)
	}
	return jobs
}

// Sort sorts allocations of a job: first those that have not ended, and of each kind the newest first. Of those that
// have not ended, the one that knows most versions of the job comes first. An allocation that a larger count has
// started knows only the later ones.
func Sort(all []*api.Allocation) {
	slices.SortStableFunc(all, func(a, b *api.Allocation) int {
		if x, y := a.ClientTerminalStatus(), b.ClientTerminalStatus(); x != y {
			if x {
				return 1
			}
			return -1
		}
		versions := 0
		if !b.ClientTerminalStatus() && a.Job != nil && b.Job != nil {
			versions = cmp.Compare(ptr.Deref(b.Job.Version), ptr.Deref(a.Job.Version))
		}
		return cmp.Or(versions, cmp.Compare(b.CreateTime, a.CreateTime))
	})
}

// summary counts a job's allocations by status, and its children.
func (of ofOneJob) summary(all []ofOneJob, index uint64) *api.JobSummary {
	sum := wire.JobSummaryOf(of[0])
	for _, alloc := range of[1:] {
		for name, other := range wire.JobSummaryOf(alloc).Summary {
			group := sum.Summary[name]
			group.Queued, group.Complete = group.Queued+other.Queued, group.Complete+other.Complete
			group.Failed, group.Running = group.Failed+other.Failed, group.Running+other.Running
			group.Starting, group.Lost = group.Starting+other.Starting, group.Lost+other.Lost
			group.Unknown += other.Unknown
			sum.Summary[name] = group
		}
	}
	for _, child := range all {
		if job := child[0].Job; job == nil || ptr.Deref(job.ParentID) != of[0].JobID ||
			child[0].Namespace != of[0].Namespace {
			continue
		}
		switch ptr.Deref(wire.JobNow(child[0]).Status) {
		case "running":
			sum.Children.Running++
		case "dead":
			sum.Children.Dead++
		default:
			sum.Children.Pending++
		}
	}
	sum.ModifyIndex = index
	return sum
}

// jobs answers GET /v1/jobs.
func (h *handlers) jobs(ctx context.Context, r *route.Request) (route.Answer, error) {
	meta, index := r.Flag("meta", false), h.Machine.Index()
	var jobs []ofOneJob
	l, err := list.New(r, list.Listing[ofOneJob]{
		Order:     list.ByNamespaceID,
		ID:        func(of ofOneJob) string { return of[0].JobID },
		Namespace: func(of ofOneJob) string { return of[0].Namespace },
		Stub: func(of ofOneJob) any {
			stub := wire.JobStubOf(of[0], meta)
			stub.JobSummary = of.summary(jobs, index)
			return stub
		},
		Matched: func(of ofOneJob) any { return wire.JobNow(of[0]) },
	})
	if err != nil {
		return route.Answer{}, err
	}
	if err := r.EnterMaking(ctx); err != nil {
		return route.Answer{}, err
	}
	all, err := h.Machine.Allocations(ctx)
	if err != nil {
		return route.Answer{}, err
	}
	jobs = byJob(withJob(all))
	answer, err := l.Answer(jobs, index)
	answer.Shared = true
	return answer, err
}

// withJob leaves out allocations without a job.
func withJob(all []*api.Allocation) []*api.Allocation {
	return slices.DeleteFunc(all, func(alloc *api.Allocation) bool { return alloc.Job == nil })
}

// jobSummary answers GET /v1/job/:job/summary.
func (h *handlers) jobSummary(ctx context.Context, r *route.Request) (route.Answer, error) {
	index := h.Machine.Index()
	all, err := h.Machine.Allocations(ctx)
	if err != nil {
		return route.Answer{}, err
	}
	jobs := byJob(withJob(all))
	for _, of := range jobs {
		if of[0].JobID == r.Param("job") && route.InNamespace(r.Query().Get("namespace"), of[0].Namespace) {
			return route.Shared(of.summary(jobs, index), index)
		}
	}
	return route.Answer{}, noJob
}

// allEvaluations answers GET /v1/evaluations.
func (h *handlers) allEvaluations(ctx context.Context, r *route.Request) (route.Answer, error) {
	l, err := list.New(r, list.Listing[*api.Evaluation]{
		Order: list.ByCreateIndex, UUID: true,
		ID:        func(e *api.Evaluation) string { return e.ID },
		Namespace: func(e *api.Evaluation) string { return e.Namespace },
		Created:   func(e *api.Evaluation) uint64 { return e.CreateIndex },
		Stub:      wire.Sparse[api.Evaluation],
	})
	if err != nil {
		return route.Answer{}, err
	}
	index := h.Machine.Index()
	found, err := h.evaluationsOf(ctx, "")
	if err != nil {
		return route.Answer{}, err
	}
	answer, err := l.Answer(found, index)
	answer.Shared = true
	return answer, err
}

// mostAsked is how many processes are asked at a time.
const mostAsked = 8

// each returns what a function returns for each of some allocations, in their order. It is called for several at a time.
func each[T any](all []*api.Allocation, do func(*api.Allocation) T) []T {
	results := make([]T, len(all))
	var asked sync.WaitGroup
	slots := make(chan struct{}, mostAsked)
	for i, alloc := range all {
		slots <- struct{}{}
		asked.Go(func() {
			defer func() { <-slots }()
			results[i] = do(alloc)
		})
	}
	asked.Wait()
	return results
}
