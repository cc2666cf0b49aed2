package machine

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"

	"taskapi/allocrunner/interfaces"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/list"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
	"taskapi/handlers/jobs"
	"taskapi/handlers/node"
	"taskapi/internal/ptr"
)

// ofMachine returns a handler that first waits, when the query has an index, until something has changed on the
// machine. A client that waits for one job is also woken by others, and compares, as Nomad's clients do.
func (h *handlers) ofMachine(handle route.Handler) route.Handler {
	return func(ctx context.Context, r *route.Request) (route.Answer, error) {
		r.About(h.Machine.Self())
		if err := h.await(ctx, r); err != nil {
			return route.Answer{}, err
		}
		return handle(ctx, r)
	}
}

// await waits, when the query has an index, until something has changed on the machine.
func (h *handlers) await(ctx context.Context, r *route.Request) error {
	if r.Method != http.MethodGet || r.Answers() != route.JSON {
		return nil
	}
	return r.AwaitChange(ctx, h.Machine.Index(), func(ctx context.Context, after uint64) error {
		h.Machine.Wait(ctx, after)
		return nil
	})
}

// answerAllocations lists allocations, which functions return.
func (h *handlers) answerAllocations(
	ctx context.Context, r *route.Request, read ...func(context.Context) ([]*api.Allocation, error),
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
			return route.Answer{}, err
		}
		all = append(all, some...)
	}
	answer, err := l.Answer(all, index)
	answer.Shared = true
	return answer, err
}

// selecting returns a function that returns those of this machine's allocations that another function selects.
func (h *handlers) selecting(selects func(*api.Allocation) bool) func(context.Context) ([]*api.Allocation, error) {
	return func(ctx context.Context) ([]*api.Allocation, error) {
		all, err := h.Machine.Allocations(ctx)
		return slices.DeleteFunc(all, func(alloc *api.Allocation) bool { return !selects(alloc) }), err
	}
}

// allocations answers GET /v1/allocations: those of this machine, and of the others of a cluster.
func (h *handlers) allocations(ctx context.Context, r *route.Request) (route.Answer, error) {
	return h.answerAllocations(ctx, r, h.Machine.Allocations, h.Machine.Elsewhere)
}

// jobAllocations answers GET /v1/job/:job/allocations.
func (h *handlers) jobAllocations(ctx context.Context, r *route.Request) (route.Answer, error) {
	return h.answerAllocations(ctx, r, func(ctx context.Context) ([]*api.Allocation, error) { return h.named(ctx, r) })
}

