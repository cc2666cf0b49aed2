package auth_test

import (
	"errors"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/internal/must"
)

func TestPolicy(t *testing.T) {
	const (
		implicit = "authenticated, variables-read"
		some     = "authenticated, read-job, read-logs, read-fs, alloc-lifecycle"
		defaults = some + ", variables-read, agent:read"
	)
	for _, test := range []struct{ name, policy, namespace, task, want string }{
		{"empty", ``, "default", "web", defaults},
		{"namespace replaces", `namespace "default" { policy = "read" }`, "default", "web",
			"authenticated, read-job, variables-read"},
		{"another namespace", `namespace "prod" { policy = "read" }`, "default", "web", defaults},
		{"write", `namespace "default" { policy = "write" }`, "default", "web",
			some + ", alloc-exec, variables-read"},
		{"policy and capabilities", `namespace "default" {
			policy       = "read"
			capabilities = ["variables-read", "read-logs"]
		}`, "default", "web", "authenticated, read-job, read-logs, variables-read"},
		{"deny", `namespace "default" { policy = "deny" }`, "default", "web", "authenticated"},
		{"deny among capabilities", `namespace "default" { capabilities = ["read-job", "deny"] }`, "default", "web",
			"authenticated"},
		{"task widens", `task "web" { capabilities = ["alloc-exec"] }`, "default", "web",
			some + ", alloc-exec, variables-read, agent:read"},
		{"task narrows", `task "web" { deny = ["alloc-lifecycle", "read-fs", "agent:read"] }`, "default", "web",
			"authenticated, read-job, read-logs, variables-read"},
		{"task loses what Nomad gives", `task "web" { deny = ["variables-read"] }`, "default", "web", some + ", agent:read"},
		{"deny wins", `task "web" {
			capabilities = ["alloc-exec"]
			deny         = ["alloc-exec"]
		}`, "default", "web", defaults},
		{"another task", `task "db" { policy = "deny" }`, "default", "web", defaults},
		{"task upon namespace", `
			task "web" { capabilities = ["read-logs"] }
			namespace "*" { policy = "read" }`, "default", "web", "authenticated, read-job, read-logs, variables-read"},
		{"task given back what the namespace lost", `
			namespace "*" { policy = "deny" }
			task "web" { capabilities = ["read-job"] }`, "default", "web", "authenticated, read-job"},
		{"exact before pattern", `
			task "*"   { policy = "deny" }
			task "w*"  { deny = ["read-job"] }
			task "web" { deny = ["read-fs"] }`, "default", "web",
			"authenticated, read-job, read-logs, alloc-lifecycle, variables-read, agent:read"},
		{"longer pattern before shorter", `
			task "*"   { policy = "deny" }
			task "we*" { deny = ["read-job"] }
			task "w*"  { deny = ["read-fs"] }`, "default", "web",
			"authenticated, read-logs, read-fs, alloc-lifecycle, variables-read, agent:read"},
		{"nothing can be given beyond the list", `task "web" { policy = "write" }`, "default", "web",
			some + ", alloc-exec, variables-read, agent:read"},
		{"node beside a preset", `node { policy = "read" }`, "default", "web", defaults + ", node:read"},
		{"node write", `
			preset = "nomad"
			node { policy = "write" }`, "default", "web", implicit + ", node:read, node:write"},
		{"agent denied", `agent { policy = "deny" }`, "default", "web", some + ", variables-read"},
		{"agent read", `agent { policy = "read" }`, "default", "web", defaults + ", agent:monitor"},
		{"node beside a namespace", `
			node { policy = "read" }
			namespace "default" { policy = "deny" }`, "default", "web", "authenticated, node:read"},
		{"task after node", `
			task "web" { deny = ["node:write"] }
			node { policy = "write" }`, "default", "web", defaults + ", node:read"},
		{"task denied in spite of node", `
			task "web" { policy = "deny" }
			node { policy = "write" }`, "default", "web", "authenticated"},
		{"preset", `preset = "nomad"`, "default", "web", implicit},
		{"the other preset", `preset = "local"`, "default", "web", defaults},
		{"task upon a preset", `
			preset = "nomad"
			task "web" { capabilities = ["read-job"] }`, "default", "web", "authenticated, read-job, variables-read"},
		{"namespace instead of a preset", `
			preset = "local"
			namespace "default" { capabilities = [] }`, "default", "web", implicit},
		{"rules about variables", `task "web" { variables { path "a" { capabilities = ["write"] } } }`, "default", "web",
			some + ", variables-read, variables-write, agent:read"},
		{"rules that give nothing", `namespace "default" { variables { path "a" { capabilities = ["deny"] } } }`, "default",
			"web", implicit},
		{"deny wins over rules", `task "web" {
			deny = ["variables-write"]
			variables { path "a" { capabilities = ["write"] } }
		}`, "default", "web", defaults},
	} {
		t.Run(test.name, func(t *testing.T) {
			policy := must.Get(auth.ParsePolicy("p.hcl", []byte(spread(test.policy))))(t)
			if got := policy.Task(test.namespace, test.task).String(); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
	if got := (*auth.Policy)(nil).Task("default", "web"); got != auth.DefaultTask {
		t.Errorf("no policy gives %s", got)
	}
}

// A block that is about nothing here is named.
func TestIdleBlocks(t *testing.T) {
	policy := must.Get(auth.ParsePolicy("p", []byte(`
		namespace "default" { capabilities = [] }
		namespace "elsewhere" { policy = "read" }
		namespace "*"       { policy = "deny" }
		task "web"          { deny = ["read-logs"] }
		task "w*"           { deny = ["read-fs"] }
		task "d?"           { deny = ["read-fs"] }
		task "sever"        { policy = "deny" }`)))(t)
	want := []string{`namespace "elsewhere"`, `namespace "*"`, `task "sever"`, `task "w*"`}
	if got := policy.Idle("default", []string{"web", "db"}); !slices.Equal(slices.Sorted(slices.Values(got)),
		slices.Sorted(slices.Values(want))) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := policy.Task("default", "other"); got != auth.ImplicitTask {
		t.Errorf("the tasks of a namespace without capabilities have %s", got)
	}
	if got := (*auth.Policy)(nil).Idle("default", nil); got != nil {
		t.Errorf("no policy: %q", got)
	}
}

func TestPolicyErrors(t *testing.T) {
	for _, test := range []struct {
		name, policy string
		want         []string
	}{
		{"unknown capability", "task \"web\" {\n  capabilities = [\"read-job\", \"read-jobs\"]\n}",
			[]string{`p.hcl:2:31: unknown capability "read-jobs"; there are read-job, read-logs`, "variables-write"}},
		{"one of ours that can't be given", `task "web" { capabilities = ["operator-only"] }`,
			[]string{`p.hcl:1:30: unknown capability "operator-only"`}},
		{"unknown block", "\nquota {\n  policy = \"read\"\n}", []string{`p.hcl:2:1: Unsupported block type`, `"quota"`}},
		{"node without a policy", `node {}`, []string{`p.hcl:1:6: Missing required argument`}},
		{"node with another", `agent { policy = "list" }`,
			[]string{`p.hcl:1:18: unknown policy "list"; there are "read", "write" and "deny"`}},
		{"node with a name", `node "a" { policy = "read" }`, []string{`p.hcl:1:6: Extraneous label for node`}},
		{"node twice", "node { policy = \"deny\" }\nnode { policy = \"read\" }", []string{`p.hcl:2:1: a second node block`}},
		{"unknown argument", `task "web" { capability = [] }`, []string{`p.hcl:1:14: Unsupported argument`}},
		{"deny in a namespace", `namespace "default" { deny = ["read-job"] }`, []string{`p.hcl:1:23: Unsupported argument`}},
		{"unknown policy", `namespace "default" { policy = "scale" }`,
			[]string{`p.hcl:1:32: unknown policy "scale"; there are "read", "write" and "deny"`}},
		{"no label", `task { policy = "read" }`, []string{`p.hcl:1:6: Missing name for task`}},
		{"empty label", `task "" { policy = "read" }`, []string{`p.hcl:1:6: "" is no name`}},
		{"bad pattern", `task "[" { policy = "read" }`, []string{`p.hcl:1:6: "[" is no name and no pattern`}},
		{"twice", "task \"web\" { policy = \"read\" }\ntask \"web\" { policy = \"deny\" }",
			[]string{`p.hcl:2:6: task "web" has a block already`}},
		{"says nothing", `task "web" {}`, []string{`p.hcl:1:1: the block says nothing`}},
		{"empty list", `task "web" { capabilities = [] }`,
			[]string{`p.hcl:1:29: an empty list gives a task nothing more, and takes nothing away; to take, write deny = `}},
		{"not a list", `task "web" { capabilities = "read-job" }`, []string{`p.hcl:1:29: not a list`}},
		{"not a string", `task "web" { capabilities = [1] }`, []string{`p.hcl:1:30: not a string`}},
		{"null", `task "web" { policy = null }`, []string{`p.hcl:1:23: not a string`}},
		{"a variable", `task "web" { policy = var.x }`, []string{`p.hcl:1:23: Variables not allowed`}},
		{"syntax", "task \"web\" {\n", []string{`p.hcl:1:12: Unclosed configuration block`}},
		{"two mistakes", `task "a" { policy = "x" }` + "\n" + `task "b" { policy = "y" }`,
			[]string{"p.hcl:1:21", "p.hcl:2:21"}},
		{"unknown preset", `preset = "consul"`,
			[]string{`p.hcl:1:10: unknown preset "consul"; there are "local" and "nomad"`}},
		{"preset that is no string", `preset = 1`, []string{`p.hcl:1:10: not a string`}},
		{"variables without a path", "namespace \"a\" {\n variables {}\n}",
			[]string{`p.hcl:2:2: the block says nothing; write path`}},
		{"variables twice", "namespace \"a\" {\n variables {\n path \"a\" { capabilities = [\"read\"] }\n}\n variables {\n " +
			"path \"b\" { capabilities = [\"read\"] }\n}\n}",
			[]string{`p.hcl:5:2: a second variables block`}},
		{"path twice", paths("path \"a\" { capabilities = [\"read\"] }\npath \"a\" { capabilities = [\"read\"] }"),
			[]string{`p.hcl:4:6: path "a" has a block already`}},
		{"path of no variable", paths(`path "a b" { capabilities = ["read"] }`),
			[]string{`p.hcl:3:6: no variable has a path like "a b"`}},
		{"path without capabilities", paths(`path "a" {}`), []string{`p.hcl:3:10: Missing required argument`}},
		{"path with an empty list", paths(`path "a" { capabilities = [] }`),
			[]string{`p.hcl:3:27: an empty list; to refuse the path, write ["deny"]`}},
		{"unknown right", paths(`path "a" { capabilities = ["submit"] }`),
			[]string{`p.hcl:3:28: unknown capability "submit" of variables; there are read, list, write, destroy and deny`}},
		{"limit that does not exist", "limits {\n lookups = 1\n}",
			[]string{`p.hcl:2:2: invalid limit: there is none called "lookups"; there are failed_lookups`}},
		{"limit out of range", "limits {\n connections = 1\n}",
			[]string{`p.hcl:2:2: invalid limit: connections=1: give a number from 8 to 10000`}},
		{"limit that is a list", "limits {\n connections = []\n}", []string{`p.hcl:2:16: neither a number nor a string`}},
		{"no limits", "limits {}", []string{`p.hcl:1:1: the block says nothing; write connections = 64`}},
		{"limits twice", "limits {\n streams = 1\n}\nlimits {\n waits = 1\n}", []string{`p.hcl:4:1: a second limits block`}},
		{"block in limits", "limits {\n task {}\n}", []string{`p.hcl:2:2: `}},
		{"too long", strings.Repeat("#\n", 40000), []string{"p.hcl has 80000 bytes; at most 65536 are read"}},
		{"binary", "\x00\x01\xff", []string{"p.hcl:1:"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			policy, err := auth.ParsePolicy("p.hcl", []byte(test.policy))
			if policy != nil || !errors.Is(err, auth.ErrPolicy) {
				t.Fatalf("got %v and %v", policy, err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in:\n%v", want, err)
				}
			}
		})
	}
}

// TestPolicyLimits: the policy changes what it names, and leaves the rest.
func TestPolicyLimits(t *testing.T) {
	policy, err := auth.ParsePolicy(
		"p",
		[]byte("limits {\n failed_lookups = \"1/s:2\"\n connections = 300\n streams = \"3\"\n}"),
	)
	must.OK(t, err)
	want, err := limitset.Default().With("failed_lookups=1/s:2,connections=300,streams=3")
	if got := policy.Limits(limitset.Default()); err != nil || got != want {
		t.Errorf("got %+v, want %+v, %v", got, want, err)
	}
	if got := policy.Task("default", "web"); got != auth.DefaultTask {
		t.Errorf("limits made the rights %s", got)
	}
	if got := (*auth.Policy)(nil).Limits(limitset.Default()); got != limitset.Default() {
		t.Errorf("no policy: %+v", got)
	}
}

// paths returns a policy with rules about variables, which begin in its third line.
func paths(rules string) string { return "namespace \"a\" {\nvariables {\n" + rules + "\n}\n}" }

func FuzzParsePolicy(f *testing.F) {
	f.Add([]byte(`namespace "default" { policy = "read" }`))
	f.Add([]byte(`task "w*" { capabilities = ["alloc-exec"] deny = ["read-fs"] }`))
	f.Add([]byte(`task "web" { capabilities = [for x in [1]: "read-job"] }`))
	f.Add([]byte("preset = \"nomad\"\n" + paths(`path "a/*" { capabilities = ["write"] }`)))
	f.Add([]byte("task \"${a}\" {\n policy = <<E\nread\nE\n}"))
	f.Add([]byte(strings.Repeat("[", 1000)))
	f.Fuzz(func(t *testing.T, src []byte) {
		policy, err := auth.ParsePolicy("p.hcl", src)
		if (policy == nil) == (err == nil) {
			t.Fatalf("got %v and %v", policy, err)
		}
		if err != nil {
			if !errors.Is(err, auth.ErrPolicy) {
				t.Fatalf("not an ErrPolicy: %v", err)
			}
			return
		}
		if set := policy.Task("default", "web"); !set.Has(auth.Authenticated) || set.Has(auth.OperatorOnly) {
			t.Fatalf("a policy made %s", set)
		}
	})
}

func TestCapabilities(t *testing.T) {
	for _, c := range auth.All.List() {
		parsed, err := auth.ParseCapability(c.String())
		switch given := c != auth.Authenticated && c != auth.OperatorOnly; {
		case given && (err != nil || parsed != c):
			t.Errorf("%s parses as %s, %v", c, parsed, err)
		case !given && err == nil:
			t.Errorf("a policy can name %s", c)
		}
	}
	if got, want := len(auth.All.List()), bits.OnesCount16(uint16(auth.All)); got != want {
		t.Errorf("%d of %d capabilities have a name", got, want)
	}
	if auth.All.Has(0) {
		t.Error("somebody has the zero capability")
	}
	for _, name := range []string{"", "deny", "READ-JOB", "read-job "} {
		if c, err := auth.ParseCapability(name); err == nil {
			t.Errorf("%q parses as %s", name, c)
		}
	}
	if got := auth.Capability(0x8000).String(); got != "capability(0x8000)" {
		t.Errorf("a capability that does not exist is called %s", got)
	}
}
