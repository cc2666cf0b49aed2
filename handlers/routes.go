package handlers

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"

	"taskapi/auth"
)

// handlerFunc answers one request. Its error is mapped to a status in one place; see apierror.
type handlerFunc func(ctx context.Context, r *request) (answer, error)

// AnswerKind is the form of a route's answers.
type AnswerKind string

// The kinds of answers. All of them are behind the same authentication; those that may last are among the socket's streams, and end with
// the token that opened them and with the server.
const (
	JSON    AnswerKind = "JSON"      // one value, or a document of another type that is as short
	Stream  AnswerKind = "stream"    // lines of JSON as they come
	Raw     AnswerKind = "raw"       // bytes of any number
	Upgrade AnswerKind = "websocket" // the connection is the handler's
	Absent  AnswerKind = "501"       // an error that says why there is no such thing here
)

// Route is one row of the table. Routes are made by read and write alone, which have no form without a capability or a description.
type Route struct {
	Methods []string // the first is the usual one; GET answers HEAD, too
	Pattern string   // with its parameters in braces
	AnyOf   auth.CapabilitySet
	Answer  AnswerKind
	Doc     string // what it answers or does, in one line

	handle         handlerFunc
	maxBody        int64 // of a request; 0 for the usual ceiling
	detail         recordDetail
	evenUnrecorded bool
	asks           bool // changes nothing, whatever its method
	bulky          bool // an answer may take megabytes, so that a socket makes one at a time; see enterMaking
}

// recordDetail returns the record of a request with more details, from the query or the handler; nil adds none.
type recordDetail func(auth.Record, *request, url.Values) auth.Record

// mutates reports whether the route may change something, so that its requests are recorded.
func (r *Route) mutates() bool {
	return r.Answer != Absent && !r.asks && (r.Methods[0] != http.MethodGet || r.Answer == Upgrade)
}

// read returns a route that changes nothing.
func read(pattern string, needs auth.Capability, handle handlerFunc, doc string) Route {
	return newRoute([]string{http.MethodGet}, pattern, needs, handle, doc)
}

// ask returns a route that changes nothing, for a question that is too long for a path.
func ask(pattern string, needs auth.Capability, handle handlerFunc, doc string) Route {
	r := write(pattern, needs, handle, doc)
	r.asks = true
	return r
}

// write returns a route that changes something. Nomad takes PUT and POST for each other.
func write(pattern string, needs auth.Capability, handle handlerFunc, doc string) Route {
	return newRoute([]string{http.MethodPut, http.MethodPost}, pattern, needs, handle, doc)
}

// remove returns a route that changes something by DELETE.
func remove(pattern string, needs auth.Capability, handle handlerFunc, doc string) Route {
	return newRoute([]string{http.MethodDelete}, pattern, needs, handle, doc)
}

func newRoute(methods []string, pattern string, needs auth.Capability, handle handlerFunc, doc string) Route {
	if needs == 0 || handle == nil || doc == "" {
		panic("handlers: the route " + pattern + " lacks a capability, a handler or a description")
	}
	return Route{Methods: methods, Pattern: pattern, AnyOf: auth.CapabilitySet(needs), Answer: JSON, Doc: doc, handle: handle}
}

// bodyLimit returns the ceiling of a request's body.
func (r *Route) bodyLimit() int64 { return cmp.Or(r.maxBody, maxBody) }

// answering returns the route with answers of another kind than JSON.
func (r Route) answering(kind AnswerKind) Route {
	r.Answer = kind
	return r
}

// or returns the route for callers who have another capability instead, too.
func (r Route) or(other auth.Capability) Route {
	r.AnyOf = r.AnyOf.With(other)
	return r
}

// withBody returns the route for requests with a larger body than usual.
func (r Route) withBody(most int64) Route {
	r.maxBody = most
	return r
}

// withBulk returns the route for answers of megabytes that are made for each request.
func (r Route) withBulk() Route {
	r.bulky = true
	return r
}

// alsoGet returns the route for GET, too: the SDK sends it for some actions. HEAD is refused.
func (r Route) alsoGet() Route {
	r.Methods = append(slices.Clone(r.Methods), http.MethodGet)
	return r
}

