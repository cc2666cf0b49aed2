package examples_test

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"taskapi/internal/must"
)

// TestUnit does with the unit's command what systemd does: a crash is resumed with the task's process as it was,
// SIGTERM stops the allocation, and the next start runs it again.
func TestUnit(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for isolate_users")
	}
	packaging, err := filepath.Abs(filepath.Join(root, "packaging"))
	must.OK(t, err)
	unit := must.Read(t, filepath.Join(packaging, "systemd", "taskapi@.service"))
	bin := programs(t)
	match := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/taskapi (.*) /etc/taskapi/%i\.nomad\.hcl$`).FindSubmatch(
		unit)
	if match == nil {
		t.Fatal("the unit has no ExecStart for a job file")
	}
	data := must.ShortDir(t)
	must.OK(t, os.Chmod(data, 0o711)) // tasks of other users pass through
	// start runs the unit's command until the line that says what the allocation does.
	start := func(want string) (*exec.Cmd, io.Reader) {
		args := append(strings.Fields(string(match[1])), "--json", "hello.nomad.hcl")
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "taskapi"), args...)
		cmd.Env = append(os.Environ(), "TASKAPI_DATA_DIR="+data,
			"TASKAPI_CONFIG="+filepath.Join(packaging, "etc", "taskapi.hcl"))
		cmd.Stderr = t.Output()
		out := must.Get(cmd.StdoutPipe())(t)
		must.OK(t, cmd.Start())
		lines := bufio.NewReader(out)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("the command ended before it said %q: %v", want, err)
			}
			var event struct{ Type, Task string }
			if json.Unmarshal([]byte(line), &event) == nil && event.Type == want {
				return cmd, lines
			}
		}
	}
	// end sends a signal and waits for the command's end.
	end := func(cmd *exec.Cmd, out io.Reader, signal os.Signal) error {
		must.OK(t, cmd.Process.Signal(signal))
		_, _ = io.Copy(io.Discard, out)
		return cmd.Wait()
	}

	cmd, out := start("Started")
	first := greeter(t, data)
	if err := end(cmd, out, syscall.SIGKILL); err == nil {
		t.Fatal("SIGKILL did not end taskapi")
	}
	cmd, out = start("Resuming")
	if pid := greeter(t, data); pid != first {
		t.Errorf("the task is process %s after the crash, and was %s", pid, first)
	}
	if err := end(cmd, out, syscall.SIGTERM); err != nil {
		t.Errorf("the stop: %v", err)
	}
	cmd, out = start("Started")
	if err := end(cmd, out, syscall.SIGTERM); err != nil {
		t.Errorf("the stop of the second run: %v", err)
	}
}

// greeter returns the process of the task whose allocation is in the data directory.
func greeter(t *testing.T, data string) string {
	t.Helper()
	environs := must.Get(filepath.Glob("/proc/[0-9]*/environ"))(t)
	for _, path := range environs {
		env, _ := os.ReadFile(path)
		if strings.Contains(string(env), "NOMAD_ALLOC_DIR="+data) {
			cmdline, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			if strings.HasPrefix(string(cmdline), "/bin/sh\x00-c\x00while") {
				return filepath.Base(filepath.Dir(path))
			}
		}
	}
	t.Fatal("the task has no process")
	return ""
}
