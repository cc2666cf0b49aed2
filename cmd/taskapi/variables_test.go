package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// askOver sends one request over a socket and returns its status, index and body.
func askOver(t *testing.T, addr, token, method, path, body string) (status int, index, answer string) {
	t.Helper()
	response := must.Get(send(t.Context(), addr, token, method, path, body))(t)
	defer response.Body.Close()
	content := must.Get(io.ReadAll(response.Body))(t)
	return response.StatusCode, response.Header.Get("X-Nomad-Index"), string(content)
}

// pieces reports whether a text is the wanted one, in which ... stands for anything.
func pieces(text, want string) bool {
	var form strings.Builder
	for i, piece := range strings.Split(want, "...") {
		if i > 0 {
			form.WriteString("(?s:.*)")
		}
		form.WriteString(regexp.QuoteMeta(piece))
	}
	return regexp.MustCompile("^" + form.String() + "$").MatchString(text)
}

// TestVariablesOnTheWire: statuses and bodies are Nomad's.
func TestVariablesOnTheWire(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), testJob)
	r.operator()
	const items, nothing = `{"Items":{"k":"v"}}`, `","CreateIndex":0,"ModifyIndex":0,"CreateTime":0,"ModifyTime":0}`
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string // of the body; ... is anything
	}{
		{"GET", "/v1/vars", "", 200, "[]"},
		{"GET", "/v1/var/", "", 400, "missing variable path"},
		{"GET", "/v1/var", "", 404, "resource not found"},
		{"GET", "/v1/var/none", "", 404, "variable not found"},
		{"GET", "/v1/var/a.b", "", 404, "variable not found"},
		{"GET", "/v1/var/none?namespace=*", "", 400, `can not target wildcard ("*")namespace`},
		{"GET", "/v1/var/none?index=x", "", 400, "index must be..."},
		{"PATCH", "/v1/var/none", "", 405, "Invalid method"},

		{"PUT", "/v1/var/a%2Fb", items, 200, `{"Namespace":"default","Path":"a/b",...`},
		{"POST", "/v1/var/a/b", items, 200, `{"Namespace":"default","Path":"a/b",...`},
		{"GET", "/v1/var/a/b?pretty", "", 200, "{\n    \"Namespace\": \"default\",..."},
		{"PUT", "/v1/var/a//b", items, 200, `{"Namespace":"default","Path":"a//b",...`},
		{"PUT", "/v1/var/p", `{"Path":"other","Namespace":"prod","Items":{"k":"v"}}`, 200,
			`{"Namespace":"prod","Path":"p",...`},
		{"GET", "/v1/var/p?namespace=prod", "", 200, `{"Namespace":"prod","Path":"p",...`},
		{"GET", "/v1/var/p", "", 404, "variable not found"},
		{"GET", "/v1/vars?namespace=prod", "", 200, `[{"Namespace":"prod","Path":"p","CreateIndex":...`},
		{"GET", "/v1/vars?namespace=a/b", "", 400, `invalid namespace...`},
		{"PUT", "/v1/var/p?namespace=a.b", items, 400, `invalid namespace...`},
		{"PUT", "/v1/var/p", "{", 400, "Failed to decode body: unexpected EOF"},
		{"PUT", "/v1/var/p", "{}", 400, "variable missing required Items object"},
		{"PUT", "/v1/var/p", `{"Items":{}}`, 400, "variable missing required Items object"},
		{"PUT", "/v1/var/p", `{"Items":{"k":7}}`, 400, "Failed to decode body: ..."},
		{"PUT", "/v1/var/p", `{"Items":{"k":"v"},"Lock":{"ID":"x","TTL":"15s"}}`, 400,
			"variable should not contain lock definition"},
		{"PUT", "/v1/var/p", `{"Items":{"k":"` + strings.Repeat("v", 64<<10) + `"}}`, 400,
			"variables are limited to 64KiB in total size"},
		{"PUT", "/v1/var/p", `{"Items":{"k":"` + strings.Repeat("v", 600<<10) + `"}}`, 413, "the body is larger than..."},
		{"PUT", "/v1/var/" + strings.Repeat("p", 129), items, 400, "invalid path..."},
		{"PUT", "/v1/var/a%20b", items, 400, `invalid path "a b"...`},
		{"PUT", "/v1/var/nomad", items, 400, `"nomad" is a reserved top-level directory path...`},
		{"PUT", "/v1/var/nomad/x", items, 400, `only paths at "nomad/jobs" or "nomad/job-templates" and below...`},

		{"PUT", "/v1/var/a/b?cas=0", items, 409, `{"Namespace":"default","Path":"a/b",...`},
		{"PUT", "/v1/var/n?cas=7", items, 409, `{"Namespace":"default","Path":"n` + nothing},
		{"PUT", "/v1/var/n?cas=-1", items, 400, "can not parse cas: ..."},
		{"PUT", "/v1/var/n?cas=0&lock-acquire", items, 400, "CAS can't be used with lock operations"},
		{"PUT", "/v1/var/n?lock-renew&lock-acquire", items, 400, "multiple lock operations"},
		{"DELETE", "/v1/var/n?cas=7", "", 409, `{"Namespace":"default","Path":"n` + nothing},
		{"DELETE", "/v1/var/n?cas=0", "", 204, ""},
		{"DELETE", "/v1/var/a//b", "", 204, ""},
		{"DELETE", "/v1/var/a//b", "", 204, ""},

		{"PUT", "/v1/var/l?lock-renew", `{"Lock":{"ID":"x"}}`, 404, "variable doesn't exist"},
		{"PUT", "/v1/var/l?lock-release", `{"Lock":{"ID":"x"}}`, 404, "variable doesn't exist"},
		{"PUT", "/v1/var/a/b?lock-renew", `{"Lock":{"ID":"x"}}`, 409, "variable doesn't hold a lock"},
		{"PUT", "/v1/var/a/b?lock-release", `{"Lock":{"ID":"x"}}`, 409, "variable doesn't hold a lock"},
		{"PUT", "/v1/var/l?lock-acquire", `{"Lock":{"TTL":"9s"}}`, 400, "TTL must be between 10 seconds and 24 hours"},
		{"PUT", "/v1/var/l?lock-acquire", `{"Lock":{"TTL":-1}}`, 400, "Lock delay and TTL must be positive"},
		{"PUT", "/v1/var/l?lock-acquire", `{"Lock":{"TTL":"soon"}}`, 400, "Failed to decode body: ..."},
		{"PUT", "/v1/var/l?lock-acquire", `{"Lock":{"ID":"mine","TTL":20000000000}}`, 200,
			`{"Namespace":"default","Path":"l",..."Lock":{"ID":"mine","TTL":"20s","LockDelay":"15s"}}`},
		{"PUT", "/v1/var/l?lock-acquire", "{}", 409, `{"Namespace":"default","Path":"l` + nothing},
		{"PUT", "/v1/var/l?lock-renew", `{"Lock":{"ID":"mine"}}`, 200,
			`{"Namespace":"default","Path":"l",..."Lock":{"ID":"mine",...`},
		{"PUT", "/v1/var/l?lock-renew", `{"Lock":{"ID":"x"}}`, 409, "attempting to modify locked variable"},
		{"PUT", "/v1/var/l?lock-renew", "{}", 400, "missing lock ID"},
		{"PUT", "/v1/var/l", items, 409, `{"Namespace":"default","Path":"l` + nothing},
		{"PUT", "/v1/var/l", `{"Items":{"k":"v"},"Lock":{"ID":"x"}}`, 409, `{"Namespace":"default","Path":"l` + nothing},
		{"PUT", "/v1/var/l", `{"Items":{"k":"v"},"Lock":{"ID":"mine"}}`, 200,
			`{"Namespace":"default","Path":"l",..."Lock":{"ID":"mine",...`},
		{"DELETE", "/v1/var/l", "", 409, `{"Namespace":"default","Path":"l` + nothing},
		{"PUT", "/v1/var/l?lock-release", "{}", 400, "missing lock information"},
		{"PUT", "/v1/var/l?lock-release", `{"Items":{"k":"v"},"Lock":{"ID":"mine"}}`, 400,
			"lock release operation doesn't take variable items"},
		{"PUT", "/v1/var/l?lock-release", `{"Lock":{"ID":"x"}}`, 409, `{"Namespace":"default","Path":"l` + nothing},
		{"PUT", "/v1/var/l?lock-release", `{"Lock":{"ID":"mine"}}`, 200,
			`{"Namespace":"default","Path":"l",..."ModifyTime":...}`},
		{"PUT", "/v1/var/l?lock-release", `{"Lock":{"ID":"mine"}}`, 409, "variable doesn't hold a lock"},
		{"DELETE", "/v1/var/l", "", 204, ""},
		{"GET", "/v1/vars?filter=Nope+is+empty", "", 400, "the filter can't be applied: ..."},
		{"GET", "/v1/vars?next_token=x", "", 400, "next_token must be..."},
	} {
		status, index, got := askOver(t, r.layout.OperatorSocket(testAllocID), r.file("operator.token"), c.method, c.path,
			c.body)
		if status != c.status || !pieces(got, c.want) {
			t.Errorf("%s %s %.80s = %d %.200q, want %d %q", c.method, c.path, c.body, status, got, c.status, c.want)
		}
		if found := status == 200 || status == 204 || c.want == "variable not found"; found && index == "" {
			t.Errorf("%s %s has no index", c.method, c.path)
		}
	}
}

