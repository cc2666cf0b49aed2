// Package packaging_test holds what packaging/ makes to what docs/install.md promises, on machines of their own.
package packaging_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// whole is set by `make test-release`.
var whole = flag.Bool("release", false, "build whole releases, twice, and run the container image")

// deadline is far longer than any step takes.
var deadline = polltest.Deadline()

// command returns the command of a process that ends with the test.
func command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, name, args...)
}

// run runs a command and returns its standard output without the last newline.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := command(t, name, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s%s", name, args, err, out, errs.String())
	}
	return strings.TrimSuffix(string(out), "\n")
}

// release builds a release, or parts of one, as the Makefile does.
func release(t *testing.T, out string, env ...string) {
	t.Helper()
	// Without a deadline: a new machine compiles long.
	cmd := exec.CommandContext(t.Context(), "make", "-C", "..", "--silent", "release", "OUT="+out)
	cmd.Env = append(os.Environ(), env...)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make release: %v\n%s", err, text)
	}
}

// needMachine skips a test where no machine can be made.
func needMachine(t *testing.T, programs ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a machine of its own")
	}
	for _, program := range append(programs, "unshare", "nsenter", "findmnt") {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
}

const systemd = "/lib/systemd/systemd"

// machine is a copy of this machine under a systemd of its own. Its directory shared is /mnt there.
type machine struct {
	t      *testing.T
	dir    string
	init   *exec.Cmd
	output bytes.Buffer
	ended  chan error
}

// boot starts the machine that is in a directory.
func boot(t *testing.T, dir string) *machine {
	t.Helper()
	if _, err := os.Stat(systemd); err != nil {
		t.Skip("systemd is not installed")
	}
	m := &machine{t: t, dir: dir, ended: make(chan error, 1)}
	_ = os.Remove(filepath.Join(dir, "pid"))
	m.init = exec.Command("./machine", dir, systemd, "--log-target=console", "--show-status=false")
	m.init.Stdout, m.init.Stderr = &m.output, &m.output
	must.OK(t, m.init.Start())
	go func() { m.ended <- m.init.Wait() }()
	t.Cleanup(m.kill)
	m.until("it has booted", func() bool {
		select {
		case err := <-m.ended:
			m.init = nil
			if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 3 {
				t.Skipf("no machine can be made here: %s", &m.output)
			}
			t.Fatalf("the machine ended: %v\n%s", err, &m.output)
		default:
		}
		pid, err := os.ReadFile(filepath.Join(dir, "pid"))
		if err != nil || len(pid) == 0 {
			return false
		}
		state, _ := m.try("systemctl is-system-running")
		return strings.HasPrefix(state, "running") || strings.HasPrefix(state, "degraded")
	})
	return m
}

// kill ends the machine as a power cut does.
func (m *machine) kill() {
	if m.init == nil {
		return
	}
	if pid, err := os.ReadFile(filepath.Join(m.dir, "pid")); err == nil {
		_ = exec.Command("kill", "-KILL", strings.TrimSpace(string(pid))).Run()
	}
	<-m.ended
	m.init = nil
}

// off shuts the machine down.
func (m *machine) off() {
	m.t.Helper()
	_, _ = m.try("systemctl poweroff") // the answer may be lost
	select {
	case <-m.ended:
		m.init = nil
	case <-time.After(deadline):
		m.t.Fatalf("the machine does not shut down\n%s", &m.output)
	}
}

// try runs a shell script in the machine and returns its output.
func (m *machine) try(script string) (string, error) {
	m.t.Helper()
	pid := must.Read(m.t, filepath.Join(m.dir, "pid"))
	cmd := command(m.t, "nsenter", "--target", strings.TrimSpace(string(pid)), "--mount", "--uts", "--ipc", "--pid",
		"--cgroup", "--root", "--wd", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
		"DEBIAN_FRONTEND=noninteractive", "sh", "-ec", script)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return strings.TrimSuffix(string(out), "\n"), err
}

// run runs a shell script in the machine, which must succeed.
func (m *machine) run(script string) string {
	m.t.Helper()
	out, err := m.try(script)
	if err != nil {
		journal, _ := m.try("journalctl --no-pager --lines 50")
		m.t.Fatalf("%s: %v\n%s\n%s", script, err, out, journal)
	}
	return out
}

// until waits for a condition.
func (m *machine) until(what string, ok func() bool) {
	m.t.Helper()
	if !polltest.Until(ok) {
		journal := ""
		if m.init != nil {
			journal, _ = m.try("journalctl --no-pager --lines 50")
		}
		m.t.Fatalf("never: %s\n%s", what, journal)
	}
}

// property returns what systemd knows of a unit.
func (m *machine) property(unit, name string) string {
	m.t.Helper()
	return m.run(fmt.Sprintf("systemctl show --value --property %s %s", name, unit))
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !polltest.Until(ok) {
		t.Fatalf("never: %s", what)
	}
}

// architecture is this machine's.
func architecture() string { return runtime.GOARCH }
