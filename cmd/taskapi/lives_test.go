package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/identity"
	"taskapi/internal/must"
	"taskapi/socket"
)

// askForTest is the test binary as a caller: it sends the token of its standard input to a socket, and prints the
// status.
func askForTest(addr string) {
	token, err := io.ReadAll(os.Stdin)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	status, err := statusOf(context.Background(), addr, string(token), http.MethodGet, "/v1/agent/health")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(status)
	os.Exit(0)
}

// overUnix returns a client that has a connection of its own for each request to a Unix socket.
func overUnix(path string) *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return socket.Dial(ctx, path) }
	return &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
}

// send sends one request over a Unix socket.
func send(ctx context.Context, addr, token, method, path, body string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://local"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("X-Nomad-Token", strings.TrimSpace(token))
	return overUnix(addr).Do(request)
}

// statusOf returns the status of the answer to one request.
func statusOf(ctx context.Context, addr, token, method, path string) (int, error) {
	response, err := send(ctx, addr, token, method, path, "")
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// status fails the test when there is no answer.
func (r *running) status(addr, token string) int {
	r.t.Helper()
	return must.Get(statusOf(r.t.Context(), addr, token, http.MethodGet, "/v1/agent/health"))(r.t)
}

// statusAs is status for a process of another user.
func (r *running) statusAs(uid uint32, addr, token string) string {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), "TASKAPI_TEST_ASK="+addr)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Stdin = strings.NewReader(token)
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("as uid %d: %v: %s", uid, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestTokensAreForTheirSocket: each socket takes its own token alone. A task's identity for another program is of no
// use on any.
func TestTokensAreForTheirSocket(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), testJob)
	r.operator()
	sockets := map[string]string{
		"operator": r.layout.OperatorSocket(testAllocID),
		"server":   r.layout.TaskSocket(testAllocID, "server"),
		"other":    r.layout.TaskSocket(testAllocID, "other"),
	}
	tokens := map[string]string{
		"none":     "",
		"garbage":  "garbage",
		"operator": r.file("operator.token"),
		"server":   r.file("server", "secrets", "nomad_token"),
		"vault":    r.file("server", "secrets", "nomad_vault.jwt"),
		"other":    r.file("other", "secrets", "nomad_token"),
	}
	for on, addr := range sockets {
		for of, token := range tokens {
			want := http.StatusForbidden
			switch of {
			case on:
				want = http.StatusOK
			case "none":
				want = http.StatusUnauthorized
			}
			if got := r.status(addr, token); got != want {
				t.Errorf("the token of %s on the socket of %s: %d, want %d", of, on, got, want)
			}
		}
	}
	if got, err := statusOf(t.Context(), sockets["server"], tokens["operator"], http.MethodPut,
		"/v1/jobs"); got != http.StatusForbidden {
		t.Errorf("another job by the operator's token on a task's socket: %d, %v", got, err)
	}
}

// TestSocketsAreForTheirUsers: a good token is of no use to a third user, also where the owner of a socket has opened
// it to everybody.
func TestSocketsAreForTheirUsers(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become other users")
	}
	const nobody, stranger = 65534, 65533
	dir := shortDir(t)
	must.OK(t, os.Chmod(dir, 0o755)) // a way for everybody
	r := startRun(t, dir, strings.Replace(promptJob, "driver", "user = \"nobody\"\n      driver", 1))
	r.eventually("started", func() bool { return strings.Contains(r.stdout.String(), "Started") })
	operators, tasks := r.layout.OperatorSocket(testAllocID), r.layout.TaskSocket(testAllocID, "t")
	for path, mode := range map[string]os.FileMode{
		r.allocDir(): 0o755, r.allocDir("t"): 0o755, r.allocDir("t", "secrets"): 0o755, operators: 0o777, tasks: 0o777,
	} {
		must.OK(t, os.Chmod(path, mode))
	}
	operator, task := r.file("operator.token"), r.file("t", "secrets", "nomad_token")
	for _, test := range []struct {
		uid          uint32
		addr, token  string
		what, status string
	}{
		{0, operators, operator, "root on the operator's socket", "200"},
		{nobody, operators, operator, "the task's user on the operator's socket", "403"},
		{stranger, operators, operator, "another user on the operator's socket", "403"},
		{0, tasks, task, "root on the task's socket", "200"},
		{nobody, tasks, task, "the task's user on its socket", "200"},
		{stranger, tasks, task, "another user on the task's socket", "403"},
		{nobody, tasks, operator, "the task's user with the operator's token", "403"},
	} {
		if got := r.statusAs(test.uid, test.addr, test.token); got != test.status {
			t.Errorf("%s: %s, want %s", test.what, got, test.status)
		}
	}
	text, err := r.client(operators,
		operator).Operator().Metrics(&api.QueryOptions{Params: map[string]string{"format": "prometheus"}})
	if err != nil || !strings.Contains(string(text), `taskapi_door_refused_total{reason="wrong_peer"} 3`) {
		t.Errorf("the three are not counted: %v\n%s", err, text)
	}
}

// claimsIn returns the claims of a token, unverified.
func claimsIn(t *testing.T, token string) identity.Claims {
	t.Helper()
	return must.Get(identity.Check(token))(t).Claims
}

