package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// deadline is when a test gives up on something that should have happened long before.
var deadline = polltest.Deadline()

const testAllocID = "115ef685-6b9e-3eaf-e74b-6b04f094ebca"

// testJob is a group with a prestart task, a server with checks, and a task with identities of every kind.
const testJob = `
variable "greeting" { default = "hello" }
job "demo" {
  type = "service"
  group "web" {
    network {
      port "http" {}
    }
    service {
      name     = "web"
      port     = "http"
      provider = "nomad"
      check {
        name     = "answers"
        type     = "http"
        path     = "/"
        interval = "1s"
        timeout  = "1s"
      }
      check {
        name     = "listens"
        type     = "tcp"
        interval = "1s"
        timeout  = "1s"
      }
    }
    task "init" {
      driver = "raw_exec"
      lifecycle {
        hook = "prestart"
      }
      config {
        command = "/bin/sh"
        args    = ["-c", "echo ${var.greeting} from ${NOMAD_TASK_NAME}"]
      }
    }
    task "server" {
      driver = "raw_exec"
      identity {
        env  = true
        file = true
      }
      identity {
        name = "vault"
        aud  = ["vault.io"]
        ttl  = "1h"
        file = true
      }
      config {
        command = "TESTBINARY"
        args    = ["-test.run=^$"]
      }
      env {
        TASKAPI_TEST_SERVE = "127.0.0.1:${NOMAD_PORT_http}"
      }
    }
    task "other" {
      driver = "raw_exec"
      identity {
        file = true
      }
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
    }
  }
}
`

