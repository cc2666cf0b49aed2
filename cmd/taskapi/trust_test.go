package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/auth"
	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/identity"
	"taskapi/internal/must"
)

// cli runs a command that ends by itself and gives what it printed.
func taskapi(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := cli.Run(t.Context(), args, testEnvironment(&out, &errs)); code != base.ExitOK {
		t.Fatalf("taskapi %s: exit code %d: %s", strings.Join(args, " "), code, errs.String())
	}
	return out.String()
}

// TestAnotherIssuer trusts key sets for tasks, never for the operator, each for what it may vouch for: this
// allocation's job and task, under the issuer's name and for the audience that the flag says.
func TestAnotherIssuer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const iss = "https://nomad.example"
	ring := func(name string) *identity.Keyring {
		k := must.Get(identity.OpenKeyring(identity.KeyringConfig{Dir: filepath.Join(dir, name)}))(t)
		writeFile(t, filepath.Join(dir, name+".json"), string(k.JWKS()))
		return k
	}
	plain, bound := ring("plain"), ring("bound")
	policy := writeFile(t, filepath.Join(dir, "policy.hcl"), "namespace \"default\" {\n  policy = \"deny\"\n}\n")
	r := startRun(t, shortDir(t), testJob, "-o", "allow_shared_user=true", "--policy", policy, "-o",
		"identity.jwks="+filepath.Join(dir, "plain.json"),
		"-o", "identity.jwks="+filepath.Join(dir, "bound.json")+",iss="+iss+",aud=taskapi")
	r.operator()
	for _, test := range []struct {
		name   string
		ring   *identity.Keyring
		change func(*identity.Claims)
		want   int
	}{
		{"a task", plain, func(*identity.Claims) {}, 200},
		{"without sub", plain, func(c *identity.Claims) { c.Subject = "" }, 200},
		{"another job", plain, func(c *identity.Claims) { c.JobID, c.Subject = "x", "global:default:x:web:server:default" },
			403},
		{"another namespace", plain, func(c *identity.Claims) {
			c.Namespace, c.Subject = "x", "global:x:demo:web:server:default"
		}, 403},
		{"another group", plain, func(c *identity.Claims) { c.Subject = "global:default:demo:x:server:default" }, 403},
		{"another task", plain, func(c *identity.Claims) {
			c.Task, c.Subject = "other", "global:default:demo:web:other:default"
		}, 403},
		{"another life", plain, func(c *identity.Claims) { c.Life = "x" }, 403},
		{"the operator", plain, func(c *identity.Claims) {
			c.Role, c.Task, c.Subject = identity.RoleOperator, "", "global:default:demo:web::operator"
		}, 403},
		{"an issuer that was not named", plain, func(c *identity.Claims) { c.Issuer = iss }, 403},
		{"the issuer that was", bound, func(c *identity.Claims) { c.Issuer, c.Audience = iss, []string{"x", "taskapi"} },
			200},
		{"none", bound, func(c *identity.Claims) { c.Audience = []string{"taskapi"} }, 403},
		{"another", bound, func(c *identity.Claims) { c.Issuer, c.Audience = "https://x.example", []string{"taskapi"} }, 403},
		{"another audience", bound, func(c *identity.Claims) { c.Issuer = iss }, 403},
	} {
		claims := identity.Claims{
			Subject: "global:default:demo:web:server:default", Audience: []string{identity.DefaultAudience},
			ExpiresAt: time.Now().Add(time.Hour).Unix(), AllocationID: testAllocID, JobID: "demo", Namespace: "default",
			Task: "server",
		}
		test.change(&claims)
		token := must.Get(test.ring.Sign(claims))(t)
		addr := r.layout.TaskSocket(testAllocID, "server")
		if claims.Role == identity.RoleOperator {
			addr = r.layout.OperatorSocket(testAllocID)
		}
		if got := r.status(addr, token); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
		if got, err := statusOf(t.Context(), addr, token, "GET", "/v1/allocations"); err != nil || got != 403 {
			t.Errorf("%s: %d, %v for what the policy of the allocation's namespace takes away, want 403", test.name, got, err)
		}
	}
	plainToken := func() string {
		token := must.Get(plain.Sign(identity.Claims{
			Audience: []string{identity.DefaultAudience}, ExpiresAt: time.Now().Add(time.Hour).Unix(),
			AllocationID: testAllocID, JobID: "demo", Namespace: "default", Task: "server",
		}))(t)
		return token
	}()
	must.OK(t, os.Remove(filepath.Join(dir, "plain.json")))
	r.eventually("refused, when the key set has been removed for a while", func() bool {
		return r.status(r.layout.TaskSocket(testAllocID, "server"), plainToken) == 403
	})
}

