package handlers_test

import (
	"net/http"
	"slices"
	"testing"

	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/handlers/internal/route"
	"taskapi/identity"
)

// opens is what each capability opens by itself, written apart from the table of routes: a route whose capability is
// changed, and a new one, has to be here as well. What is absent is open to every caller who is known.
var opens = map[string][]string{
	"authenticated": {
		"GET /v1/agent/health", "GET /v1/regions", "GET /v1/status/leader", "GET /v1/status/peers", "PUT /v1/search",
		"PUT /v1/search/fuzzy", "GET /v1/namespaces", "GET /v1/services", "GET /v1/service/{name}",
		"GET /v1/acl/whoami", "GET /.well-known/jwks.json", "GET /.well-known/openid-configuration",
	},
	"read-job": {
		"GET /v1/allocations", "GET /v1/allocation/{alloc}", "GET /v1/allocation/{alloc}/checks",
		"GET /v1/allocation/{alloc}/services", "GET /v1/client/allocation/{alloc}/checks",
		"GET /v1/client/allocation/{alloc}/stats", "GET /v1/client/allocation/{alloc}/pause", "GET /v1/jobs",
		"GET /v1/jobs/statuses",
		"GET /v1/job/{job}", "GET /v1/job/{job}/actions", "GET /v1/job/{job}/deployment", "GET /v1/job/{job}/scale",
		"GET /v1/job/{job}/services", "GET /v1/job/{job}/summary", "GET /v1/job/{job}/versions",
		"GET /v1/job/{job}/allocations", "GET /v1/job/{job}/deployments", "GET /v1/job/{job}/evaluations",
		"GET /v1/deployments", "GET /v1/deployment/{deployment}", "GET /v1/deployment/allocations/{deployment}",
		"GET /v1/namespace/{namespace}", "GET /v1/evaluations", "GET /v1/evaluations/count",
		"GET /v1/evaluation/{eval}", "GET /v1/evaluation/{eval}/allocations", "GET /v1/event/stream",
		"GET /v1/acl/policies", "GET /v1/acl/auth-methods", "GET /v1/scaling/policies", "GET /v1/volumes", "GET /v1/plugins",
		"GET /v1/acl/roles", "GET /v1/acl/binding-rules", "GET /v1/volumes/claims",
		"GET /v1/node/pools", "GET /v1/node/pool/{pool}", "GET /v1/node/pool/{pool}/jobs",
		"GET /v1/acl/policy/self", "GET /v1/acl/policy/{name}", "GET /v1/acl/role/{name}", "GET /v1/acl/role/name/{name}",
		"GET /v1/acl/auth-method/{name}", "GET /v1/acl/binding-rule/{name}", "GET /v1/scaling/policy/{name}",
		"GET /v1/volume/csi/{name}", "GET /v1/volume/host/{name}", "GET /v1/plugin/csi/{name}",
	},
	"read-logs": {
		"GET /v1/client/fs/logs/{alloc}",
	},
	"read-fs": {
		"GET /v1/client/fs/ls/{alloc}", "GET /v1/client/fs/stat/{alloc}", "GET /v1/client/fs/cat/{alloc}",
		"GET /v1/client/fs/readat/{alloc}", "GET /v1/client/fs/stream/{alloc}", "GET /v1/client/fs/logs/{alloc}",
	},
	"alloc-lifecycle": {
		"PUT /v1/allocation/{alloc}/stop", "PUT /v1/client/allocation/{alloc}/restart",
		"PUT /v1/client/allocation/{alloc}/signal", "PUT /v1/client/allocation/{alloc}/gc",
		"PUT /v1/client/allocation/{alloc}/pause", "DELETE /v1/job/{job}",
	},
	"alloc-exec": {
		"GET /v1/client/allocation/{alloc}/exec", "GET /v1/job/{job}/action", "GET /v1/job/{job}/submission",
	},
	"variables-read": {
		"GET /v1/vars", "GET /v1/var/*",
	},
	"variables-write": {
		"PUT /v1/var/*", "DELETE /v1/var/*",
	},
	"node:read": {
		"GET /v1/agent/members", "GET /v1/client/stats", "GET /v1/nodes", "GET /v1/node/{node}",
		"GET /v1/node/pool/{pool}/nodes", "GET /v1/node/{node}/allocations", "GET /v1/client/metadata",
		"GET /v1/event/stream"},
	"node:write": {
		"PUT /v1/client/gc", "PUT /v1/client/metadata",
	},
	"agent:read": {
		"GET /v1/agent/self", "GET /v1/agent/servers", "GET /v1/agent/schedulers", "GET /v1/agent/schedulers/config",
	},
	"agent:monitor": {
		"GET /v1/agent/monitor",
	},
	"operator-only": {
		"PUT /v1/system/gc", "PUT /v1/system/reconcile/summaries", "PUT /v1/jobs", "PUT /v1/jobs/parse",
		"PUT /v1/validate/job", "PUT /v1/job/{job}", "PUT /v1/job/{job}/evaluate", "GET /v1/job/{job}/submission",
		"PUT /v1/job/{job}/revert", "PUT /v1/job/{job}/plan", "PUT /v1/job/{job}/scale",
		"PUT /v1/job/{job}/dispatch", "PUT /v1/job/{job}/dispatch/payload", "PUT /v1/job/{job}/periodic/force",
		"DELETE /v1/service/{name}/{id}",
		"GET /v1/acl/token/self", "GET /v1/acl/token/{name}", "GET /v1/acl/tokens", "GET /v1/metrics",
		"GET /v1/operator/scheduler/configuration", "GET /v1/operator/upgrade-check/vault-workload-identity",
		"GET /v1/operator/license", "GET /v1/client/allocation/{alloc}/refusals",
		"PUT /v1/deployment/fail/{deployment}", "PUT /v1/deployment/promote/{deployment}",
		"PUT /v1/deployment/allocation-health/{deployment}",
	},
}