// serveForTest is the test binary as the test job's server.
func serveForTest(addr string) {
	err := http.ListenAndServe(addr, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "hello")
	}))
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// syncBuffer is a buffer that a program writes and a test reads.
type syncBuffer struct {
	mu  sync.Mutex // guards the field below
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// running is taskapi run in this process.
type running struct {
	t              *testing.T
	layout         datadir.Dir
	stdout, stderr syncBuffer
	cancel         context.CancelFunc
	code           chan int
}

// shortDir returns a directory whose sockets ordinary clients can dial: the SDK and net.Dial take 107 bytes.
func shortDir(t *testing.T) string {
	t.Helper()
	dir := must.Get(os.MkdirTemp("", "t"))(t)
	t.Cleanup(func() {
		for pid := range belongingTo(dir) { // what a test that failed has left running
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
		os.RemoveAll(dir)
	})
	return dir
}

// self returns the path of this program, which is taskapi with TASKAPI_TEST_MAIN in its environment.
func self(t *testing.T) string {
	t.Helper()
	path := must.Get(os.Executable())(t)
	return path
}

func writeFile(t *testing.T, path, content string) string {
	t.Helper()
	must.OK(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func jobFile(t *testing.T, job string) string {
	t.Helper()
	return writeFile(t, filepath.Join(t.TempDir(), "job.nomad.hcl"), job)
}

// startRun writes the job file and runs it, with more arguments than the data directory and the ID.
func startRun(t *testing.T, dataDir, job string, args ...string) *running {
	t.Helper()
	file := jobFile(t, strings.ReplaceAll(job, "TESTBINARY", self(t)))
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{t: t, layout: datadir.Dir(dataDir), cancel: cancel, code: make(chan int, 1)}
	args = append([]string{"run", "-data-dir", dataDir, "-alloc-id", testAllocID}, append(args, file)...)
	go func() { r.code <- cli.Run(ctx, args, testEnvironment(&r.stdout, &r.stderr)) }()
	t.Cleanup(func() { r.stop() })
	return r
}

// stop ends the run and gives its exit code, also when called again.
func (r *running) stop() int {
	r.t.Helper()
	r.cancel()
	select {
	case code := <-r.code:
		r.code <- code
		return code
	case <-time.After(deadline):
		r.t.Fatalf("taskapi run does not end:\n%s%s", r.stdout.String(), r.stderr.String())
		return 0
	}
}

// eventually waits for something that another process brings about.
func (r *running) eventually(what string, ok func() bool) {
	r.t.Helper()
	for give := time.Now().Add(deadline); time.Now().Before(give); {
		if ok() {
			return
		}
		select {
		case code := <-r.code:
			r.code <- code
			r.t.Fatalf("ended with %d before %s:\n%s%s", code, what, r.stdout.String(), r.stderr.String())
		case <-time.After(20 * time.Millisecond): // another process's doing can only be polled for
		}
	}
	r.t.Fatalf("never %s:\n%s%s", what, r.stdout.String(), r.stderr.String())
}

func (r *running) allocDir(parts ...string) string {
	return filepath.Join(append([]string{r.layout.Alloc(testAllocID)}, parts...)...)
}

func (r *running) file(parts ...string) string {
	r.t.Helper()
	data := must.Read(r.t, r.allocDir(parts...))
	return string(data)
}

// client returns the unmodified SDK on a socket.
func (r *running) client(addr, token string) *api.Client {
	r.t.Helper()
	config := api.DefaultConfig()
	config.Address, config.SecretID = "unix://"+addr, token
	client, err := api.NewClient(config)
	must.OK(r.t, err)
	r.t.Cleanup(client.Close)
	return client
}

// operator returns the SDK as the operator, once the allocation runs.
func (r *running) operator() *api.Client {
	r.t.Helper()
	r.eventually("running", func() bool {
		out := r.stdout.String()
		return strings.Contains(out, "server      Started") && strings.Contains(out, "other       Started")
	})
	return r.client(r.layout.OperatorSocket(testAllocID), r.file("operator.token"))
}

// task returns the SDK as the server task, over its own socket.
func (r *running) task() *api.Client {
	r.t.Helper()
	return r.client(r.allocDir("server", "secrets", "api.sock"), r.file("server", "secrets", "nomad_token"))
}

// TestSDK walks every endpoint with the official SDK, as the operator and as a task.
func TestSDK(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), testJob)
	operator := r.operator()
	for _, tc := range []struct {
		who    string
		client *api.Client
	}{{"operator", operator}, {"task", r.task()}} {
		t.Run(tc.who, func(t *testing.T) { walk(t, r, tc.client) })
	}
	if code := r.stop(); code != base.ExitOK {
		t.Errorf("exit code %d after a stop, want 0:\n%s", code, r.stdout.String())
	}
}

func walk(t *testing.T, r *running, client *api.Client) {
	t.Helper()
	health, err := client.Agent().Health()
	if err != nil || !health.Client.Ok || !health.Server.Ok {
		t.Errorf("health: %+v, %v", health, err)
	}
	self, err := client.Agent().Self()
	if err != nil || self.Stats["client"]["node_id"] == "" {
		t.Errorf("self: %+v, %v", self, err)
	}
	if leader, err := client.Status().Leader(); err != nil || leader == "" {
		t.Errorf("leader: %q, %v", leader, err)
	}
	stubs, _, err := client.Allocations().PrefixList(testAllocID[:8])
	if err != nil || len(stubs) != 1 || stubs[0].ID != testAllocID {
		t.Fatalf("allocations: %+v, %v", stubs, err)
	}
	if stubs, _, err := client.Allocations().PrefixList("ffffffff"); err != nil || len(stubs) != 0 {
		t.Errorf("allocations with another prefix: %+v, %v", stubs, err)
	}
	alloc, meta, err := client.Allocations().Info(testAllocID, nil)
	if err != nil || alloc.Name != "demo.web[0]" || *alloc.Job.ID != "demo" ||
		len(alloc.AllocatedResources.Shared.Ports) != 1 || meta.LastIndex == 0 {
		t.Fatalf("allocation: %+v, %v", alloc, err)
	}
	r.eventually("checks succeed", func() bool {
		results, err := client.Allocations().Checks(testAllocID, nil)
		healthy := 0
		for _, c := range results {
			if c.Status == "success" && c.Group == "demo.web[0]" && c.Service == "web" {
				healthy++
			}
		}
		return err == nil && healthy == 2
	})
	askForMore(t, client, alloc)
	restartAndSignal(t, r, client, alloc)
}

// askForMore asks for what an allocation has none of, or not yet, and lists it with every query option.
func askForMore(t *testing.T, client *api.Client, alloc *api.Allocation) {
	t.Helper()
	for options, want := range map[*api.QueryOptions]int{
		{Filter: `ClientStatus == "running" and "server" in TaskStates and Job.Type == "service"`}:               1,
		{Filter: `ClientStatus == "complete"`}:                                                                   0,
		{Prefix: testAllocID[:3], PerPage: 1, Reverse: true, Namespace: "*", AllowStale: true, Region: "global"}: 1,
		{Params: map[string]string{"resources": "true", "task_states": "false"}}:                                 1,
	} {
		if stubs, meta, err := client.Allocations().List(options); err != nil || len(stubs) != want || meta.NextToken != "" {
			t.Errorf("allocations with %+v: %+v, %+v, %v, want %d", *options, stubs, meta, err, want)
		}
	}
	if services, _, err := client.Allocations().Services(alloc.ID, nil); err != nil || len(services) != 1 ||
		services[0].AllocID != alloc.ID {
		t.Errorf("services: %+v, %v, want the group's", services, err)
	}
	if state, _, err := client.Allocations().GetPauseState(alloc, nil, "server"); err != nil || state != "" {
		t.Errorf("pause state: %q, %v", state, err)
	}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"a gc": {client.Allocations().GC(alloc, nil),
			"409 (No such allocation on client, or allocation not eligible for GC)"},
		"a bad filter": {second(client.Allocations().List(&api.QueryOptions{Filter: "=="})),
			"400 (failed to read filter expression"},
		"a far region": {second(client.Allocations().List(&api.QueryOptions{Region: "mars"})), "400 (No path to region)"},
		"a bad token": {second(client.Allocations().List(&api.QueryOptions{NextToken: "x"})),
			"400 (next_token must be as X-Nomad-NextToken gave it"},
		"a bad page": {second(client.Allocations().List(&api.QueryOptions{PerPage: -1})),
			"400 (per_page must be a whole number"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, c.err, c.want)
		}
	}
}

