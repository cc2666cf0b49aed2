package auth_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"taskapi/auth"
)

func TestPolicy(t *testing.T) {
	const defaults = "authenticated, read-job, read-logs, read-fs, alloc-lifecycle"
	for _, test := range []struct{ name, policy, namespace, task, want string }{
		{"empty", ``, "default", "web", defaults},
		{"namespace replaces", `namespace "default" { policy = "read" }`, "default", "web", "authenticated, read-job"},
		{"another namespace", `namespace "prod" { policy = "read" }`, "default", "web", defaults},
		{"write", `namespace "default" { policy = "write" }`, "default", "web",
			"authenticated, read-job, read-logs, read-fs, alloc-lifecycle, alloc-exec"},
		{"policy and capabilities", `namespace "default" {
			policy       = "read"
			capabilities = ["variables-read", "read-logs"]
		}`, "default", "web", "authenticated, read-job, read-logs, variables-read"},
		{"deny", `namespace "default" { policy = "deny" }`, "default", "web", "authenticated"},
		{"deny among capabilities", `namespace "default" { capabilities = ["read-job", "deny"] }`, "default", "web", "authenticated"},
		{"task widens", `task "web" { capabilities = ["alloc-exec"] }`, "default", "web", defaults + ", alloc-exec"},
		{"task narrows", `task "web" { deny = ["alloc-lifecycle", "read-fs"] }`, "default", "web", "authenticated, read-job, read-logs"},
		{"deny wins", `task "web" {
			capabilities = ["alloc-exec"]
			deny         = ["alloc-exec"]
		}`, "default", "web", defaults},
		{"another task", `task "db" { policy = "deny" }`, "default", "web", defaults},
		{"task upon namespace", `
			task "web" { capabilities = ["read-logs"] }
			namespace "*" { policy = "read" }`, "default", "web", "authenticated, read-job, read-logs"},
		{"task given back what the namespace lost", `
			namespace "*" { policy = "deny" }
			task "web" { capabilities = ["read-job"] }`, "default", "web", "authenticated, read-job"},
		{"exact before pattern", `
			task "*"   { policy = "deny" }
			task "w*"  { deny = ["read-job"] }
			task "web" { deny = ["read-fs"] }`, "default", "web", "authenticated, read-job, read-logs, alloc-lifecycle"},
		{"longer pattern before shorter", `
			task "*"   { policy = "deny" }
			task "we*" { deny = ["read-job"] }
			task "w*"  { deny = ["read-fs"] }`, "default", "web", "authenticated, read-logs, read-fs, alloc-lifecycle"},
		{"nothing can be given beyond the list", `task "web" { policy = "write" }`, "default", "web", defaults + ", alloc-exec"},
	} {
		t.Run(test.name, func(t *testing.T) {
			policy, err := auth.ParsePolicy("p.hcl", []byte(test.policy))
			if err != nil {
				t.Fatal(err)
			}
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
	policy, err := auth.ParsePolicy("p", []byte(`
		namespace "default" { capabilities = [] }
		namespace "elsewhere" { policy = "read" }
		namespace "*"       { policy = "deny" }
		task "web"          { deny = ["read-logs"] }
		task "w*"           { deny = ["read-fs"] }
		task "d?"           { deny = ["read-fs"] }
		task "sever"        { policy = "deny" }`))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`namespace "elsewhere"`, `namespace "*"`, `task "sever"`, `task "w*"`}
	if got := policy.Idle("default", []string{"web", "db"}); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := policy.Task("default", "other"); got != auth.CapabilitySet(auth.Authenticated) {
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
		{"one of ours that can't be given", `task "web" { capabilities = ["operator-only"] }`, []string{`p.hcl:1:30: unknown capability "operator-only"`}},
		{"unknown block", "\nnode {\n  policy = \"read\"\n}", []string{`p.hcl:2:1: Unsupported block type`, `"node"`}},
		{"unknown argument", `task "web" { capability = [] }`, []string{`p.hcl:1:14: Unsupported argument`}},
		{"deny in a namespace", `namespace "default" { deny = ["read-job"] }`, []string{`p.hcl:1:23: Unsupported argument`}},
		{"unknown policy", `namespace "default" { policy = "scale" }`, []string{`p.hcl:1:32: unknown policy "scale"; there are "read", "write" and "deny"`}},
		{"no label", `task { policy = "read" }`, []string{`p.hcl:1:6: Missing name for task`}},
		{"empty label", `task "" { policy = "read" }`, []string{`p.hcl:1:6: "" is no name`}},
		{"bad pattern", `task "[" { policy = "read" }`, []string{`p.hcl:1:6: "[" is no name and no pattern`}},
		{"twice", "task \"web\" { policy = \"read\" }\ntask \"web\" { policy = \"deny\" }", []string{`p.hcl:2:6: task "web" has a block already`}},
		{"says nothing", `task "web" {}`, []string{`p.hcl:1:1: the block says nothing`}},
		{"empty list", `task "web" { capabilities = [] }`, []string{`p.hcl:1:29: an empty list gives a task nothing more, and takes nothing away; to take, write deny = `}},
		{"not a list", `task "web" { capabilities = "read-job" }`, []string{`p.hcl:1:29: not a list`}},
		{"not a string", `task "web" { capabilities = [1] }`, []string{`p.hcl:1:30: not a string`}},
		{"null", `task "web" { policy = null }`, []string{`p.hcl:1:23: not a string`}},
		{"a variable", `task "web" { policy = var.x }`, []string{`p.hcl:1:23: Variables not allowed`}},
		{"syntax", "task \"web\" {\n", []string{`p.hcl:1:12: Unclosed configuration block`}},
		{"two mistakes", `task "a" { policy = "x" }` + "\n" + `task "b" { policy = "y" }`, []string{"p.hcl:1:21", "p.hcl:2:21"}},
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

func FuzzParsePolicy(f *testing.F) {
	f.Add([]byte(`namespace "default" { policy = "read" }`))
	f.Add([]byte(`task "w*" { capabilities = ["alloc-exec"] deny = ["read-fs"] }`))
	f.Add([]byte(`task "web" { capabilities = [for x in [1]: "read-job"] }`))
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
	if got := len(auth.All.List()); got != 9 {
		t.Errorf("there are %d capabilities; is the new one in All, in a policy's list, and here?", got)
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