// alone is the authenticator that production has, but for who a caller is: the token is the name of its only
// capability.
type alone struct{ *auth.Authenticator }

func (alone) Authenticate(r *http.Request, owner auth.Owner, _ auth.Peer) (*auth.Principal, *auth.Denial) {
	for _, c := range auth.All.List() {
		if c.String() == r.Header.Get("X-Nomad-Token") {
			return &auth.Principal{TaskGroup: "web", Capabilities: auth.CapabilitySet(c), Claims: identity.Claims{
				Namespace: "default", JobID: "demo", AllocationID: owner.AllocationID, Task: "server",
			}}, nil
		}
	}
	return nil, unauthorized
}

// Recheck never changes its mind.
func (alone) Recheck(*http.Request, *auth.Principal, auth.Owner, auth.Peer) *auth.Denial { return nil }

// TestEachCapabilityAlone sends every request of the table with each capability alone: it opens what is said here, and
// no more.
func TestEachCapabilityAlone(t *testing.T) {
	authenticator, _ := realAuthenticator(t)
	s := newServer(t, quietAlloc(t), everyRoute, func(c *handlers.Config) {
		c.Authenticator, c.Auditor = alone{authenticator}, nil
	})
	known := map[string]bool{}
	for _, entry := range handlers.Routes() {
		row := entry.Methods[0] + " " + entry.Pattern
		known[row] = true
		opened := entry.Answer == route.Absent
		for _, capability := range auth.All.List() {
			want := slices.Contains(opens[capability.String()], row) ||
				entry.Answer == route.Absent && capability == auth.Authenticated
			opened = opened || want
			for _, method := range entry.Methods {
				got := s.once(t, method, head(method, target(entry, allocID), capability.String(), anyBody))
				may := got.Status != http.StatusForbidden ||
					method != http.MethodHead && got.Body != "Permission denied"
				if may != want {
					t.Errorf("%s %s with %s alone = %d %.40q; want it let in: %v", method, entry.Pattern, capability, got.Status,
						got.Body, want)
				}
			}
		}
		if !opened {
			t.Errorf("%s is not in the table of what each capability opens", row)
		}
	}
	for capability, rows := range opens {
		for _, row := range rows {
			if !known[row] {
				t.Errorf("%s opens %s, which there is not", capability, row)
			}
		}
	}
}