func second(_ []*api.AllocationListStub, _ *api.QueryMeta, err error) error { return err }

// restartAndSignal does what changes something, and everything about it that a caller may get wrong.
func restartAndSignal(t *testing.T, r *running, client *api.Client, alloc *api.Allocation) {
	t.Helper()
	before := alloc.TaskStates["server"].Restarts
	must.OK(t, client.Allocations().Restart(alloc, "server", nil))
	r.eventually("restarted", func() bool {
		now, _, err := client.Allocations().Info(testAllocID, nil)
		s := now.TaskStates["server"]
		return err == nil && s.Restarts == before+1 && s.State == "running"
	})
	if err := client.Allocations().Signal(alloc, nil, "other", "SIGCONT"); err != nil {
		t.Errorf("signal: %v", err)
	}
	now, _, err := client.Allocations().Info(testAllocID, nil)
	must.OK(t, err)
	if !slices.ContainsFunc(now.TaskStates["other"].Events, func(e *api.TaskEvent) bool { return e.Type == "Signaling" }) {
		t.Errorf("no Signaling among the events of other right after the signal")
	}
	must.OK(t, client.Allocations().SetPauseState(alloc, nil, "other", "pause"))
	r.eventually("stopped", func() bool {
		now, _, err := client.Allocations().Info(testAllocID, nil)
		return err == nil && now.TaskStates["other"].State == "pending" && now.ClientStatus == "running"
	})
	if state, _, err := client.Allocations().GetPauseState(alloc, nil, "other"); err != nil || state != "force_pause" {
		t.Errorf("pause state: %q, %v", state, err)
	}
	if err := client.Allocations().Restart(alloc, "other", nil); err == nil || !strings.Contains(err.Error(), "409") {
		t.Errorf("restart of a stopped task: %v", err)
	}
	must.OK(t, client.Allocations().SetPauseState(alloc, nil, "other", "scheduled"))
	r.eventually("started", func() bool {
		now, _, err := client.Allocations().Info(testAllocID, nil)
		return err == nil && now.TaskStates["other"].State == "running"
	})
	nobody := *alloc
	nobody.ID = strings.Replace(testAllocID, "1", "2", 1)
	for _, tc := range []struct {
		name, want string
		err        error
	}{
		{"restart of an unknown task", "404 (Could not find task runner for task: nope)",
			client.Allocations().Restart(alloc, "nope", nil)},
		{"restart of a dead task", "409 (Task not running)", client.Allocations().Restart(alloc, "init", nil)},
		{"signal to an unknown task", "404 (Task not found)", client.Allocations().Signal(alloc, nil, "nope", "SIGHUP")},
		{"signal to a dead task", "409 (Task not running)", client.Allocations().Signal(alloc, nil, "init", "SIGHUP")},
		{"unknown signal", `400 (unknown signal "SIGNOPE")`, client.Allocations().Signal(alloc, nil, "server", "SIGNOPE")},
		{"another allocation", fmt.Sprintf("404 (Unknown allocation %q)", nobody.ID),
			client.Allocations().Restart(&nobody, "", nil)},
	} {
		if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %s", tc.name, tc.err, tc.want)
		}
	}
}