// TestTokensEndWithTheirLife: what a task was given is of no use to those who run under the same ID after it. The
// operator's token stays good for its hour, so that a client sees how an allocation is replaced.
func TestTokensEndWithTheirLife(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	old := map[string]bool{} // lives
	var operators, tasks []string
	check := func(r *running) {
		t.Helper()
		r.operator()
		operator, task := r.file("operator.token"), r.file("server", "secrets", "nomad_token")
		if claims := claimsIn(t, operator); claims.ExpiresAt-claims.IssuedAt > 3601 { // so one that leaked is soon worthless
			t.Errorf("the operator's token is good for %d seconds", claims.ExpiresAt-claims.IssuedAt)
		}
		for _, token := range []string{operator, task} {
			if life := claimsIn(t, token).Life; life == "" || old[life] {
				t.Errorf("a token is of life %q, want a new one", life)
			}
		}
		old[claimsIn(t, operator).Life] = true
		if got := claimsIn(t, task).Life; !old[got] {
			t.Errorf("the operator and the task are of different lives")
		}
		operatorSocket, taskSocket := r.layout.OperatorSocket(testAllocID), r.layout.TaskSocket(testAllocID, "server")
		if a, b := r.status(operatorSocket, operator), r.status(taskSocket, task); a != 200 || b != 200 {
			t.Errorf("in their life: %d and %d, want 200", a, b)
		}
		for i := range operators {
			if a, b := r.status(operatorSocket, operators[i]), r.status(taskSocket, tasks[i]); a != 200 || b != 403 {
				t.Errorf("tokens of an earlier life: the operator's gets %d, want 200; the task's gets %d, want 403", a, b)
			}
		}
		operators, tasks = append(operators, operator), append(tasks, task)
	}
	r := startRun(t, dir, testJob)
	check(r)
	if got := r.stop(); got != base.ExitOK {
		t.Fatalf("exit code %d", got)
	}
	r = startRun(t, dir, testJob, "-replace") // after its end
	check(r)
	next := strings.Replace(testJob, "1000", "1001", 1)
	file := writeFile(t, filepath.Join(t.TempDir(), "next.nomad.hcl"), strings.ReplaceAll(next, "TESTBINARY", self(t)))
	taskapi(t, "update", "-data-dir", dir, "-replace", testAllocID, file) // in its midst
	r.eventually("replaced", func() bool {
		_, out, _ := strings.Cut(r.stdout.String(), "Replacing")
		_, out, _ = strings.Cut(out, "Starting")
		return strings.Contains(out, "server      Started") && strings.Contains(out, "other       Started")
	})
	check(r)
	if len(old) != 3 {
		t.Errorf("%d lives, want 3", len(old))
	}
}

// trueJob ends at once.
const trueJob = `
job "true" {
  type = "batch"
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
`

// keyOf returns the key that a token was signed with.
func keyOf(t *testing.T, token string) string {
	t.Helper()
	u, err := identity.Check(token)
	if err != nil {
		return "" // it may just be written
	}
	return u.KeyID
}

// signingKey returns the key that the agent signs with.
func (r *running) signingKey(token string) string {
	r.t.Helper()
	alloc := struct{ SigningKeyID string }{}
	operator := r.client(r.layout.OperatorSocket(testAllocID), token)
	must.Get(operator.Raw().Query("/v1/allocation/"+testAllocID, &alloc, nil))(r.t)
	return alloc.SigningKeyID
}

// TestKeyBetweenTwoRotations: a token is good while its own key is there, though that is no longer the active one. With
// its key, it is replaced and refused.
func TestKeyBetweenTwoRotations(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	taskapi(t, "run", "-data-dir", dir, writeFile(t, filepath.Join(t.TempDir(), "make-ring.nomad.hcl"), trueJob))
	rotated := func() string {
		key, _, _ := strings.Cut(taskapi(t, "keyring", "rotate", "--data-dir", dir), " ")
		return key
	}
	first := rotated()
	r := startRun(t, dir, testJob)
	r.operator()
	operator, task := r.file("operator.token"), r.file("server", "secrets", "nomad_token")
	second := rotated() // and a task that starts now has a token of this one
	r.eventually("reloaded", func() bool { return r.signingKey(operator) == second })
	must.OK(t, r.client(r.layout.OperatorSocket(testAllocID),
		operator).Allocations().Restart(&api.Allocation{ID: testAllocID, NodeID: "x"}, "other", nil))
	r.eventually("restarted", func() bool { return keyOf(t, r.file("other", "secrets", "nomad_token")) == second })
	other := r.file("other", "secrets", "nomad_token")
	third := rotated()
	r.eventually("reloaded again", func() bool { return r.signingKey(operator) == third })
	taskapi(t, "keyring", "remove", "--data-dir", dir, second)
	r.eventually("replaced", func() bool { return r.file("other", "secrets", "nomad_token") != other })
	if got := r.status(r.layout.TaskSocket(testAllocID, "other"), r.file("other", "secrets", "nomad_token")); got != 200 {
		t.Errorf("the new token of the middle key's: %d", got)
	}
	if r.file("operator.token") != operator || r.file("server", "secrets", "nomad_token") != task {
		t.Error("tokens of a key that is there were replaced")
	}
	taskapi(t, "keyring", "remove", "--data-dir", dir, first)
	r.eventually("all replaced", func() bool {
		return r.file("operator.token") != operator && r.file("server", "secrets", "nomad_token") != task
	})
	if got := r.status(r.layout.OperatorSocket(testAllocID), r.file("operator.token")); got != 200 {
		t.Errorf("the operator's new token: %d", got)
	}
	if got := r.status(r.layout.OperatorSocket(testAllocID), operator); got != 403 {
		t.Errorf("the operator's token of a removed key: %d", got)
	}
}