// nodeAllocations answers GET /v1/node/:node/allocations. Those of jobs that only start others take no resources, which
// nomad node status needs of each.
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
		if strings.EqualFold(alloc.NodeID, r.Param("node")) && !interfaces.IsParent(alloc.Job) {
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
	for _, child := range of.children(all) {
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

// children returns the jobs among all that a job has started.
func (of ofOneJob) children(all []ofOneJob) (found []ofOneJob) {
	for _, child := range all {
		if ptr.Deref(child[0].Job.ParentID) == of[0].JobID && child[0].Namespace == of[0].Namespace {
			found = append(found, child)
		}
	}
	return found
}

// jobs answers GET /v1/jobs and GET /v1/node/pool/:pool/jobs.
func (h *handlers) jobs(ctx context.Context, r *route.Request) (route.Answer, error) {
	meta, index := r.Flag("meta", false), h.Machine.Index()
	return h.listJobs(ctx, r, func(of ofOneJob, all []ofOneJob) any {
		stub := wire.JobStubOf(of[0], meta)
		stub.JobSummary = of.summary(all, index)
		return stub
	}, func(alloc *api.Allocation) bool { return jobs.InPool(r, alloc.Job) })
}

// statuses answers GET and POST /v1/jobs/statuses: jobs, each with its allocations and its latest deployment.
func (h *handlers) statuses(ctx context.Context, r *route.Request, want *api.JobStatusesRequest) (route.Answer, error) {
	if r.Method == http.MethodPost && len(want.Jobs) == 0 {
		return route.Answer{}, route.Invalid("no jobs in request")
	}
	return h.listJobs(ctx, r, func(of ofOneJob, all []ofOneJob) any {
		var deployments []*api.Deployment
		if d := latest(h.rollouts(ctx, of)); d != nil {
			deployments = append(deployments, d.Deployment)
		}
		status := jobs.StatusOf(of[0], deployments)
		for _, alloc := range of[1:] {
			status.Allocs = append(status.Allocs, jobs.StatusOf(alloc, nil).Allocs...)
		}
		status.GroupCountSum = 0
		for _, tg := range of[0].Job.TaskGroups {
			status.GroupCountSum += interfaces.CountOf(of[0].Job, tg)
		}
		for _, child := range of.children(all) {
			status.ChildStatuses = append(status.ChildStatuses, ptr.Deref(wire.JobNow(child[0]).Status))
		}
		return status
	}, func(alloc *api.Allocation) bool {
		return jobs.Named(want, alloc) && (want.IncludeChildren || len(want.Jobs) > 0 || ptr.Deref(alloc.Job.ParentID) == "")
	})
}

// listJobs lists the jobs whose allocations a function selects.
func (h *handlers) listJobs(
	ctx context.Context, r *route.Request, stub func(of ofOneJob, all []ofOneJob) any, selects func(*api.Allocation) bool,
) (route.Answer, error) {
	index := h.Machine.Index()
	var all []ofOneJob
	l, err := list.New(r, list.Listing[ofOneJob]{
		Order:     list.ByNamespaceID,
		ID:        func(of ofOneJob) string { return of[0].JobID },
		Namespace: func(of ofOneJob) string { return of[0].Namespace },
		Stub:      func(of ofOneJob) any { return stub(of, all) },
		Matched:   func(of ofOneJob) any { return wire.JobNow(of[0]) },
	})
	if err != nil {
		return route.Answer{}, err
	}
	if err := r.EnterMaking(ctx); err != nil {
		return route.Answer{}, err
	}
	allocs, err := h.Machine.Allocations(ctx)
	if err != nil {
		return route.Answer{}, err
	}
	all = byJob(withJob(allocs))
	answer, err := l.Answer(slices.DeleteFunc(slices.Clone(all), func(of ofOneJob) bool { return !selects(of[0]) }), index)
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
	of, err := h.named(ctx, r)
	if err != nil {
		return route.Answer{}, err
	}
	if of = withJob(of); len(of) == 0 {
		return route.Answer{}, noJob
	}
	return route.Shared(ofOneJob(of).summary(byJob(withJob(all)), index), index)
}

// namespaces answers GET /v1/namespaces and GET /v1/namespace/:namespace with those of jobs, and the default one.
func (h *handlers) namespaces(ctx context.Context, r *route.Request) (route.Answer, error) {
	l, err := list.New(r, node.NamespaceListing(r))
	if err != nil {
		return route.Answer{}, err
	}
	index := h.Machine.Index()
	all, err := h.Machine.Allocations(ctx)
	if err != nil {
		return route.Answer{}, err
	}
	found := []*api.Namespace{node.NamespaceOf(h.Machine.Self().Snapshot())}
	for _, alloc := range all {
		if !slices.ContainsFunc(found, func(known *api.Namespace) bool { return known.Name == alloc.Namespace }) {
			found = append(found, node.NamespaceOf(alloc))
		}
	}
	name := r.Param("namespace")
	if name == "" {
		return l.Answer(found, index)
	}
	i := slices.IndexFunc(found, func(known *api.Namespace) bool { return known.Name == name })
	if i < 0 {
		return route.Answer{}, apierror.New(apierror.NoNamespace)
	}
	return route.Shared(wire.NamespaceOf(found[i]), index)
}

// mostAsked is how many processes are asked at a time.
const mostAsked = 8

// each calls a function for each allocation, for several at a time, and returns the results in the allocations' order.
func each[T any](all []*api.Allocation, do func(*api.Allocation) T) []T {
	results := make([]T, len(all))
	var calls errgroup.Group
	calls.SetLimit(mostAsked)
	for i, alloc := range all {
		calls.Go(func() error {
			results[i] = do(alloc)
			return nil
		})
	}
	_ = calls.Wait() // no call fails
	return results
}