// TestAuditOfReads: with the setting audit.reads each read has a line, and without it none has.
func TestAuditOfReads(t *testing.T) {
	t.Parallel()
	for reads, want := range map[string]bool{"true": true, "false": false} {
		log := filepath.Join(t.TempDir(), "audit.log")
		r := startRun(t, shortDir(t), testJob, "-o", "audit.path="+log, "-o", "audit.reads="+reads)
		for range 3 { // the last of the same bytes skips the parser
			asked(r.operator().Allocations().Info(testAllocID, nil))(t)
		}
		r.stop()
		content := must.Read(t, log)
		line := `"path":"/v1/allocation/` + testAllocID + `","outcome":"done","status":200`
		if got := strings.Count(string(content), line); got >= 3 != want {
			t.Errorf("reads = %s: %d lines of reads in\n%s", reads, got, content)
		}
	}
}

// TestAuditLogThatIsRenamed: it goes on in a new file.
func TestAuditLogThatIsRenamed(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "audit.log")
	dir := shortDir(t)
	p := startProcess(t, dir, jobFile(t, promptJob), "-o",
		"audit.path="+log)
	client := sdk(t, "unix://"+datadir.Dir(dir).OperatorSocket(testAllocID), "garbage")
	refused := 0
	refuse := func() bool {
		_, err := client.Status().Leader()
		answer, answered := errors.AsType[api.UnexpectedResponseError](err)
		if answered && answer.StatusCode() == http.StatusForbidden {
			refused++
			return true
		}
		return false
	}
	until(t, p, "garbage is refused", refuse)
	must.OK(t, os.Rename(log, log+".1"))
	until(t, p, "in the new file", func() bool {
		content, _ := os.ReadFile(log)
		return refuse() && len(content) > 0
	})
	endsOf(t, p, syscall.SIGTERM)
	recorded := 0
	for _, name := range []string{log, log + ".1"} {
		content, err := os.ReadFile(name)
		if err != nil || len(content) == 0 {
			t.Errorf("%s holds %q, %v", name, content, err)
		}
		for line := range bytes.Lines(content) {
			var record auth.Record
			if err := json.Unmarshal(line, &record); err != nil {
				t.Errorf("%s: %v", line, err)
			}
			if record.Outcome == auth.Denied {
				recorded += 1 + int(record.Suppressed)
			}
		}
	}
	if recorded != refused {
		t.Errorf("%d of %d refusals are recorded", recorded, refused)
	}
}

// TestNoChangeWithoutAudit: with audit.required a log on a full disk keeps changes from being made, and says so where
// an operator looks; the operator's stop is made.
func TestNoChangeWithoutAudit(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), testJob, "-o", "audit.path=/dev/full", "-o", "audit.required=true")
	operator := r.operator()
	alloc := asked(operator.Allocations().Info(testAllocID, nil))(t)
	for name, client := range map[string]*api.Client{"the operator": operator, "a task": r.task()} {
		if err := client.Allocations().Signal(alloc, nil, "other", "SIGKILL"); err == nil ||
			!strings.Contains(err.Error(), "503 (the audit log can't be written") {
			t.Errorf("a signal from %s: %v, want 503", name, err)
		}
	}
	text, err := operator.Operator().Metrics(&api.QueryOptions{Params: map[string]string{"format": "prometheus"}})
	if err != nil || !strings.Contains(string(text), "\ntaskapi_audit_lost_total 2\n") &&
		!strings.HasPrefix(string(text), "taskapi_audit_lost_total 2\n") {
		t.Errorf("the metrics, %v:\n%s", err, text)
	}
	r.eventually("logged", func() bool {
		log := r.stderr.String()
		return strings.Contains(log, "records are missing in the audit log") &&
			strings.Contains(log, "no space left on device")
	})
	if alloc, _, err = operator.Allocations().Info(testAllocID, nil); err != nil ||
		alloc.TaskStates["other"].Restarts != 0 {
		t.Errorf("%v: the signal was sent: %+v", err, alloc.TaskStates["other"])
	}
	if _, err := operator.Allocations().Stop(alloc, nil); err != nil {
		t.Errorf("stop by the operator: %v", err)
	}
	select {
	case code := <-r.code:
		r.code <- code
	case <-time.After(deadline):
		t.Error("it does not stop")
	}
}

// TestRenewedTokenIsNeverRefused reads the token's file before each request, over several lives of the token. A request
// has half a life's time.
func TestRenewedTokenIsNeverRefused(t *testing.T) {
	t.Parallel()
	job := strings.Replace(testJob, "        env  = true\n        file = true\n",
		"        file = true\n        ttl  = \"16s\"\n", 1)
	r := startRun(t, shortDir(t), job)
	r.operator()
	client, tokens := r.task(), map[string]bool{}
	r.eventually("three tokens used", func() bool {
		token := r.file("server", "secrets", "nomad_token")
		tokens[token] = true
		client.SetSecretID(token)
		if _, err := client.Status().Leader(); err != nil {
			t.Fatalf("after %d tokens: %v", len(tokens), err)
		}
		return len(tokens) == 3
	})
}