// TestBlockingQuery is answered by the change that it waits for.
func TestBlockingQuery(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), testJob)
	client := r.operator()
	alloc, meta, err := client.Allocations().Info(testAllocID, nil)
	must.OK(t, err)
	type answer struct {
		meta *api.QueryMeta
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		_, next, err := client.Allocations().Info(testAllocID, &api.QueryOptions{WaitIndex: meta.LastIndex,
			WaitTime: deadline})
		answers <- answer{next, err}
	}()
	must.OK(t, client.Allocations().Signal(alloc, nil, "other", "SIGCONT"))
	if a := <-answers; a.err != nil || a.meta.LastIndex <= meta.LastIndex {
		t.Errorf("got %+v, %v; want an index above %d", a.meta, a.err, meta.LastIndex)
	}
}

// TestOnlyTheOwnerGetsIn holds that a token opens the socket of its own task and no other.
func TestOnlyTheOwnerGetsIn(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), testJob)
	r.operator()
	r.eventually("both sockets", func() bool {
		_, err := os.Stat(r.allocDir("other", "secrets", "api.sock"))
		return err == nil
	})
	server, operator := r.allocDir("server", "secrets", "api.sock"), r.layout.OperatorSocket(testAllocID)
	tokens := map[string]string{
		"none":     "",
		"garbage":  "garbage",
		"server":   r.file("server", "secrets", "nomad_token"),
		"other":    r.file("other", "secrets", "nomad_token"),
		"vault":    r.file("server", "secrets", "nomad_vault.jwt"),
		"operator": r.file("operator.token"),
	}
	for _, tc := range []struct {
		socket, token, want string
	}{
		{server, "none", "401 (Unauthorized)"},
		{server, "garbage", "403 (Forbidden)"},
		{server, "other", "403 (Forbidden)"},
		{server, "vault", "403 (Forbidden)"},
		{operator, "server", "403 (Forbidden)"},
		{server, "server", ""},
		{server, "operator", "403 (Forbidden: this operator's token is for another socket)"},
		{operator, "operator", ""},
	} {
		_, err := r.client(tc.socket, tokens[tc.token]).Status().Leader()
		if (tc.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("token %q on %s: got %v, want %q", tc.token, tc.socket, err, tc.want)
		}
	}
}

