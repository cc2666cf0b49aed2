// Package jobs has the routes of the caller's job: the job itself, its versions, their registration and plans, its
// deployments and its evaluations. It also parses and validates jobs for the operator.
package jobs

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/semaphore"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/evaluations"
	"taskapi/handlers/internal/list"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
	"taskapi/internal/ptr"
)

// Config has what the routes of jobs need. Registrar, History and Parser may be nil; see Routes.
type Config struct {
	Registrar   Registrar
	History     History
	Parser      Parser
	Evaluations *evaluations.Store
}

type handlers struct {
	Config
	registering *semaphore.Weighted // to register a job: until then the index that a client enforces does not change
	parsing     *semaphore.Weighted // to parse or validate a job, which may take many times its size in memory
}

// Routes returns the rows of jobs, deployments and evaluations.
func Routes(c Config) []route.Route {
	h := &handlers{Config: c, registering: semaphore.NewWeighted(1), parsing: semaphore.NewWeighted(1)}
	const job, deployment, evaluation = "/v1/job/{job}", "/v1/deployment", "/v1/evaluation/{eval}"
	rows := []route.Route{
		route.Read("/v1/jobs", auth.ReadJob, list.OfJob(jobListing, theJob), "Lists the caller's job.").Flags("meta"),
		route.Read("/v1/node/pool/{pool}/jobs", auth.ReadJob, list.OfJob(jobListing, theJob),
			"Lists the caller's job if it is of the pool.").Flags("meta"),
		route.Read("/v1/jobs/statuses", auth.ReadJob, route.Decoded(true, statuses),
			"Returns the caller's job with its allocation and its latest deployment.").AlsoBy(http.MethodPost),
		route.Read(job, auth.ReadJob, route.ReadingJob(readJob), "Returns a job."),
		route.Remove(job, auth.AllocLifecycle, h.deregister, "Begins to stop the job's allocation.").
			Flags("no_shutdown_delay", "purge").WithoutRecord(),
		route.Read(job+"/actions", auth.ReadJob, route.ReadingJob(readActions), "Lists the actions of the job's tasks."),
		route.Read(job+"/allocations", auth.ReadJob, list.OwnAllocation(ofJob), "Lists the allocation of a job.").
			Flags(list.AllocationFlags...),
		route.Read(job+"/scale", auth.ReadJob, route.ReadingJob(readScale),
			"Returns how many allocations the job's groups have."),
		route.Read(job+"/summary", auth.ReadJob, route.ReadingJob(readSummary), "Counts the job's allocations by status."),
		route.Read(job+"/submission", auth.OperatorOnly, h.submission,
			"Returns the submitted text of a version of the job.").Or(auth.AllocExec),
		route.Read(job+"/versions", auth.ReadJob, h.versions,
			"Lists the versions of a job, with the changes of each.").Flags("diffs"),

		route.Read(job+"/deployment", auth.ReadJob, route.Reading(latestDeployment),
			"Returns the deployment of the job's latest version."),
		route.Read(job+"/deployments", auth.ReadJob, list.OfJob(deploymentListing, deploymentList),
			"Lists the deployments of a job's latest versions."),
		route.Read("/v1/deployments", auth.ReadJob, list.OfJob(deploymentListing, deploymentList),
			"Lists the deployments of the caller's job."),
		route.Read(deployment+"/{deployment}", auth.ReadJob, deploymentGet, "Returns a deployment."),
		route.Read(deployment+"/allocations/{deployment}", auth.ReadJob, route.OrNone(list.OwnAllocation(ofDeployment)),
			"Lists the allocation of a deployment.").Flags(list.AllocationFlags...),
		route.Write(deployment+"/fail/{deployment}", auth.OperatorOnly, h.changeDeployment(deploymentFail),
			"Ends a deployment as failed; the allocation runs on."),
		route.Write(deployment+"/promote/{deployment}", auth.OperatorOnly, h.changeDeployment(deploymentPromote),
			"Answers 400: there are no canaries."),
		route.Write(deployment+"/allocation-health/{deployment}", auth.OperatorOnly, h.changeDeployment(deploymentHealth),
			"Sets whether the allocation is healthy."),

		route.Write(job+"/evaluate", auth.OperatorOnly, route.Decoded(true, h.evaluate),
			"Makes an evaluation, which changes nothing."),
		route.Read(job+"/evaluations", auth.ReadJob, list.OfJob(EvaluationListing, h.evaluationList),
			"Lists the evaluations of a job."),
		route.Read("/v1/evaluations", auth.ReadJob, list.OfJob(EvaluationListing, h.evaluationList),
			"Lists the evaluations of the caller's job."),
		route.Read("/v1/evaluations/count", auth.ReadJob, h.evaluationCount, "Counts the evaluations of the caller's job."),
		route.Read(evaluation, auth.ReadJob, route.Reading(h.evaluationGet),
			"Returns the evaluation of a stop or a registration."),
		route.Read(evaluation+"/allocations", auth.ReadJob, route.OrNone(list.OwnAllocation(h.ofEvaluation)),
			"Lists the allocation of an evaluation.").Flags(list.AllocationFlags...),
	}
	rows = append(rows,
		route.Write(job+"/dispatch", auth.OperatorOnly, route.Decoded(true, h.dispatch),
			"Starts a child of a parameterized job.").WithBody(maxDispatch),
		route.Write(job+"/dispatch/payload", auth.OperatorOnly, h.dispatchPayload,
			"Starts a child of a parameterized job with the body as its payload.").WithBody(maxDispatch),
		route.Write(job+"/periodic/force", auth.OperatorOnly, h.force, "Starts a child of a periodic job now."),
	)
	rows = append(rows, route.Write(job+"/scale", auth.OperatorOnly, notScaled,
		"Sets the count of a group, on the socket of `taskapi agent`; that of an allocation answers 501."))
	for _, changes := range []route.Route{
		route.Write("/v1/jobs", auth.OperatorOnly, route.Decoded(false, h.register),
			"Gives the allocation another version of its job.").Flags("force").WithBody(maxJob),
		route.Write(job, auth.OperatorOnly, route.Decoded(false, h.register),
			"Gives the allocation another version of its job.").Flags("force").WithBody(maxJob),
		route.Write(job+"/revert", auth.OperatorOnly, route.Decoded(false, h.revert),
			"Gives the allocation an earlier version of its job.").Flags("force"),
		route.Write(job+"/plan", auth.OperatorOnly, route.Decoded(false, h.plan),
			"Returns what another version of the job would change.").WithBody(maxJob),
	} {
		rows = append(rows, changes.Given(c.Registrar != nil, apierror.NoRoute))
	}
	return append(rows,
		route.Ask("/v1/jobs/parse", auth.OperatorOnly, route.Decoded(false, h.parse),
			"Returns the job that a text describes.").WithBody(maxParse).Given(c.Parser != nil, apierror.NoRoute),
		route.Ask("/v1/validate/job", auth.OperatorOnly, route.Decoded(false, h.validate),
			"Returns what keeps a job from running here.").WithBody(maxJob).Given(c.Parser != nil, apierror.NoRoute),
	)
}

