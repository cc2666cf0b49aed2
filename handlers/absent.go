package handlers

import (
	"context"
	"net/http"

	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
)

// absence is a group of Nomad's routes that have no meaning for one allocation without a cluster. They are 501 with
// words, since clients read 404 as "there is none".
type absence struct {
	words    string   // why, and what to use instead
	methods  []string // those that are absent; nil for every method that Nomad's API uses
	patterns []string
}

var (
	changes = []string{http.MethodPut, http.MethodPost, http.MethodDelete}
	puts    = []string{http.MethodPut, http.MethodPost}
	deletes = []string{http.MethodDelete}
)

// Why there is nothing, for several rows.
const (
	noACL = "there are no ACL policies, roles or stored tokens: " +
		"a workload identity or the operator's token says who calls, and a policy file " +
		"(taskapi run --policy) what it may do"
	noCluster    = "this machine is no member of a cluster: no server to join or leave, no scheduler, no Raft"
	noPools      = "the node pools are all and default, both with the one machine"
	noVolumes    = "volumes are directories that the machine's settings declare, and there are no plugins"
	noEnterprise = "this is a feature of Nomad Enterprise"
)

// absences are all of them. A route of Nomad's that is neither here nor in the table of routes does not exist there
// either.
var absences = []absence{
	{noACL, nil, []string{
		"/v1/acl/bootstrap", "/v1/acl/token", "/v1/acl/token/onetime", "/v1/acl/token/onetime/exchange", "/v1/acl/role",
		"/v1/acl/auth-method", "/v1/acl/binding-rule", "/v1/acl/oidc/auth-url", "/v1/acl/oidc/complete-auth",
		"/v1/acl/login", "/v1/acl/identity/client-introduction-token",
	}},
	{noACL, changes, []string{
		"/v1/acl/policy/{name}", "/v1/acl/token/{name}", "/v1/acl/role/{name}", "/v1/acl/auth-method/{name}",
		"/v1/acl/binding-rule/{name}",
	}},
	{noCluster, nil, []string{
		"/v1/agent/join", "/v1/agent/force-leave", "/v1/operator/raft/*", "/v1/operator/autopilot/configuration",
		"/v1/operator/autopilot/health", "/v1/operator/snapshot",
	}},
	{noCluster, puts, []string{
		"/v1/agent/schedulers/config", "/v1/operator/scheduler/configuration", "/v1/operator/utilization",
	}},
	{"this machine is no member of a cluster: it has no servers to choose", puts, []string{"/v1/agent/servers"}},
	{"the keys that sign identities are managed on the machine, with taskapi keyring", nil, []string{
		"/v1/agent/keyring/{name}", "/v1/operator/keyring/{name}", "/v1/operator/keyring/key/{name}",
	}},
	{"the agent is looked at on the machine: taskapi status, its log, and GET /v1/metrics", nil, []string{
		"/v1/agent/host", "/v1/agent/pprof/{name}", "/v1/agent/monitor/export",
	}},
	{"taskapi reads its settings when it starts, and its files when they change", nil, []string{"/v1/agent/reload"}},
	{"there are no node identities: who may use a socket is decided by the machine's users", nil, []string{
		"/v1/client/identity", "/v1/client/identity/renew",
	}},
	{
		"this machine runs what it is given: it can't be drained, excluded or purged; stop the allocation instead", nil,
		[]string{
			"/v1/node/{node}/drain", "/v1/node/{node}/eligibility", "/v1/node/{node}/purge", "/v1/node/{node}/evaluate",
		},
	},
	{noPools, puts, []string{"/v1/node/pools"}},
	{noPools, changes, []string{"/v1/node/pool/{pool}"}},
	{"versions of a job are neither marked stable nor tagged here; register the version that is to run", nil, []string{
		"/v1/job/{job}/stable", "/v1/job/{job}/versions/{name}/tag",
	}},
	{
		"a deployment here has no steps to pause between, and waits for no other region",
		nil, []string{"/v1/deployment/pause/{name}", "/v1/deployment/unblock/{name}"},
	},
	{"evaluations go by themselves: the latest are kept", deletes, []string{"/v1/evaluations"}},
	{"a namespace comes with its jobs: name it in a job file", puts, []string{"/v1/namespace"}},
	{"a namespace comes with its jobs: name it in a job file", changes,
		[]string{"/v1/namespace/{namespace}"}},
	{noVolumes, puts, []string{"/v1/volumes"}},
	{noVolumes, nil, []string{"/v1/volumes/external", "/v1/volumes/snapshot", "/v1/volumes/claim/{name}"}},
	{noVolumes, changes, []string{"/v1/volume/csi/*", "/v1/volume/host/*"}},
	{noEnterprise, puts, []string{"/v1/operator/license"}},
	{noEnterprise, nil, []string{
		"/v1/quotas", "/v1/quota-usages", "/v1/quota", "/v1/quota/{name}", "/v1/quota/usage/{name}",
		"/v1/recommendations", "/v1/recommendations/apply", "/v1/recommendation", "/v1/recommendation/{name}",
		"/v1/sentinel/policies", "/v1/sentinel/policy/{name}",
	}},
	{"the page in the browser is not on this socket: taskapi ui serves it", nil, []string{"/ui", "/ui/*"}},
}

