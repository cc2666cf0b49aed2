package handlers_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"taskapi/auth"
	"taskapi/examples/doctest"
	"taskapi/handlers"
	"taskapi/handlers/events"
	"taskapi/handlers/internal/route"
	"taskapi/internal/must"
)

// nomadOpens are the routes that a Nomad agent with ACLs answers to a workload identity without any policy, by method
// and pattern. Every other route of the table is refused there (403 "Permission denied", or 404 for GET
// /v1/allocation/:id). The sources, of Nomad 2.0: an ACL object of no policies (nomad/auth/auth.go, resolveClaims), and
// what the endpoints allow beside it.
var nomadOpens = map[string]string{
	"GET /v1/agent/health":                  "no rule",
	"GET /v1/regions":                       "no rule",
	"GET /v1/status/leader":                 "no rule",
	"GET /v1/status/peers":                  "no rule",
	"GET /.well-known/jwks.json":            "no rule",
	"GET /.well-known/openid-configuration": "no rule",
	"GET /v1/acl/whoami":                    "404, it has no such route: these are the token's own claims",
	"GET /v1/namespaces":                    "filtered: none is listed",
	"PUT /v1/search":                        "filtered: nothing is found in all contexts, and one context is refused",
	"PUT /v1/search/fuzzy":                  "filtered: nothing is found in all contexts, and one context is refused",
	"GET /v1/services":                      "every workload",
	"GET /v1/service/{service}":             "every workload",
	"GET /v1/vars":                          "filtered: the variables of the implicit policy are listed",
	"GET /v1/var/*":                         "by path: nomad/jobs, and that of its job, group and task below",
	"GET /v1/event/stream":                  "refused: the topic Variable takes a policy's rules about paths, others more",
}

// nomadAnyone are routes that a Nomad agent answers to everyone, and that are the operator's here, on purpose.
var nomadAnyone = []string{"GET /v1/metrics"}

// rowOf returns a route as these tables have it: a parameter has whatever name, and that of a variable any number of
// elements.
func rowOf(entry route.Route) string {
	if strings.HasPrefix(entry.Pattern, "/v1/var/") {
		return entry.Methods[0] + " /v1/var/*"
	}
	if method := entry.Methods[0]; method == http.MethodGet && strings.HasPrefix(entry.Pattern, "/v1/service/") {
		return "GET /v1/service/{service}"
	}
	return entry.Methods[0] + " " + entry.Pattern
}

// TestPresetNomad holds the preset to Nomad's facts: it lets through what Nomad's implicit policy does, and nothing
// else.
func TestPresetNomad(t *testing.T) {
	for _, entry := range handlers.Routes() {
		if entry.Answer == route.Absent {
			continue
		}
		row := rowOf(entry)
		_, want := nomadOpens[row]
		if got := auth.ImplicitTask&entry.AnyOf != 0; got != want {
			t.Errorf("%s: the preset lets it through: %v; Nomad does: %v. Is the row in nomadOpens, with a fact of Nomad's?",
				row, got, want)
		}
		if slices.Contains(nomadAnyone, row) && entry.AnyOf != auth.CapabilitySet(auth.OperatorOnly) {
			t.Errorf("%s is not the operator's alone", row)
		}
	}
}

// nomadMachine are the routes that Nomad's node and agent policies open, by the block, with those of fewer rights in
// those of more. The sources, of Nomad 2.0: AllowNodeRead, AllowNodeWrite, AllowAgentRead and AllowAgentWrite in its
// endpoints.
var nomadMachine = map[string][]string{
	`node { policy = "deny" }`: nil,
	`node { policy = "read" }`: {
		"GET /v1/agent/members", "GET /v1/client/stats", "GET /v1/nodes", "GET /v1/node/{node}",
		"GET /v1/node/pool/{pool}/nodes",
		"GET /v1/node/{node}/allocations",
		"GET /v1/client/metadata",
	},
	`node { policy = "write" }`: {
		"GET /v1/agent/members", "GET /v1/client/stats", "GET /v1/nodes", "GET /v1/node/{node}",
		"GET /v1/node/pool/{pool}/nodes",
		"GET /v1/node/{node}/allocations",
		"GET /v1/client/metadata", "PUT /v1/client/metadata", "PUT /v1/client/gc",
	},
	`agent { policy = "deny" }`: nil,
	`agent { policy = "read" }`: {
		"GET /v1/agent/self", "GET /v1/agent/servers", "GET /v1/agent/schedulers", "GET /v1/agent/schedulers/config",
		"GET /v1/agent/monitor",
	},
	`agent { policy = "write" }`: {
		"GET /v1/agent/self", "GET /v1/agent/servers", "GET /v1/agent/schedulers", "GET /v1/agent/schedulers/config",
		"GET /v1/agent/monitor",
	},
}

