// Package jobs has the routes of the caller's job: the job itself, its versions, their registration and plans, its
// deployments and its evaluations. It also parses and validates jobs for the operator.
package jobs

import (
	"context"
	"net/http"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers/internal/evaluations"
	"taskapi/handlers/internal/list"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
	"taskapi/internal/ptr"
)

// Config has what the routes of jobs need. Jobs, History and Parser may be nil; see the routes that use them.
type Config struct {
	Registrar   Registrar
	History     History
	Parser      Parser
	Evaluations *evaluations.Store
}

// handlers answers the routes of jobs.
type handlers struct {
	Config
	registering route.Turn // to register a job: the index that a client enforces does not change before its job is registered
	parsing     route.Turn // to parse or validate a job, which may take many times its size in memory
}

// Routes returns the rows of jobs, deployments and evaluations.
func Routes(c Config) []route.Route {
	h := &handlers{Config: c, registering: route.NewTurn(), parsing: route.NewTurn()}
	const job, deployment, evaluation = "/v1/job/{job}", "/v1/deployment", "/v1/evaluation/{eval}"
	return []route.Route{
		route.Read("/v1/jobs", auth.ReadJob, h.list, "Lists the caller's job."),
		route.Read("/v1/jobs/statuses", auth.ReadJob, h.statuses,
			"Returns the caller's job with its allocation and its latest deployment.").AlsoBy(http.MethodPost),
		route.Write("/v1/jobs", auth.OperatorOnly, h.register, "Gives the allocation another version of its job.").WithBody(maxJob),
		route.Ask("/v1/jobs/parse", auth.OperatorOnly, h.parse, "Returns the job that a text describes.").WithBody(maxParse),
		route.Ask("/v1/validate/job", auth.OperatorOnly, h.validate, "Returns what keeps a job from running here.").WithBody(maxJob),
		route.Read(job, auth.ReadJob, jobRead(readJob), "Returns a job."),
		route.Write(job, auth.OperatorOnly, h.register, "Gives the allocation another version of its job.").WithBody(maxJob),
		route.Remove(job, auth.AllocLifecycle, h.deregister, "Begins to stop the job's allocation.").WithoutRecord(),
		route.Read(job+"/actions", auth.ReadJob, jobRead(readActions), "Lists the actions of the job's tasks."),
		route.Read(job+"/allocations", auth.ReadJob, list.OwnAllocation(ofJob), "Lists the allocation of a job."),
		route.Read(job+"/scale", auth.ReadJob, jobRead(readScale), "Returns how many allocations the job's groups have."),
		route.Read(job+"/summary", auth.ReadJob, jobRead(readSummary), "Counts the job's allocations by status."),
		route.Read(job+"/submission", auth.OperatorOnly, h.submission,
			"Returns the text that a version of the job was made from.").Or(auth.AllocExec),
		route.Read(job+"/versions", auth.ReadJob, h.versions,
			"Lists the versions of a job, with what each has changed.").WithBulk(),
		route.Write(job+"/revert", auth.OperatorOnly, h.revert, "Gives the allocation an earlier version of its job."),
		route.Write(job+"/plan", auth.OperatorOnly, h.plan, "Returns what another version of the job would change.").WithBody(maxJob),

		route.Read(job+"/deployment", auth.ReadJob, latestDeployment, "Returns the deployment of the job's latest version."),
		route.Read(job+"/deployments", auth.ReadJob, deploymentList, "Lists the deployments of a job's latest versions."),
		route.Read("/v1/deployments", auth.ReadJob, deploymentList, "Lists the deployments of the caller's job."),
		route.Read(deployment+"/{deployment}", auth.ReadJob, deploymentGet, "Returns a deployment."),
		route.Read(deployment+"/allocations/{deployment}", auth.ReadJob, list.OwnAllocation(ofDeployment), "Lists the allocation of a deployment."),
		route.Write(deployment+"/fail/{deployment}", auth.OperatorOnly, h.deploymentFail,
			"Ends a deployment as failed; the allocation runs on."),
		route.Write(deployment+"/promote/{deployment}", auth.OperatorOnly, h.deploymentPromote, "Is 400: there are no canaries."),
		route.Write(deployment+"/allocation-health/{deployment}", auth.OperatorOnly, h.deploymentHealth,
			"Says whether the allocation is healthy."),

		route.Write(job+"/evaluate", auth.OperatorOnly, h.evaluate, "Makes an evaluation, which has nothing to do."),
		route.Read(job+"/evaluations", auth.ReadJob, h.evaluationList, "Lists the evaluations of a job."),
		route.Read("/v1/evaluations", auth.ReadJob, h.evaluationList, "Lists the evaluations of the caller's job."),
		route.Read("/v1/evaluations/count", auth.ReadJob, h.evaluationCount, "Counts them."),
		route.Read(evaluation, auth.ReadJob, h.evaluationGet, "Returns the evaluation of a stop or a registration."),
		route.Read(evaluation+"/allocations", auth.ReadJob, list.OwnAllocation(h.ofEvaluation), "Lists the allocation of an evaluation."),
	}
}

