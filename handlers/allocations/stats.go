package allocations

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
)

// Measured is an allocation whose tasks' use of CPU and memory is measured.
type Measured interface {
	route.Alloc
	// Stats sends what each task and each of its processes uses now, and once each interval from then on, until ctx
	// ends, which closes the channel. It sends nothing while that can't be measured. What it sends is shared and not
	// changed, with another Timestamp when anything has changed.
	Stats(ctx context.Context, interval time.Duration) (<-chan *api.AllocResourceUsage, error)
}

// statsTimeout is how long a request waits for figures. They mostly come at once, the first in a while after 0.2
// seconds.
const statsTimeout = 5 * time.Second

// latestUsage returns the first of an allocation's samples. Errors: Unavailable, ctx's.
func latestUsage(ctx context.Context, alloc Measured) (*api.AllocResourceUsage, error) {
	within, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	samples, err := alloc.Stats(within, statsTimeout)
	if err != nil {
		return nil, err
	}
	usage, ok := <-samples
	switch {
	case ok:
		return usage, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, apierror.New(apierror.Unavailable, "what the tasks use can't be measured for now: try again")
}

// stats answers GET /v1/client/allocation/:id/stats?task=. A task that has never run is not in the answer, and one that
// has ended uses nothing.
func (h *handlers) stats(ctx context.Context, r *route.Request, alloc Measured) (route.Answer, error) {
	task := r.Query().Get("task")
	if task != "" && wire.OwnTask(alloc.Snapshot(), task) == nil {
		return route.Answer{}, apierror.New(apierror.NoTask)
	}
	usage, err := latestUsage(ctx, alloc)
	if err != nil {
		return route.Answer{}, err
	}
	if usage.Timestamp == 0 { // nothing runs, and nothing tells two such answers apart
		return route.Respond(wire.AllocUsageOf(ofTask(usage, task)))
	}
	key := route.CacheKey{Alloc: r.Param("alloc"), Version: uint64(usage.Timestamp), Extra: task}
	encoded, err := h.usage.Get(key, func() any { return wire.AllocUsageOf(ofTask(usage, task)) })
	return route.Answer{Body: encoded}, err
}

// ofTask returns the part of an allocation's usage that is of one task, or all of it for an empty name.
func ofTask(all *api.AllocResourceUsage, name string) *api.AllocResourceUsage {
	if name == "" {
		return all
	}
	none := []*api.DeviceGroupStats{}
	part := &api.AllocResourceUsage{
		ResourceUsage: &api.ResourceUsage{MemoryStats: &api.MemoryStats{}, CpuStats: &api.CpuStats{}, DeviceStats: none},
		Tasks:         map[string]*api.TaskResourceUsage{},
	}
	task, ok := all.Tasks[name]
	if !ok {
		return part
	}
	part.Tasks[name] = task
	if task.Timestamp == all.Timestamp { // else it does not run
		sum := *task.ResourceUsage
		sum.DeviceStats = none
		part.ResourceUsage, part.Timestamp = &sum, task.Timestamp
	}
	return part
}