// TestFilesAreAsTheyShouldBe looks at modes and names that others rely on.
func TestFilesAreAsTheyShouldBe(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), testJob)
	r.operator()
	for path, want := range map[string]os.FileMode{
		"operator.sock":                  os.ModeSocket | 0o600,
		"operator.token":                 0o600,
		"state.db":                       0o600,
		"server/secrets":                 os.ModeDir | 0o700,
		"server/secrets/api.sock":        os.ModeSocket | 0o600,
		"server/secrets/nomad_token":     0o600,
		"server/secrets/nomad_vault.jwt": 0o600,
		"../../keyring":                  os.ModeDir | 0o700,
	} {
		info, err := os.Lstat(r.allocDir(path))
		if err != nil || info.Mode() != want {
			t.Errorf("%s: got %v, %v; want mode %v", path, info, err, want)
		}
	}
	r.eventually("init has written", func() bool {
		return r.file("alloc", "logs", "init.stdout.0") == "hello from init\n"
	})
	r.stop()
	for _, path := range []string{"operator.sock", "server/secrets/api.sock"} {
		if _, err := os.Lstat(r.allocDir(path)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left behind: %v", path, err)
		}
	}
}

// TestLongAndOddDataDirectories get sockets that ordinary clients can dial, by a short link.
func TestLongAndOddDataDirectories(t *testing.T) {
	t.Parallel()
	for name, dir := range map[string]string{
		"long":    strings.Repeat("d", 120),
		"a space": "data dir",
		"percent": "100%",
	} {
		t.Run(name, func(t *testing.T) {
			r := startRun(t, filepath.Join(shortDir(t), dir), strings.Replace(testJob, `args    = ["1000"]`, `args = ["1000"]
      }
      env {
        X = "y"`, 1), "-v")
			r.eventually("started", func() bool { return strings.Contains(r.stdout.String(), "server      Started") })
			pid := taskPID(t, r, "server")
			env := must.Read(t, fmt.Sprintf("/proc/%d/environ", pid))
			addr := variable(string(env), "NOMAD_UNIX_ADDR")
			if len(addr) > len("unix://")+107 || strings.ContainsAny(addr, " %") {
				t.Errorf("NOMAD_UNIX_ADDR is %q, which clients can't dial", addr)
			}
			if _, err := r.client(strings.TrimPrefix(addr, "unix://"),
				variable(string(env), "NOMAD_TOKEN")).Agent().Health(); err != nil {
				t.Error(err)
			}
		})
	}
}

// taskPID finds the process of a task by its environment.
func taskPID(t *testing.T, r *running, task string) int {
	t.Helper()
	found := 0
	r.eventually("process of "+task, func() bool {
		entries, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, e := range entries {
			env, err := os.ReadFile(e)
			if err == nil && variable(string(env), "NOMAD_TASK_NAME") == task &&
				strings.HasPrefix(variable(string(env), "NOMAD_ALLOC_DIR"), string(r.layout)) {
				fmt.Sscanf(e, "/proc/%d/environ", &found)
				return true
			}
		}
		return false
	})
	return found
}

func variable(environ, name string) string {
	for kv := range strings.SplitSeq(environ, "\x00") {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

// TestRawRequests sends what no SDK sends: every one is authenticated first.
func TestRawRequests(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), testJob)
	r.operator()
	for _, request := range []string{
		"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n",
		"BREW /v1/agent/health HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET //v1/../v1/agent/health HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		conn := must.Get(dialUnix(t, r.layout.OperatorSocket(testAllocID)))(t)
		must.Get(io.WriteString(conn, request))(t)
		head := make([]byte, len("HTTP/1.1 401"))
		if _, err := io.ReadFull(conn, head); err != nil || string(head) != "HTTP/1.1 401" {
			t.Errorf("%q: got %q, %v; want 401", request, head, err)
		}
	}
}
