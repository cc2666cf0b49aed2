package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"taskapi/allocrunner/datadir"
	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/internal/must"
	"taskapi/internal/proc"
)

// nextVersion is that of a taskapi which is built for a test.
const nextVersion = "99.0.0-next"

// buildNext builds a taskapi of another version, as a release would be: once for all tests.
func buildNext(t *testing.T) string {
	t.Helper()
	return must.Get(next())(t)
}

var next = sync.OnceValues(func() (string, error) {
	path := filepath.Join(programs, "next", "taskapi")
	return path, buildTaskapi(path, "-s -w -X main.version="+nextVersion)
})

// buildTaskapi builds it as `make build` does.
func buildTaskapi(path, ldflags string) error {
	build := exec.Command("go", "build", "-trimpath", "-ldflags", ldflags, "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// answeringVersion returns the version of the taskapi that answers on the operator's socket, empty when none does.
func answeringVersion(t *testing.T, dataDir string) string {
	t.Helper()
	c := client.New(datadir.Dir(dataDir), testAllocID)
	defer c.Close()
	var self struct {
		Stats struct{ Taskapi struct{ Version string } }
	}
	answer, err := c.Do(t.Context(), http.MethodGet, "/v1/agent/self", http.NoBody)
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	must.OK(t, json.NewDecoder(answer.Body).Decode(&self))
	return self.Stats.Taskapi.Version
}

// TestTakeOverOfOneThatHangs is given up before that hears of it: it would leave when it goes on, with nobody there to
// take over.
func TestTakeOverOfOneThatHangs(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := jobFile(t, chaosJob)
	p := startProcess(t, dir, file)
	c := &chaos{t: t, dataDir: dir, file: file, process: p}
	c.untilAtWork()
	must.OK(t, p.Process.Signal(syscall.SIGSTOP))
	var out, errs bytes.Buffer
	args := []string{"takeover", "-data-dir", dir}
	code := cli.Run(t.Context(), args, testEnvironment(&out, &errs))
	if code != base.ExitFailed || !strings.Contains(errs.String(), "is run by a taskapi that does not answer") {
		t.Errorf("exit code %d: %s%s", code, out.String(), errs.String())
	}
	must.OK(t, p.Process.Signal(syscall.SIGCONT))
	c.untilAnswers()
	if strings.Contains(p.out.String(), "Leaving") {
		t.Errorf("it leaves:\n%s", p.out)
	}
	c.end()
}

// TestUpgrade takes over from one version of taskapi with another, and back: after SIGUSR1, which leaves the tasks, and
// after a kill. A task and the holder of its token notice nothing.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	next := buildNext(t)
	dir := shortDir(t)
	file := jobFile(t, survivorJob)
	alloc := datadir.Dir(dir).Alloc(testAllocID)
	read := func(parts ...string) string {
		data, _ := os.ReadFile(filepath.Join(append([]string{alloc}, parts...)...))
		return string(data)
	}

	old := startProcess(t, dir, file)
	until(t, old, "both run", func() bool {
		return strings.Count(old.out.String(), " Started") == 2 && written(filepath.Join(alloc, "counter", "local", "pid"))
	})
	pid, token, operator := read("counter", "local", "pid"), read("counter", "secrets",
		"nomad_token"), read("operator.token")
	same := func(who string) {
		t.Helper()
		if read("counter", "local", "pid") != pid || read("counter", "secrets", "nomad_token") != token ||
			read("operator.token") != operator {
			t.Errorf("under %s the process or a token is another", who)
		}
	}
	must.OK(t, old.Process.Signal(syscall.SIGUSR1))
	if err := old.Wait(); err != nil || !strings.Contains(old.out.String(), "  Left ") {
		t.Fatalf("left: %v\n%s", err, old.out)
	}

	upgraded := startProgram(t, next, dir, file)
	until(t, upgraded, "the new one answers", func() bool { return answeringVersion(t, dir) == nextVersion })
	until(t, upgraded, "the task's socket answers to its token", func() bool {
		return taskAsks(alloc, "counter") == nil
	})
	same("the new version")
	kill(t, upgraded)

	back := startProcess(t, dir, file)
	until(t, back, "the old one answers", func() bool { return answeringVersion(t, dir) == version })
	until(t, back, "the task's socket answers to its token", func() bool { return taskAsks(alloc, "counter") == nil })
	same("the old version again")
	endsOf(t, back, syscall.SIGTERM)
	if left := processesOf(t, dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestStopOfOneThatIsFrozen says which process is, and stops nothing without --now; with it, process and tasks are
// killed.
func TestStopOfOneThatIsFrozen(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	p := startProcess(t, dir, jobFile(t, execJob))
	until(t, p, "both run", func() bool { return strings.Count(p.out.String(), " Started") == 2 })
	must.OK(t, p.Process.Signal(syscall.SIGSTOP))
	until(t, p, "the process is stopped", func() bool {
		stat, err := proc.Read(p.Process.Pid)
		return err == nil && stat.Stopped
	})
	said := fmt.Sprintf("process %d is stopped (SIGSTOP); 'kill -CONT %d' lets it go on, 'taskapi stop --now ",
		p.Process.Pid, p.Process.Pid)
	for _, command := range []string{"stop", "stop --detach", "status", "restart", "takeover", "exec --task server"} {
		var out, errs bytes.Buffer
		args := append(strings.Fields(command), "--data-dir", dir, testAllocID)
		want := base.ExitFailed
		if args[0] == "exec" {
			args, want = append(args, "--", "true"), base.ExitOwn
		}
		code := cli.Run(t.Context(), args, testEnvironment(&out, &errs))
		if code != want || out.Len() > 0 || !strings.Contains(errs.String(), said) {
			t.Errorf("%s: exit code %d: %s%s", command, code, out.String(), errs.String())
		}
	}
	if saved, err := datadir.Dir(dir).Peek(testAllocID); err != nil || saved.Alloc.DesiredStatus == "stop" {
		t.Errorf("%v, or it is being stopped", err)
	}
	out := taskapi(t, "stop", "--now", "--data-dir", dir)
	if !strings.Contains(out, fmt.Sprintf("process %d does not act on signals: killing it, and then the tasks\n",
		p.Process.Pid)) {
		t.Errorf("stop --now: %s", out)
	}
	if err := p.Wait(); err == nil {
		t.Error("the process was not killed")
	}
	if left := processesOf(t, dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if saved, err := datadir.Dir(dir).Peek(testAllocID); err != nil || !saved.Terminal {
		t.Errorf("%v, or its end is not saved", err)
	}
}
