// Package allocations has the routes of allocations: their state, the results of their checks, their use of CPU and
// memory, and the actions on them (restart, signal, stop, removal).
package allocations

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/evaluations"
	"taskapi/handlers/internal/list"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
)

// Config has what the routes of allocations need.
type Config struct {
	Evaluations *evaluations.Store
	KeyID       func() string  // of the key that signs new identities, shown in the allocation
	Fleet       Fleet          // what the operator's list has; nil for the caller's allocation alone
	Refusals    *auth.Refusals // on the sockets of the allocation's tasks; nil for none
}

// Fleet has the allocations of all machines that share a store, of this machine, too.
type Fleet interface {
	// Allocations returns them, with the index of the list.
	Allocations(ctx context.Context) ([]*api.Allocation, uint64, error)
	// WaitAllocations returns once the list has changed after an index, or when ctx ends.
	WaitAllocations(ctx context.Context, index uint64) error
}

type handlers struct {
	Config
	allocation [route.Views]route.Cache // by version as it is shown, and signing key
	checks     route.Cache              // by allocation and version
	usage      route.Cache              // by allocation, time of the sample and task
}

// Routes returns the rows of allocations.
func Routes(c Config) []route.Route {
	h := &handlers{Config: c}
	const client = "/v1/client/allocation/{alloc}"
	onClient := apierror.NoAllocOnClient
	return []route.Route{
		route.Read("/v1/allocations", auth.ReadJob, h.list,
			"Lists the caller's allocation; on the operator's socket those of all machines of a cluster.").
			Flags(list.AllocationFlags...),
		route.Read("/v1/allocation/{alloc}", auth.ReadJob, route.OnAlloc(apierror.NoAlloc, h.get), "Returns an allocation."),
		route.Read("/v1/allocation/{alloc}/checks", auth.ReadJob, route.OnAlloc(apierror.NoAlloc, h.results),
			"Returns the latest results of an allocation's checks."),
		route.Read(client+"/checks", auth.ReadJob, route.OnAlloc(onClient, h.results),
			"Returns the latest results of an allocation's checks."),
		route.Read(client+"/stats", auth.ReadJob, route.OnAlloc(onClient, h.stats),
			"Returns the CPU and memory use of the tasks and their processes; task=NAME for one."),
		route.Read(client+"/refusals", auth.OperatorOnly, route.OnAlloc(onClient, h.refusals),
			"Returns which requests of each task were refused, and why: the latest of each kind."),
		route.Write(client+"/restart", auth.AllocLifecycle, route.OnAlloc(onClient, restart),
			"Restarts one task, all tasks, or all that run."),
		route.Write(client+"/signal", auth.AllocLifecycle, route.OnAlloc(onClient, signal),
			"Sends a signal to one task or to all."),
		route.Read(client+"/pause", auth.ReadJob, route.OnAlloc(onClient, pauseGet),
			"Returns what holds for a task: that it is stopped, or what its schedule says."),
		route.Write(client+"/pause", auth.AllocLifecycle, route.OnAlloc(onClient, pauseSet),
			"Stops a task, starts it, or has it follow its schedule again."),
		route.Write("/v1/allocation/{alloc}/stop", auth.AllocLifecycle, route.OnAlloc(apierror.NoAllocation, h.stop),
			"Begins to stop an allocation.").Flags("no_shutdown_delay", "now").WithoutRecord(),
		route.Write(client+"/gc", auth.AllocLifecycle, route.OnAlloc(onClient, gc),
			"Removes an allocation that has ended, with its directory.").AlsoBy(http.MethodGet),
	}
}

func (h *handlers) get(ctx context.Context, r *route.Request, alloc route.Alloc) (route.Answer, error) {
	current, err := r.Snapshot(ctx, alloc)
	if err != nil {
		return route.Answer{}, err
	}
	keyID := h.KeyID()
	encoded, err := h.allocation[r.ViewOf()].Get(route.CacheKey{Shown: current, Extra: keyID}, func() any {
		return wire.AllocationOf(current, keyID)
	})
	return route.Answer{Body: encoded, Index: current.ModifyIndex}, err
}

// Encode returns the allocation as GET /v1/allocation/:id?pretty answers it, without the signing key, for an
// allocation whose agent has exited.
func Encode(a *api.Allocation) ([]byte, error) {
	return json.MarshalIndent(wire.AllocationOf(a, ""), "", route.PrettyIndent)
}

// list answers GET /v1/allocations: the caller's own.
func (h *handlers) list(ctx context.Context, r *route.Request) (route.Answer, error) {
	l, err := list.New(r, list.AllocationListing(r))
	if err != nil {
		return route.Answer{}, err
	}
	if h.Fleet != nil && r.Principal.Operator() {
		return h.listFleet(ctx, r, l)
	}
	alloc, ok := r.Visible()
	if !ok {
		return l.Answer(nil, 0)
	}
	current, err := r.Snapshot(ctx, alloc)
	if err != nil {
		return route.Answer{}, err
	}
	return l.Answer([]*api.Allocation{current}, current.ModifyIndex)
}

// listFleet answers the operator with the allocations of all machines. This process knows its own allocation best.
func (h *handlers) listFleet(
	ctx context.Context, r *route.Request, l *list.List[*api.Allocation],
) (route.Answer, error) {
	if err := r.AwaitChange(ctx, 0, h.Fleet.WaitAllocations); err != nil {
		return route.Answer{}, err
	}
	if err := r.EnterMaking(ctx); err != nil { // machines may have thousands
		return route.Answer{}, err
	}
	all, index, err := h.Fleet.Allocations(ctx)
	if err != nil {
		return route.Answer{}, fmt.Errorf("list the allocations of all machines: %w", err)
	}
	if alloc, ok := r.Visible(); ok {
		own := *alloc.Snapshot()
		own.CreateIndex, own.ModifyIndex = index, index
		i := slices.IndexFunc(all, func(a *api.Allocation) bool { return a.ID == own.ID })
		if i < 0 {
			all = append(all, &own)
		} else {
			own.CreateIndex, own.ModifyIndex = all[i].CreateIndex, all[i].ModifyIndex
			all[i] = &own
		}
	}
	return l.Answer(all, index)
}

// Checker is an allocation with checks.
type Checker interface {
	// Checks returns the latest result of every check by ID, and a version that differs whenever the results do.
	Checks() (results api.AllocCheckStatuses, version uint64)
}

// results answers GET /v1/client/allocation/:id/checks and GET /v1/allocation/:id/checks. The first is the most
// frequent request: its encoding is kept until a result changes.
func (h *handlers) results(_ context.Context, r *route.Request, alloc Checker) (route.Answer, error) {
	results, version := alloc.Checks()
	key := route.CacheKey{Alloc: r.Param("alloc"), Version: version}
	encoded, err := h.checks.Get(key, func() any { return wire.ChecksOf(results) })
	return route.Answer{Body: encoded}, err
}

// refusals answers GET /v1/client/allocation/:id/refusals, which Nomad does not have. No task reads them: some tell why
// a token is not valid.
func (h *handlers) refusals(context.Context, *route.Request, route.Alloc) (route.Answer, error) {
	return route.Respond(h.Refusals.All())
}