// electionPolicy lets the task "server" use the variables of an election.
const electionPolicy = `
task "server" {
  variables {
    path "election/*" {
      capabilities = ["read", "write", "list"]
    }
  }
}
`

// TestLocks drives locks as the SDK does, over a task's socket, against another process that wants the same lock from
// the command line.
func TestLocks(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	policy := writeFile(t, filepath.Join(t.TempDir(), "policy.hcl"), electionPolicy)
	r := startRun(t, dir, testJob, "-o", "allow_shared_user=true", "--policy", policy)
	operator := r.operator()
	task := r.task()

	v := api.Variable{Path: "election/leader", Lock: &api.VariableLock{TTL: "10s", LockDelay: "1s"}}
	mine := must.Get(task.Locks(api.WriteOptions{}, v))(t)
	if path, err := mine.Acquire(t.Context()); path != v.Path || err != nil {
		t.Fatalf("acquire = %q, %v", path, err)
	}
	others := must.Get(operator.Locks(api.WriteOptions{}, v))(t)
	if _, err := others.Acquire(t.Context()); !errors.Is(err, api.ErrLockConflict) {
		t.Errorf("another acquires: %v", err)
	}
	if err := others.Renew(t.Context()); err == nil {
		t.Error("another renews")
	}
	must.OK(t, mine.Renew(t.Context()))
	if seen, _, err := operator.Variables().Read(v.Path, nil); err != nil || seen.Lock == nil || seen.Lock.TTL != "10s" {
		t.Errorf("the operator sees %+v, %v", seen, err)
	}
	if seen, _, err := task.Variables().Read(v.Path, nil); err != nil || seen.Lock != nil {
		t.Errorf("the task sees %+v, %v", seen, err)
	}
	var out polltest.Log
	if code := cli.Run(t.Context(), []string{"var", "lock", "-data-dir", dir, "-early-return", v.Path, "echo"},
		testEnvironment(&out, &out)); code != base.ExitOwn {
		t.Errorf("var lock: exit code %d\n%s", code, out.String())
	}
	must.OK(t, mine.Release(t.Context()))
	if err := mine.Release(t.Context()); !errors.Is(err, api.ErrLockConflict) {
		t.Errorf("released twice: %v", err)
	}

	leaser := task.NewLockLeaser(mine, api.LockLeaserOptionWithEarlyReturn(true))
	led := false
	err := leaser.Start(t.Context(), func(context.Context) error {
		led = true
		if _, err := others.Acquire(t.Context()); !errors.Is(err, api.ErrLockConflict) {
			t.Errorf("another acquires what the leader holds: %v", err)
		}
		return nil
	})
	if !led || err != nil {
		t.Errorf("led: %v, %v", led, err)
	}
	if _, err := others.Acquire(t.Context()); err != nil {
		t.Errorf("after the leader: %v", err)
	}
	for _, path := range []string{"elections", "nomad/jobs/demo"} {
		if _, _, err := task.Variables().AcquireLock(&api.Variable{Path: path}, nil); err == nil ||
			!strings.Contains(err.Error(), "403 (Permission denied)") {
			t.Errorf("a lock on %s: %v", path, err)
		}
	}
	if _, err := task.Variables().Delete(v.Path, nil); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("deleted without destroy: %v", err)
	}
}

// TestVariablesWithoutKeyRing: variables whose key ring is gone are not said to be none, and none is said to be purged.
func TestVariablesWithoutKeyRing(t *testing.T) {
	dir := t.TempDir()
	run := func(args ...string) (code int, printed string) {
		var out bytes.Buffer
		environment := testEnvironment(&out, &out)
		environment.Stdin = strings.NewReader("v")
		code = cli.Run(t.Context(), append([]string{"var", args[0], "-data-dir", dir}, args[1:]...), environment)
		return code, out.String()
	}
	if code, printed := run("list"); code != base.ExitOK || strings.TrimSpace(printed) != "No matching variables found" {
		t.Errorf("where there have never been any: %d %s", code, printed)
	}
	if code, printed := run("put", "a/b", "k=-"); code != base.ExitOK {
		t.Fatal(printed)
	}
	must.OK(t, os.Rename(filepath.Join(dir, "keyring"), filepath.Join(dir, "elsewhere")))
	for _, args := range [][]string{{"list"}, {"get", "a/b"}, {"purge", "a/b"}} {
		if code, printed := run(args...); code == base.ExitOK || !strings.Contains(printed, "keyring is gone") {
			t.Errorf("%s: %d %s", args, code, printed)
		}
	}
}
