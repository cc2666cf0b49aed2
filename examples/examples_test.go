// Package examples_test holds the examples to what they promise: each is valid, and the demo works from its first line
// to its last.
package examples_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"taskapi/internal/must"
)

// programs returns the folder of taskapi and the demo's programs, which are built once, as `make build` does.
func programs(t *testing.T) string {
	t.Helper()
	must.OK(t, buildPrograms())
	return bin
}

// onData returns how taskapi is run with a data directory. A command that fails fails the test.
func onData(t *testing.T, data string) func(args ...string) string {
	program := filepath.Join(programs(t), "taskapi")
	return func(args ...string) string {
		t.Helper()
		command := exec.Command(program, args...)
		command.Env = append(os.Environ(), "TASKAPI_DATA_DIR="+data)
		out, err := command.CombinedOutput()
		if err != nil {
			t.Errorf("%s: taskapi %s: %v\n%s", data, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
}

// bin is where the programs are. Another user may read it.
var bin string

var buildPrograms = sync.OnceValue(func() error {
	for name, pkg := range map[string]string{
		"taskapi": "taskapi/cmd/taskapi", "demo-server": "taskapi/examples/server",
		"demo-watcher": "taskapi/examples/watcher",
	} {
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(bin, name), pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
		}
	}
	return nil
})

func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // they mostly wait until allocations are healthy
	var err error
	if bin, err = os.MkdirTemp("", "examples"); err == nil {
		err = os.Chmod(bin, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(bin)
	os.Exit(code)
}

func TestExamples(t *testing.T) {
	bin := programs(t)
	files, err := filepath.Glob("*.nomad.hcl")
	files = append(files, "nomad-gateway/gateway.nomad.hcl")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples found: %v", err)
	}
	for _, file := range files {
		t.Run("validate "+file, func(t *testing.T) {
			onData(t, t.TempDir())("validate", file)
			if head, _, _ := strings.Cut(string(must.Read(t, file)), "job \""); !strings.Contains(head, " run ") &&
				file != "nomad-gateway/gateway.nomad.hcl" {
				t.Errorf("%s does not say how to run it", file)
			}
		})
	}
	for _, file := range []string{"batch.nomad.hcl", "identities.nomad.hcl", "ports.nomad.hcl"} {
		t.Run("run "+file, func(t *testing.T) { onData(t, t.TempDir())("run", file) })
	}
	for _, file := range []string{"variables.nomad.hcl", "services-caller.nomad.hcl"} {
		t.Run("stop "+file, func(t *testing.T) {
			taskapi := onData(t, must.ShortDir(t))
			taskapi("run", "-d", file)
			if out := taskapi("stop"); !strings.Contains(out, "Terminated        Exit Code: 143, Signal: 15") {
				t.Error(out)
			}
		})
	}
	t.Run("nomad-gateway without nomad", func(t *testing.T) {
		prove := exec.CommandContext(t.Context(), "go", "run", "./nomad-gateway", "-nomad", filepath.Join(bin, "nomad"))
		prove.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
		out, err := prove.CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), "FAILED: fork/exec ") || strings.Contains(string(out), "panic") {
			t.Errorf("%v:\n%s", err, out)
		}
	})
	t.Run("without curl", func(t *testing.T) {
		for _, script := range []string{"./demo.sh", "./services.sh"} {
			cmd := exec.CommandContext(t.Context(), must.Get(exec.LookPath("bash"))(t), script, bin)
			cmd.Env = []string{"PATH=" + t.TempDir()}
			if out, err := cmd.CombinedOutput(); err == nil || string(out) != script+" needs curl, which is not installed\n" {
				t.Errorf("%v:\n%s", err, out)
			}
		}
	})
	t.Run("services", func(t *testing.T) {
		out, err := exec.CommandContext(t.Context(), "./services.sh", bin).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "== done: ") {
			t.Errorf("%v:\n%s", err, out)
		}
	})
	t.Run("demo", func(t *testing.T) {
		out, err := exec.CommandContext(t.Context(), "./demo.sh", bin).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "== done: ") {
			t.Errorf("%v:\n%s", err, out)
		}
	})
}
