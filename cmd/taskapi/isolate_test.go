package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"taskapi/allocrunner/datadir"
	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/internal/disktest"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

const isolatedJob = `
job "isolated" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo $$ >local/pid; exec sleep 1000"]
      }
    }
  }
}
`

// TestIsolatedTasksOnAFullDisk: a taskapi that was killed goes on with the allocation, whose tasks keep their users.
func TestIsolatedTasksOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives users to tasks")
	}
	t.Parallel()
	small := disktest.Mount(t, "size=8m,mode=711")
	dir := small.Dir
	file := jobFile(t, isolatedJob)
	pidFile := filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "t", "local", "pid")
	first := startProcess(t, dir, file, "--isolate-users")
	until(t, first, "it runs", func() bool { return written(pidFile) })
	pid, _ := os.ReadFile(pidFile)
	kill(t, first)
	small.Fill()

	second := startProcess(t, dir, file, "--isolate-users")
	until(t, second, "it goes on", func() bool {
		var out polltest.Log // while it starts, it may not answer
		code := cli.Run(t.Context(), []string{"status", "--data-dir", dir}, testEnvironment(&out, &out))
		return code == base.ExitOK && strings.Contains(out.String(), "]  running  ")
	})
	if !alive(pid) {
		t.Errorf("the task has not run on:\n%s", second.out)
	}
	small.Empty()
	taskapi(t, "stop", "--data-dir", dir, testAllocID)
	if err := second.Wait(); err != nil {
		t.Errorf("%v:\n%s", err, second.out)
	}
}

// TestAUserThatIsAnothersByNow: after a restart of the machine, when no task runs and nothing is known of who has which
// number, a task does not get its number back while somebody else's process has it.
func TestAUserThatIsAnothersByNow(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives users to tasks")
	}
	t.Parallel()
	dir := shortDir(t)
	if err := os.Chmod(dir, 0o711); err != nil { // tasks of other users pass through
		t.Fatal(err)
	}
	file := jobFile(t, isolatedJob)
	alloc := datadir.Dir(dir).Alloc(testAllocID)
	number := func() uint32 {
		var list struct{ Tasks map[string]uint32 }
		text, err := os.ReadFile(filepath.Join(alloc, "users.json"))
		if err == nil {
			err = json.Unmarshal(text, &list)
		}
		must.OK(t, err)
		return list.Tasks["t"]
	}
	first := startProcess(t, dir, file, "--isolate-users")
	until(t, first, "it runs", func() bool { return written(filepath.Join(alloc, "t", "local", "pid")) })
	was := number()
	kill(t, first)
	killKeeper(t, dir)
	until(t, first, "nothing of it runs", func() bool { return len(processesOf(t, dir)) == 0 })
	must.OK(t, os.Remove(fmt.Sprintf("/run/taskapi/users/%d", was)))
	other := exec.Command("/bin/sleep", "1000")
	other.Dir = "/"
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: was, Gid: was},
		Pdeathsig: syscall.SIGKILL}
	must.OK(t, other.Start())
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()

	second := startProcess(t, dir, file, "--isolate-users")
	until(t, second, "has the task another user", func() bool { return number() != was && number() != 0 })
	taskapi(t, "stop", "--now", "--data-dir", dir, testAllocID)
	_ = second.Wait() // the task could not start in a directory that is another's
}

// TestTasksThatWereIsolated, of which both what says so and their users can't be read any more, do not go on as root's:
// they are left as they are until somebody says what is to be.
func TestTasksThatWereIsolated(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives users to tasks")
	}
	t.Parallel()
	dir := shortDir(t)
	if err := os.Chmod(dir, 0o711); err != nil { // tasks of other users pass through
		t.Fatal(err)
	}
	file := jobFile(t, isolatedJob)
	alloc := datadir.Dir(dir).Alloc(testAllocID)
	first := startProcess(t, dir, file, "--isolate-users")
	until(t, first, "it sleeps", func() bool {
		return slices.ContainsFunc(processesOf(t, dir), func(process string) bool {
			_, args, _ := strings.Cut(process, " ")
			return strings.HasPrefix(args, "sleep 1000")
		})
	})
	kill(t, first)
	running := processesOf(t, dir)
	writeFile(t, filepath.Join(alloc, "users.json"), "no JSON")
	must.OK(t, os.Remove(filepath.Join(alloc, "settings.json")))

	second := startProcess(t, dir, file)
	if err := second.Wait(); err == nil || !strings.Contains(second.out.String(), "stop the allocation or") {
		t.Errorf("%v: %s", err, second.out)
	}
	if now := processesOf(t, dir); !slices.Equal(now, running) {
		t.Errorf("the processes %v ran, and now %v do", running, now)
	}
	taskapi(t, "stop", "--data-dir", dir, testAllocID)
	if now := processesOf(t, dir); len(now) > 0 {
		t.Errorf("stopped, and %v run", now)
	}
}