// jobListing says how jobs are listed, each by its allocation. meta=true adds its meta.
func jobListing(r *route.Request) list.Listing[*api.Allocation] {
	meta := r.Flag("meta", false)
	return list.Listing[*api.Allocation]{
		Order:     list.ByNamespaceID,
		ID:        func(alloc *api.Allocation) string { return alloc.JobID },
		Namespace: func(alloc *api.Allocation) string { return alloc.Namespace },
		Stub:      func(alloc *api.Allocation) any { return wire.JobStubOf(alloc, meta) },
		Matched:   func(alloc *api.Allocation) any { return wire.JobNow(alloc) },
	}
}

// theJob is GET /v1/jobs and GET /v1/node/pool/:pool/jobs: the caller's own job.
func theJob(r *route.Request, current *api.Allocation) ([]*api.Allocation, error) {
	if !InPool(r, current.Job) {
		return nil, nil
	}
	return []*api.Allocation{current}, nil
}

// InPool reports whether a job is of the node pool that the path names, if it names one.
func InPool(r *route.Request, job *api.Job) bool {
	return r.Param("pool") == "" || r.Param("pool") == ptr.Deref(job.NodePool)
}

// ofJob reports whether the path names the job of the caller's allocation.
func ofJob(r *route.Request, current *api.Allocation) (bool, error) {
	return r.Param("job") == current.JobID, nil
}

func readJob(_ *route.Request, current *api.Allocation) (any, error) {
	return wire.JobOf(wire.JobNow(current)), nil
}

func readSummary(_ *route.Request, current *api.Allocation) (any, error) {
	return wire.JobSummaryOf(current), nil
}

// jobAction is an action of a job as Nomad lists it.
type jobAction struct {
	api.Action
	TaskName      string
	TaskGroupName string
}

func readActions(_ *route.Request, alloc *api.Allocation) (any, error) {
	actions := []jobAction{}
	for _, task := range wire.OwnGroup(alloc).Tasks {
		for _, action := range task.Actions {
			actions = append(actions, jobAction{*action, task.Name, alloc.TaskGroup})
		}
	}
	return actions, nil
}

