package auth_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"taskapi/auth"
	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/internal/must"
)

// The allocation of these tests: its group has another name than its task.
const namespace, jobID, group = "default", "demo", "back"

// policyPrincipal returns the principal of the task "web" under a policy, as the authenticator makes it.
func policyPrincipal(t *testing.T, policy *auth.Policy) *auth.Principal {
	t.Helper()
	w := newFixture(t, func(c *auth.Config) { c.Policy = policy })
	alloc := demo
	alloc.TaskGroup = group
	w.allocs.become(alloc)
	claims := claimsOf(web)
	claims.Subject = identity.Subject("global", namespace, jobID, group, "web", identity.DefaultName)
	principal := admitted(w.authenticator.Authenticate(request(identitytest.Sign(t, w.ring, claims)), web, peer))(t)
	return principal
}

// spread returns a policy with a line for each block: HCL takes no block inside of one on the same line.
func spread(policy string) string {
	return strings.NewReplacer("{ ", "{\n", " }", "\n}").Replace(policy)
}

// rightsOf returns the rights of a principal on the variable of a namespace and path, by their names.
func rightsOf(p *auth.Principal, namespace, path string) string {
	var names []string
	for right, name := range map[auth.VariableRight]string{
		auth.VariableRead: "read", auth.VariableList: "list", auth.VariableWrite: "write", auth.VariableDestroy: "destroy",
	} {
		if p.MayVariable(namespace, path, right) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// TestVariables: what a task may do with variables, by the policy and the path, through the whole of authentication.
// Nomad's implicit policy is read and list of four paths.
func TestVariables(t *testing.T) {
	const (
		everything = "destroy list read write"
		implicit   = "list read"
		none       = ""
		job        = "nomad/jobs/" + jobID
	)
	implicitPaths := map[string]string{
		"nomad/jobs":                 implicit,
		job:                          implicit,
		job + "/" + group:            implicit,
		job + "/" + group + "/web":   implicit,
		"":                           none,
		"nomad":                      none,
		"nomad/jobs/":                none,
		"nomad/jobs/other":           none,
		job + "2":                    none,
		job + "/":                    none,
		job + "/other":               none,
		job + "/" + group + "/db":    none,
		job + "/" + group + "/web/x": none,
		job + "/" + group + "2":      none,
		job + "/" + group + "/":      none,
		"nomad/job-templates/x":      none,
		"app":                        none,
		"NOMAD/JOBS":                 none,
	}
	with := func(base map[string]string, more map[string]string) map[string]string {
		merged := maps.Clone(base)
		maps.Copy(merged, more)
		return merged
	}
	for name, test := range map[string]struct {
		policy string
		want   map[string]string
	}{
		"local": {``, implicitPaths},
		"nomad": {`preset = "nomad"`, implicitPaths},
		"denied": {`task "web" { policy = "deny" }`,
			map[string]string{"nomad/jobs": none, job: none, "app": none}},
		"no read": {`task "web" { deny = ["variables-read"] }`,
			map[string]string{"nomad/jobs": none, job: none, "app": none}},
		"read-job alone keeps what Nomad gives": {`namespace "*" { policy = "read" }`, implicitPaths},
		"write": {`task "web" { capabilities = ["variables-write"] }`, with(implicitPaths, map[string]string{
			job: everything, job + "/" + group: everything, job + "/" + group + "/web": everything, job + "/other": everything,
			job + "/" + group + "/db": everything, job + "/" + group + "/web/x": everything, job + "/" + group + "2": everything,
			job + "/": everything, job + "/" + group + "/": everything,
		})},
		"a path": {`namespace "*" { variables { path "app/*" { capabilities = ["write", "read"] } } }`,
			with(implicitPaths, map[string]string{
				"app": none, "app/": "list read write", "app/a": "list read write", "app/a/b": "list read write", "App/a": none,
			})},
		"a path of another task": {`task "db" { variables { path "app/*" { capabilities = ["write"] } } }`,
			with(implicitPaths, map[string]string{"app/a": none})},
		"list alone": {`task "web" { variables { path "app" { capabilities = ["list"] } } }`,
			with(implicitPaths, map[string]string{"app": "list"})},
		"destroy alone": {`task "web" { variables { path "app" { capabilities = ["destroy"] } } }`,
			with(implicitPaths, map[string]string{"app": "destroy"})},
		"write alone": {`task "web" { variables { path "app" { capabilities = ["write"] } } }`,
			with(implicitPaths, map[string]string{"app": "write"})},
		"an exact path before Nomad's policy": {`task "web" { variables { path "` + job + `" { capabilities = ["deny"] } } }`,
			with(implicitPaths, map[string]string{job: none})},
		"Nomad's policy before a pattern": {`task "web" { variables { path "nomad/*" { capabilities = ["deny"] } } }`,
			implicitPaths},
		"a pattern before variables-write": {`task "web" {
			capabilities = ["variables-write"]
			variables { path "` + job + `/secret/*" { capabilities = ["deny"] } }
		}`, map[string]string{job: everything, job + "/x": everything, job + "/secret/x": none, "app": none}},
		"the closest pattern": {`task "web" { variables {
			path "*"       { capabilities = ["list"] }
			path "app/*"   { capabilities = ["write"] }
			path "*/b"     { capabilities = ["destroy"] }
			path "app/a/*" { capabilities = ["deny"] }
			path "a*/c/*d" { capabilities = ["read"] }
		} }`, map[string]string{
			"x": "list", "app/x": "write", "x/b": "destroy", "app/a/b": none, "app/b": "write", "ab/c/d": "list read",
			"ab/c/xd": "list read", "ab/c/dx": "list",
			"nomad/jobs": implicit,
		}},
		"a task's rule instead of its namespace's": {`
			namespace "*" { variables {
				path "a" { capabilities = ["write"] }
				path "b" { capabilities = ["write"] }
			} }
			task "web" { variables { path "a" { capabilities = ["read"] } } }`, map[string]string{"a": implicit, "b": "write"}},
		"deny with others": {`task "web" { variables { path "a" { capabilities = ["write", "deny"] } } }`,
			map[string]string{"a": none}},
		"deny wins over rules": {`task "web" {
			deny = ["variables-write"]
			variables { path "a" { capabilities = ["write", "read"] } }
		}`, map[string]string{"a": implicit}},
		"a path without Nomad's policy": {`
			namespace "*" { policy = "deny" }
			task "web" { variables { path "a" { capabilities = ["read"] } } }`,
			map[string]string{"a": implicit, "nomad/jobs": none, job: none}},
		"writing a path gives no other": {`task "web" { variables { path "a" { capabilities = ["write"] } } }`,
			with(implicitPaths, map[string]string{"a": "write"})},
	} {
		t.Run(name, func(t *testing.T) {
			policy := must.Get(auth.ParsePolicy("p.hcl", []byte(spread(test.policy))))(t)
			principal := policyPrincipal(t, policy)
			for path, want := range test.want {
				if got := rightsOf(principal, namespace, path); got != want {
					t.Errorf("%q: %q, want %q", path, got, want)
				}
				if got := rightsOf(principal, "other", path); got != none {
					t.Errorf("%q of another namespace: %q", path, got)
				}
			}
		})
	}
}

// TestVariablesOfOperator: the operator has every right everywhere, nobody none.
func TestVariablesOfOperator(t *testing.T) {
	operator := &auth.Principal{
		Claims:       identity.Claims{Namespace: namespace, JobID: jobID, Role: identity.RoleOperator},
		Capabilities: auth.All,
	}
	for _, in := range []string{namespace, "other"} {
		if got := rightsOf(operator, in, "a"); got != "destroy list read write" {
			t.Errorf("the operator has %q in %s", got, in)
		}
	}
	if operator.MayVariable(namespace, "a", 0) ||
		operator.MayVariable(namespace, "a", auth.VariableRead|auth.VariableWrite) {
		t.Error("no right, or two at once, is granted")
	}
	if got := rightsOf(nil, namespace, "nomad/jobs"); got != "" {
		t.Errorf("nobody has %q", got)
	}
}