// jobListing says how jobs are listed. Each stands for its allocation.
func jobListing(stub func(*api.Allocation) any) list.Listing[*api.Allocation] {
	return list.Listing[*api.Allocation]{
		Order:     list.ByNamespaceID,
		ID:        func(alloc *api.Allocation) string { return alloc.JobID },
		Namespace: func(alloc *api.Allocation) string { return alloc.Namespace },
		Stub:      stub,
		Matched:   func(alloc *api.Allocation) any { return wire.JobNow(alloc) },
	}
}

// list answers GET /v1/jobs: the caller's own job. meta=true adds its meta.
func (h *handlers) list(ctx context.Context, r *route.Request) (route.Answer, error) {
	meta, err := r.Flag("meta", false)
	if err != nil {
		return route.Answer{}, err
	}
	l, err := list.New(r, jobListing(func(alloc *api.Allocation) any { return wire.JobStubOf(alloc, meta) }))
	if err != nil {
		return route.Answer{}, err
	}
	current, err := r.WithJob(ctx)
	if err != nil {
		return route.Answer{}, err
	}
	return l.Answer([]*api.Allocation{current}, current.ModifyIndex)
}

// ofJob reports whether the path names the job of the caller's allocation.
func ofJob(r *route.Request, current *api.Allocation) (bool, error) {
	return r.Param("job") == current.JobID, nil
}

// jobRead returns a handler of what is read of the caller's job.
func jobRead(read func(*api.Allocation) any) route.Handler {
	return func(ctx context.Context, r *route.Request) (route.Answer, error) {
		current, err := r.OwnJob(ctx)
		if err != nil {
			return route.Answer{}, err
		}
		return route.Indexed(read(current), current.ModifyIndex)
	}
}

// readJob is GET /v1/job/:job: the job in its present version.
func readJob(current *api.Allocation) any { return wire.JobOf(wire.JobNow(current)) }

// readSummary is GET /v1/job/:job/summary.
func readSummary(current *api.Allocation) any { return wire.JobSummaryOf(current) }

// jobAction is an action of a job as Nomad lists it.
type jobAction struct {
	api.Action
	TaskName      string
	TaskGroupName string
}

// readActions is GET /v1/job/:job/actions.
func readActions(alloc *api.Allocation) any {
	list := []jobAction{}
	for _, task := range wire.OwnGroup(alloc).Tasks {
		for _, action := range task.Actions {
			list = append(list, jobAction{*action, task.Name, alloc.TaskGroup})
		}
	}
	return list
}

// readScale is GET /v1/job/:job/scale: the group that runs here has one allocation, until it stops, and the job's
// others have none.
func readScale(current *api.Allocation) any {
	job := wire.JobNow(current)
	status := api.JobScaleStatusResponse{
		JobID: current.JobID, Namespace: current.Namespace,
		JobCreateIndex: ptr.Deref(job.CreateIndex), JobModifyIndex: ptr.Deref(job.ModifyIndex),
		JobStopped: ptr.Deref(job.Stop), TaskGroups: map[string]api.TaskGroupScaleStatus{},
	}
	for _, group := range job.TaskGroups {
		status.TaskGroups[ptr.Deref(group.Name)] = api.TaskGroupScaleStatus{}
	}
	var group api.TaskGroupScaleStatus
	if !status.JobStopped {
		group.Desired = 1
	}
	if !current.ClientTerminalStatus() {
		group.Placed = 1
	}
	if current.ClientStatus == api.AllocClientStatusRunning {
		group.Running = 1
	}
	if health := current.DeploymentStatus; health != nil && health.Healthy != nil {
		if *health.Healthy {
			group.Healthy = 1
		} else {
			group.Unhealthy = 1
		}
	}
	status.TaskGroups[current.TaskGroup] = group
	return status
}