// readScale is GET /v1/job/:job/scale: the group that runs here has one allocation, until it stops, and the job's
// others have none.
func readScale(_ *route.Request, current *api.Allocation) (any, error) {
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
	return status, nil
}

// notScaled answers PUT /v1/job/:job/scale.
func notScaled(context.Context, *route.Request) (route.Answer, error) {
	return route.Answer{}, apierror.New(apierror.NotImplemented,
		"this is the socket of one allocation: the socket of taskapi agent scales a job, and so does taskapi update --all")
}

// statuses answers GET and POST /v1/jobs/statuses: the caller's job with its allocation and its latest deployment. A
// body names the jobs that are wanted.
func statuses(ctx context.Context, r *route.Request, want *api.JobStatusesRequest) (route.Answer, error) {
	if r.Method == http.MethodPost && len(want.Jobs) == 0 {
		return route.Answer{}, route.Invalid("no jobs in request")
	}
	of := jobListing(r)
	of.Stub = func(alloc *api.Allocation) any { return StatusOf(alloc, Deployments(r)) }
	l, err := list.New(r, of)
	if err != nil {
		return route.Answer{}, err
	}
	current, err := r.WithJob(ctx)
	if err != nil {
		return route.Answer{}, err
	}
	if !Named(want, current) {
		return l.Answer(nil, current.ModifyIndex)
	}
	return l.Answer([]*api.Allocation{current}, current.ModifyIndex)
}

// Named reports whether a request for the statuses of jobs names that of an allocation. A request that names none is
// about all.
func Named(want *api.JobStatusesRequest, of *api.Allocation) bool {
	return len(want.Jobs) == 0 || slices.ContainsFunc(want.Jobs, func(id api.NamespacedID) bool {
		return id.ID == of.JobID && cmp.Or(id.Namespace, api.DefaultNamespace) == of.Namespace
	})
}

// Status is one job as GET /v1/jobs/statuses has it, which the SDK has no type for.
type Status struct {
	ID, Namespace    string
	Name, Type       string
	NodePool         string
	Datacenters      []string
	Priority         int
	Version          uint64
	SubmitTime       int64
	ModifyIndex      uint64
	Allocs           []wireAllocStatus
	GroupCountSum    int
	ChildStatuses    []string
	ParentID         string
	LatestDeployment *wireLatestDeployment
	Stop, IsPack     bool
	Status           string
}

type wireAllocStatus struct {
	ID, Group, ClientStatus, NodeID string
	DeploymentStatus                struct {
		Canary  bool
		Healthy *bool
	}
	JobVersion     uint64
	FollowupEvalID string
	HasPausedTask  bool
}

type wireLatestDeployment struct {
	ID                                string
	IsActive                          bool
	JobVersion                        uint64
	Status, StatusDescription         string
	AllAutoPromote, RequiresPromotion bool
}

// StatusOf returns the status of a job with one allocation.
func StatusOf(alloc *api.Allocation, deployments []*api.Deployment) *Status {
	job := wire.JobNow(alloc)
	shown := wireAllocStatus{
		ID: alloc.ID, Group: alloc.TaskGroup, ClientStatus: alloc.ClientStatus, NodeID: alloc.NodeID,
		JobVersion: ptr.Deref(job.Version), FollowupEvalID: alloc.FollowupEvalID,
	}
	for _, state := range alloc.TaskStates {
		shown.HasPausedTask = shown.HasPausedTask || interfaces.ShownSchedule(state).Pauses()
	}
	if health := alloc.DeploymentStatus; health != nil {
		shown.DeploymentStatus.Canary, shown.DeploymentStatus.Healthy = health.Canary, health.Healthy
	}
	w := &Status{
		ID: alloc.JobID, Namespace: alloc.Namespace, Name: ptr.Deref(job.Name), Type: ptr.Deref(job.Type),
		NodePool: wire.NodePool, Datacenters: job.Datacenters,
		Priority: ptr.Deref(job.Priority), Version: ptr.Deref(job.Version),
		SubmitTime: ptr.Deref(job.SubmitTime), ModifyIndex: ptr.Deref(job.ModifyIndex),
		Allocs: []wireAllocStatus{shown}, GroupCountSum: 1,
		ParentID: ptr.Deref(job.ParentID), Stop: ptr.Deref(job.Stop), Status: ptr.Deref(job.Status),
	}
	if len(deployments) > 0 {
		d := deployments[0]
		w.LatestDeployment = &wireLatestDeployment{
			ID: d.ID, IsActive: d.Status == api.DeploymentStatusRunning, JobVersion: d.JobVersion,
			Status: d.Status, StatusDescription: d.StatusDescription,
		}
	}
	return w
}
