// Package machine has the routes of a whole machine: those of package handlers, about all allocations of a data
// directory. Lists are merged. A request about one allocation goes to the process that runs it, and one about an
// allocation that has ended is answered from what was saved. Jobs are registered and stopped here.
//
// It promises that no token of a caller reaches another process, and that the index of the merged lists never goes
// backwards.
package machine

import (
	"context"
	"net/http"
	"strings"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/semaphore"

	"taskapi/handlers/events"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/jobs"
)

// Machine is what the routes need of a machine.
type Machine interface {
	// Self stands for the machine where a route needs an allocation.
	Self() route.Alloc
	// Index grows with each change of an allocation that is noticed, also over restarts of this process.
	Index() uint64
	// Wait returns once the index is above another one, or when ctx ends.
	Wait(ctx context.Context, after uint64)

	// Allocations returns all of them, those that have ended, too.
	Allocations(ctx context.Context) ([]*api.Allocation, error)
	// Elsewhere returns the allocations of the other machines of a cluster; none without a cluster.
	Elsewhere(ctx context.Context) ([]*api.Allocation, error)
	// OfJob returns the allocations of a job, in the order of Sort. An empty namespace stands for any.
	OfJob(ctx context.Context, namespace, job string) ([]*api.Allocation, error)
	// Find returns an allocation; Ended is nil while a process runs it. It returns nil for none.
	Find(ctx context.Context, id string) (*Found, error)
	// Saved returns an allocation as it was saved, for reads while no process runs it; nil for none.
	Saved(id string) route.Alloc
	// Deployments returns those of an allocation, as they were saved.
	Deployments(id string) []*api.Deployment
	// Ask sends a request to the process that runs an allocation, with the token of that allocation's operator. Errors:
	// that process does not answer.
	Ask(ctx context.Context, id string, r *http.Request) (*http.Response, error)

	// Register starts the allocations of a job, or updates those that run. It returns once it is known that the job can
	// run here, and perhaps later; from then on, the work outlives this process. result gets the end of the work: nil, or
	// why some of it could not be done. allowed gets the job's allocations before the work. Errors: apierror.Invalid for
	// a job that can't run here, apierror.UnderWay while another registration or a stop of the job is under way, and
	// those of allowed and AsStrict; nothing has been changed.
	Register(ctx context.Context, job *api.Job, allowed func([]*api.Allocation) error) (result <-chan error, err error)
	// AsStrict refuses a job for running allocations whose settings give its tasks more than the machine's.
	AsStrict(all []*api.Allocation, job *api.Job) error
	// Stop begins to stop the allocations of a job, and with purge removes them when they have ended. It ends a
	// registration of the job that is under way: nothing starts after Stop has returned. found is false when the job has
	// no allocation and no registration.
	Stop(ctx context.Context, namespace, job string, noShutdownDelay, purge bool) (found bool, err error)
}

// Found is one allocation.
type Found struct {
	Alloc *api.Allocation
	Ended route.Alloc // answers about an allocation that has ended
}

// Config has what the routes need.
type Config struct {
	Machine Machine
	Parser  jobs.Parser

	Evaluations *Evaluations
	KeyID       func() string // of the key that signs new identities, shown in allocations

	// Variables opens what a stream has of variables, as events.Config.OfVariables does.
	Variables func(*route.Request) (open func(context.Context) *events.VariableReader, err error)
}

type handlers struct {
	Config
	registering *semaphore.Weighted
}

// Routes returns rows with the same patterns and capabilities as a table, which answer for a whole machine.
func Routes(c Config, table []route.Route) []route.Route {
	h := &handlers{Config: c, registering: semaphore.NewWeighted(1)}
	merged := map[string]route.Handler{
		"GET /v1/allocations":                         h.allocations,
		"GET /v1/node/{node}/allocations":             h.nodeAllocations,
		"GET /v1/jobs":                                h.jobs,
		"GET /v1/node/pool/{pool}/jobs":               h.jobs,
		"PUT /v1/jobs":                                route.Decoded(false, h.register),
		"PUT /v1/job/{job}":                           route.Decoded(false, h.register),
		"DELETE /v1/job/{job}":                        h.deregister,
		"PUT /v1/job/{job}/plan":                      route.Decoded(false, h.plan),
		"GET /v1/job/{job}/scale":                     h.readScale,
		"PUT /v1/job/{job}/scale":                     route.Decoded(false, h.scale),
		"PUT /v1/job/{job}/revert":                    route.Decoded(false, h.revert),
		"GET /v1/job/{job}/allocations":               h.jobAllocations,
		"GET /v1/job/{job}/summary":                   h.jobSummary,
		"GET /v1/job/{job}/evaluations":               h.evaluationList,
		"GET /v1/job/{job}/deployment":                h.latestDeployment,
		"GET /v1/job/{job}/deployments":               h.deployments,
		"GET /v1/deployments":                         h.deployments,
		"GET /v1/deployment/{deployment}":             h.deployment,
		"GET /v1/evaluations":                         h.evaluationList,
		"GET /v1/evaluations/count":                   h.evaluationList,
		"GET /v1/jobs/statuses":                       route.Decoded(true, h.statuses),
		"GET /v1/namespaces":                          h.namespaces,
		"GET /v1/namespace/{namespace}":               h.namespaces,
		"GET /v1/evaluation/{eval}":                   h.evaluation,
		"GET /v1/evaluation/{eval}/allocations":       route.OrNone(h.evaluationAllocations),
		"GET /v1/deployment/allocations/{deployment}": h.deploymentAllocations,
		"GET /v1/metrics":                             h.metrics,
		"GET /v1/event/stream":                        h.events,
	}
	rows := make([]route.Route, len(table))
	for i, row := range table {
		rows[i] = row.Wrapped(func(own route.Handler) route.Handler {
			if handle := merged[row.Methods[0]+" "+row.Pattern]; handle != nil {
				return h.ofMachine(handle)
			}
			switch {
			case row.Answer == route.Absent:
				return h.ofSelf(own)
			case strings.Contains(row.Pattern, "{alloc}"):
				return h.ofAlloc(own)
			case strings.HasSuffix(row.Pattern, "/dispatch"), strings.HasSuffix(row.Pattern, "/dispatch/payload"),
				strings.HasSuffix(row.Pattern, "/periodic/force"):
				return h.startingChild(own)
			case strings.Contains(row.Pattern, "{job}"):
				return h.ofJob(own, strings.HasSuffix(row.Pattern, "/versions") || strings.HasSuffix(row.Pattern, "/submission"))
			case strings.Contains(row.Pattern, "{deployment}"):
				return h.ofMachine(route.Decoded(false, h.changeDeployment))
			}
			return h.ofSelf(own)
		})
	}
	return rows
}

// ofSelf returns a handler of a request that is not about one of the allocations.
func (h *handlers) ofSelf(own route.Handler) route.Handler {
	return func(ctx context.Context, r *route.Request) (route.Answer, error) {
		r.About(h.Machine.Self())
		return own(ctx, r)
	}
}