// absentRoutes returns the rows of the routes that answer 501. Any valid token gets their words, which say nothing
// about the allocation. Lists are empty rather than absent, where Nomad has a list and there can be nothing in it here,
// and one of them is 404, as in Nomad.
func absentRoutes() []route.Route {
	var rows []route.Route
	for _, none := range [...]struct{ path, doc string }{
		{"/v1/acl/policies", "Lists none: a policy file of taskapi says what a token may do."},
		{"/v1/acl/auth-methods", "Lists none."},
		{"/v1/acl/roles", "Lists none."},
		{"/v1/acl/binding-rules", "Lists none."},
		{"/v1/scaling/policies", "Lists none: nothing is scaled."},
		{"/v1/volumes/claims", "Lists none."},
		{"/v1/plugins", "Lists none."},
	} {
		rows = append(rows, route.Read(none.path, auth.ReadJob, route.Constant([]any{}), none.doc))
	}
	rows = append(rows,
		route.Read("/v1/acl/policy/self", auth.ReadJob, route.Constant(nil), "Lists none."),
		route.Read("/v1/volumes", auth.ReadJob, route.Unchanging(listVolumes), "Lists none, of type=csi and type=host."))
	for _, none := range [...]struct {
		path string
		kind apierror.Kind
	}{
		{"/v1/acl/policy/{name}", apierror.NoPolicy},
		{"/v1/acl/role/{name}", apierror.NoRole},
		{"/v1/acl/role/name/{name}", apierror.NoRole},
		{"/v1/acl/auth-method/{name}", apierror.NoAuthMethod},
		{"/v1/acl/binding-rule/{name}", apierror.NoBindingRule},
		{"/v1/scaling/policy/{name}", apierror.NoScalingPolicy},
		{"/v1/volume/csi/{name}", apierror.NoVolume},
		{"/v1/volume/host/{name}", apierror.NoVolume},
		{"/v1/plugin/csi/{name}", apierror.NoPlugin},
	} {
		rows = append(rows, route.Read(none.path, auth.ReadJob, route.Missing(none.kind), "Answers 404: there is none."))
	}
	for _, group := range absences {
		methods := group.methods
		if methods == nil {
			methods = route.AnyMethod
		}
		handle := func(context.Context, *route.Request) (route.Answer, error) {
			return route.Answer{}, apierror.New(apierror.NotImplemented, group.words)
		}
		for _, pattern := range group.patterns {
			rows = append(rows, route.New(methods, pattern, auth.Authenticated, handle, group.words).Answering(route.Absent))
		}
	}
	return rows
}

// listVolumes answers GET /v1/volumes?type=. Errors: NoRoute for an unknown type.
func listVolumes(r *route.Request) (route.Answer, error) {
	switch r.Query().Get("type") {
	case "", "csi", "host":
		return route.Respond([]any{})
	}
	return route.Answer{}, apierror.New(apierror.NoRoute)
}
