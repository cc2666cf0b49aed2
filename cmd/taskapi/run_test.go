package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/cmd/taskapi/internal/cli"
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

// running is taskapi run in this process.
type running struct {
	t              *testing.T
	layout         datadir.Dir
	stdout, stderr polltest.Log
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
	return must.Get(os.Executable())(t)
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
	return string(must.Read(r.t, r.allocDir(parts...)))
}

// client returns the unmodified SDK on a socket.
func (r *running) client(addr, token string) *api.Client {
	r.t.Helper()
	return sdk(r.t, "unix://"+addr, token)
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