// recording returns the route with more in the records of its requests.
func (r Route) recording(detail recordDetail) Route {
	r.detail = detail
	return r
}

// withoutRecord returns the route for what the operator may do even when no record of it can be kept.
func (r Route) withoutRecord() Route {
	r.evenUnrecorded = true
	return r
}

// table returns all routes, in the order of the resources, and then those that are absent.
func (a *API) table() []Route {
	return append(a.served(), absentRoutes()...)
}

// served returns the routes that do something.
func (a *API) served() []Route {
	return []Route{
		read("/v1/agent/health", auth.Authenticated, a.agentHealth, "Reports that the agent is healthy; type=client or type=server for one part."),
		read("/v1/agent/self", auth.AgentRead, a.agentSelf, "Returns the agent's version, place and configuration."),
		read("/v1/agent/monitor", auth.AgentMonitor, a.monitor, "Streams what the agent logs.").answering(Stream),
		read("/v1/agent/members", auth.NodeRead, a.agentMembers, "Lists the members of the cluster: this agent."),
		read("/v1/agent/servers", auth.AgentRead, a.agentServers, "Lists the servers: the address of this agent's leader."),
		read("/v1/regions", auth.Authenticated, a.regions, "Lists the regions: that of the agent."),
		read("/v1/status/leader", auth.Authenticated, a.statusLeader, "Returns the address of the leader."),
		read("/v1/status/peers", auth.Authenticated, a.statusPeers, "Lists the addresses of the servers."),
		write("/v1/system/gc", auth.OperatorOnly, a.systemGC, "Forgets the evaluations that are kept."),
		write("/v1/system/reconcile/summaries", auth.OperatorOnly, a.reconcileSummaries, "Does nothing: summaries are always up to date."),

		read("/v1/allocations", auth.ReadJob, a.allocationList, "Lists the caller's allocation."),
		read("/v1/allocation/{alloc}", auth.ReadJob, a.allocationGet, "Returns an allocation."),
		read("/v1/allocation/{alloc}/checks", auth.ReadJob, a.allocationChecks, "Returns the latest results of an allocation's checks."),
		read("/v1/allocation/{alloc}/services", auth.ReadJob, a.allocationServices, "Lists the services that an allocation has registered."),
		write("/v1/allocation/{alloc}/stop", auth.AllocLifecycle, a.stop, "Begins to stop an allocation.").withoutRecord(),

		read("/v1/client/allocation/{alloc}/checks", auth.ReadJob, a.clientChecks, "Returns the latest results of an allocation's checks."),
		read("/v1/client/stats", auth.NodeRead, a.hostStats, "Returns what the machine's memory, CPUs and disk are used for."),
		read("/v1/client/allocation/{alloc}/stats", auth.ReadJob, a.stats, "Returns what the tasks and their processes use of CPU and memory; task=NAME for one."),
		write("/v1/client/allocation/{alloc}/restart", auth.AllocLifecycle, a.restart, "Restarts one task, all tasks, or all that run."),
		read("/v1/client/allocation/{alloc}/exec", auth.AllocExec, a.exec, "Runs a command in a task; task=NAME, command=JSON, tty=BOOL.").answering(Upgrade).
			recording(execDetail),
		write("/v1/client/allocation/{alloc}/signal", auth.AllocLifecycle, a.signal, "Sends a signal to one task or to all."),

		write("/v1/client/allocation/{alloc}/gc", auth.AllocLifecycle, a.allocGC, "Removes an allocation that has ended, with its directory.").alsoGet(),
		write("/v1/client/gc", auth.NodeWrite, a.nodeGC, "Removes the allocation if it has ended.").alsoGet(),
		read("/v1/client/allocation/{alloc}/pause", auth.ReadJob, a.pauseGet, "Returns the state of a task's schedule: no task has one."),
		write("/v1/client/allocation/{alloc}/pause", auth.AllocLifecycle, a.pauseSet, "Refuses to pause a task, which takes a schedule."),
		read("/v1/client/fs/ls/{alloc}", auth.ReadFS, a.listFiles, "Lists a directory of an allocation."),
		read("/v1/client/fs/stat/{alloc}", auth.ReadFS, a.statFile, "Describes a file of an allocation."),
		read("/v1/client/fs/cat/{alloc}", auth.ReadFS, a.catFile, "Returns a file of an allocation.").answering(Raw),
		read("/v1/client/fs/readat/{alloc}", auth.ReadFS, a.readFileAt, "Returns a part of a file of an allocation.").answering(Raw),
		read("/v1/client/fs/stream/{alloc}", auth.ReadFS, a.streamFile, "Follows a file of an allocation.").answering(Stream),
		read("/v1/client/fs/logs/{alloc}", auth.ReadLogs, a.logs, "Returns or follows what a task prints.").or(auth.ReadFS).answering(Stream),

		read("/v1/jobs", auth.ReadJob, a.jobList, "Lists the caller's job."),
		newRoute([]string{http.MethodGet, http.MethodPost}, "/v1/jobs/statuses", auth.ReadJob, a.jobStatuses,
			"Returns the caller's job with its allocation and its latest deployment."),
		write("/v1/jobs", auth.OperatorOnly, a.register, "Gives the allocation another version of its job.").withBody(maxJob),
		ask("/v1/jobs/parse", auth.OperatorOnly, a.parse, "Returns the job that a text describes.").withBody(maxParse),
		ask("/v1/validate/job", auth.OperatorOnly, a.validate, "Returns what keeps a job from running here.").withBody(maxJob),
		read("/v1/job/{job}", auth.ReadJob, a.jobRead(readJob), "Returns a job."),
		write("/v1/job/{job}", auth.OperatorOnly, a.register, "Gives the allocation another version of its job.").withBody(maxJob),
		remove("/v1/job/{job}", auth.AllocLifecycle, a.deregister, "Begins to stop the job's allocation.").withoutRecord(),
		read("/v1/job/{job}/action", auth.AllocExec, a.action, "Runs an action of the job; action=NAME, task=NAME, tty=BOOL.").answering(Upgrade).
			recording(actionDetail),
		read("/v1/job/{job}/actions", auth.ReadJob, a.jobRead(readActions), "Lists the actions of the job's tasks."),
		read("/v1/job/{job}/deployment", auth.ReadJob, a.latestDeployment, "Returns the deployment of the job's latest version."),
		write("/v1/job/{job}/evaluate", auth.OperatorOnly, a.evaluate, "Makes an evaluation, which has nothing to do."),
		read("/v1/job/{job}/scale", auth.ReadJob, a.jobRead(readScale), "Returns how many allocations the job's groups have."),
		read("/v1/job/{job}/services", auth.ReadJob, a.jobServices, "Lists the services that the job's allocations have registered."),
		read("/v1/job/{job}/submission", auth.OperatorOnly, a.jobSubmission, "Returns the text that a version of the job was made from.").
			or(auth.AllocExec),
		read("/v1/job/{job}/summary", auth.ReadJob, a.jobRead(readSummary), "Counts the job's allocations by status."),
		read("/v1/job/{job}/versions", auth.ReadJob, a.jobVersions, "Lists the versions of a job, with what each has changed.").withBulk(),
		write("/v1/job/{job}/revert", auth.OperatorOnly, a.revert, "Gives the allocation an earlier version of its job."),
		write("/v1/job/{job}/plan", auth.OperatorOnly, a.plan, "Returns what another version of the job would change.").withBody(maxJob),

		read("/v1/job/{job}/allocations", auth.ReadJob, a.jobAllocations, "Lists the allocation of a job."),
		read("/v1/job/{job}/deployments", auth.ReadJob, a.deploymentList, "Lists the deployments of a job's latest versions."),
		read("/v1/job/{job}/evaluations", auth.ReadJob, a.evaluationList, "Lists the evaluations of a job."),

		read("/v1/deployments", auth.ReadJob, a.deploymentList, "Lists the deployments of the caller's job."),
		read("/v1/deployment/{deployment}", auth.ReadJob, a.deploymentGet, "Returns a deployment."),
		read("/v1/deployment/allocations/{deployment}", auth.ReadJob, a.deploymentAllocations, "Lists the allocation of a deployment."),
		write("/v1/deployment/fail/{deployment}", auth.OperatorOnly, a.deploymentFail, "Ends a deployment as failed; the allocation runs on."),
		write("/v1/deployment/promote/{deployment}", auth.OperatorOnly, a.deploymentPromote, "Is 400: there are no canaries."),
		write("/v1/deployment/allocation-health/{deployment}", auth.OperatorOnly, a.deploymentHealth, "Says whether the allocation is healthy."),

		ask("/v1/search", auth.Authenticated, a.search, "Finds IDs by their beginning, of what the caller may see."),
		ask("/v1/search/fuzzy", auth.Authenticated, a.fuzzySearch, "Finds names by a part of them, of what the caller may see."),

		read("/v1/namespaces", auth.Authenticated, a.namespaceList, "Lists the namespace of the caller's job, if the caller may do something in it."),
		read("/v1/namespace/{namespace}", auth.ReadJob, a.namespaceGet, "Returns the namespace of the caller's job."),

		read("/v1/vars", auth.VariablesRead, a.variableList, "Lists the variables that the caller may list, without their items.").withBulk(),
		read("/v1/var/*", auth.VariablesRead, a.variableGet, "Returns a variable.").recording(variableDetail),
		write("/v1/var/*", auth.VariablesWrite, a.variablePut, "Writes a variable; cas=INDEX. lock-acquire, lock-renew, lock-release: its lock.").
			withBody(maxVariable).recording(variableDetail),
		remove("/v1/var/*", auth.VariablesWrite, a.variableDelete, "Deletes a variable; cas=INDEX.").recording(variableDetail),

		read("/v1/nodes", auth.NodeRead, a.nodeList, "Lists this machine."),
		read("/v1/node/{node}", auth.NodeRead, a.nodeGet, "Returns this machine: attributes, drivers, resources."),
		read("/v1/node/{node}/allocations", auth.NodeRead, a.nodeAllocations, "Lists the caller's allocation."),
		read("/v1/client/metadata", auth.NodeRead, a.metadata, "Returns this machine's metadata."),
		write("/v1/client/metadata", auth.NodeWrite, a.setMetadata, "Sets values of this machine's metadata, or removes them.").withBody(maxMetadata),

		read("/v1/evaluations", auth.ReadJob, a.evaluationList, "Lists the evaluations of the caller's job."),
		read("/v1/evaluations/count", auth.ReadJob, a.evaluationCount, "Counts them."),
		read("/v1/evaluation/{eval}", auth.ReadJob, a.evaluationGet, "Returns the evaluation of a stop or a registration."),
		read("/v1/evaluation/{eval}/allocations", auth.ReadJob, a.evaluationAllocations, "Lists the allocation of an evaluation."),

		read("/v1/services", auth.Authenticated, a.serviceList, "Lists the services of the caller's namespace, with their tags."),
		read("/v1/service/{name}", auth.Authenticated, a.serviceGet, "Lists who has registered a service; choose=N|KEY for N of them."),
		remove("/v1/service/{name}/{id}", auth.OperatorOnly, a.serviceDelete, "Removes a registration, whosever it is."),

		read("/v1/acl/policies", auth.ReadJob, a.emptyList, "Lists none: what a token may do is in a policy file of taskapi's."),
		read("/v1/acl/auth-methods", auth.ReadJob, a.emptyList, "Lists none."),
		read("/v1/scaling/policies", auth.ReadJob, a.emptyList, "Lists none: nothing is scaled."),
		read("/v1/volumes", auth.ReadJob, a.emptyList, "Lists none."),
		read("/v1/plugins", auth.ReadJob, a.emptyList, "Lists none."),
		read("/v1/node/pools", auth.ReadJob, a.nodePools, "Lists the pool of this machine, default."),

		read("/v1/event/stream", auth.ReadJob, a.eventStream, "Streams the events of the caller's allocation.").or(auth.NodeRead).
			answering(Stream),

		read("/v1/acl/token/self", auth.OperatorOnly, a.tokenSelf, "Describes the operator's token."),
		read("/v1/acl/whoami", auth.Authenticated, a.whoami, "Returns the claims of the caller's token."),
		read("/v1/metrics", auth.OperatorOnly, a.metrics, "Returns measurements, as JSON or with format=prometheus as text."),

		read("/.well-known/jwks.json", auth.Authenticated, a.jwks, "Returns the public keys that verify identities."),
		read("/.well-known/openid-configuration", auth.Authenticated, a.openIDConfiguration, "Returns where to find those keys."),
	}
}