// TestPolicyOfTheMachine holds node and agent blocks to Nomad's facts: each opens the routes that it opens there, and
// no other.
func TestPolicyOfTheMachine(t *testing.T) {
	for block, want := range nomadMachine {
		policy := must.Get(auth.ParsePolicy("p.hcl", []byte("preset = \"nomad\"\n"+block)))(t)
		set := policy.Task("default", "web")
		for _, entry := range handlers.Routes() {
			row, opens := rowOf(entry), set&entry.AnyOf != 0 && auth.ImplicitTask&entry.AnyOf == 0
			if opens != slices.Contains(want, row) {
				t.Errorf("%s opens %s: %t", block, row, opens)
			}
		}
	}
}

// TestPresetLocal: what the preset lets through beyond Nomad's is within the caller's allocation, and nothing of the
// operator's.
func TestPresetLocal(t *testing.T) {
	if auth.DefaultTask&auth.ImplicitTask != auth.ImplicitTask {
		t.Errorf("local lacks something of nomad: %s and %s", auth.DefaultTask, auth.ImplicitTask)
	}
	if auth.DefaultTask.Has(auth.OperatorOnly) || auth.DefaultTask.Has(auth.AllocExec) ||
		auth.DefaultTask.Has(auth.VariablesWrite) ||
		auth.DefaultTask.Has(auth.NodeRead) || auth.DefaultTask.Has(auth.AgentMonitor) {
		t.Errorf("local gives %s", auth.DefaultTask)
	}
}

// TestNomadOnTheWire asks as a task of the preset: what Nomad filters is empty here too, and what it refuses of the
// same routes is refused in its words.
func TestNomadOnTheWire(t *testing.T) {
	s := newServer(t, quietAlloc(t), streaming(events.New()), withVariables(newVariables(t)))
	for _, test := range []struct {
		method, path, body string
		want               reply
	}{
		{"GET", "/v1/namespaces", "", reply{Status: 200, Body: "[]"}},
		{"GET", "/v1/namespace/default", "", reply{Status: 403, Body: "Permission denied"}},
		{"PUT", "/v1/search", `{"Prefix":""}`, reply{Status: 200, Body: `{"Matches":{},"Truncations":{},"Index":`}},
		{"PUT", "/v1/search", `{"Prefix":"","Context":"all"}`, reply{Status: 200,
			Body: `{"Matches":{},"Truncations":{},"Index":`}},
		{"PUT", "/v1/search", `{"Prefix":"","Context":"jobs"}`, reply{Status: 403, Body: "Permission denied"}},
		{"PUT", "/v1/search", `{"Prefix":"","Context":"variables"}`, reply{Status: 403, Body: "Permission denied"}},
		{"PUT", "/v1/search", `{"Prefix":"","Context":"vars"}`, reply{Status: 403, Body: "Permission denied"}},
		{"PUT", "/v1/search/fuzzy", `{"Text":"demo"}`, reply{Status: 200, Body: `{"Matches":{},"Truncations":{},"Index":`}},
		{"PUT", "/v1/search/fuzzy", `{"Text":"demo","Context":"jobs"}`, reply{Status: 403, Body: "Permission denied"}},
	} {
		got := s.do(t, test.method, test.path, nomadToken, test.body)
		if got.Status != test.want.Status || !strings.HasPrefix(got.Body, test.want.Body) {
			t.Errorf("%s %s %s = %d %q, want %d %q", test.method, test.path, test.body, got.Status, got.Body, test.want.Status,
				test.want.Body)
		}
	}
}

// TestCapabilitiesGuardSomething: one that a policy can give and no route needs would promise what nothing keeps.
func TestCapabilitiesGuardSomething(t *testing.T) {
	var guards auth.CapabilitySet
	for _, entry := range handlers.Routes() {
		guards |= entry.AnyOf
	}
	for _, c := range auth.All.List() {
		if !guards.Has(c) {
			t.Errorf("%s guards no entry", c)
		}
	}
}

// TestPresetsAreDocumented holds docs/security.md to what the preset "nomad" lets a task ask for.
func TestPresetsAreDocumented(t *testing.T) {
	var want strings.Builder
	want.WriteString("| request | with `nomad` | a Nomad agent |\n|---|---|---|\n")
	for _, entry := range handlers.Routes() {
		row, answered := rowOf(entry), "answered"
		fact := nomadOpens[row]
		if slices.Contains(nomadAnyone, row) {
			fact, answered = "answers everyone, without a token", "refused: it is the operator's"
		}
		if strings.HasPrefix(fact, "refused") {
			answered = "refused, too"
		}
		if entry.Answer != route.Absent && fact != "" {
			fmt.Fprintf(&want, "| `%s %s` | %s | %s |\n", entry.Methods[0], entry.Pattern, answered, fact)
		}
	}
	doctest.Table(t, "../docs/security.md", "handlers", want.String())
}
