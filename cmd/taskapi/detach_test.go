package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/proc"
)

// openTerminal makes a terminal: what a window has of it, and what programs in the window have.
func openTerminal(t *testing.T) (window, programs *os.File) {
	t.Helper()
	window = must.Get(os.OpenFile("/dev/ptmx", os.O_RDWR, 0))(t)
	must.OK(t, unix.IoctlSetPointerInt(int(window.Fd()), unix.TIOCSPTLCK, 0))
	number := must.Get(unix.IoctlGetInt(int(window.Fd()), unix.TIOCGPTN))(t)
	return window, must.Get(os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0))(t)
}

// TestDetachedOutlivesItsTerminal starts a detached run in a terminal, and closes that.
func TestDetachedOutlivesItsTerminal(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := jobFile(t, survivorJob)
	window, programs := openTerminal(t)
	var out polltest.Log
	cmd := exec.Command(self(t), "run", "-data-dir", dir, "-alloc-id", testAllocID, "-detach", file)
	cmd.Env = append(os.Environ(), "TASKAPI_TEST_MAIN=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = programs, &out, programs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Run(); err != nil || out.String() != testAllocID+"\n" {
		t.Fatalf("%v: %q", err, out.String())
	}
	pid := detachedPID(t, dir)
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest) // state, parent, group, session, terminal, ...
	if err != nil || len(fields) < 5 || fields[3] != strconv.Itoa(pid) || fields[4] != "0" {
		t.Errorf("process %d: %s, %v; want a session of its own without a terminal", pid, stat, err)
	}
	if stdin, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", pid)); stdin != os.DevNull {
		t.Errorf("standard input is %s, %v", stdin, err)
	}
	programs.Close()
	window.Close()
	must.OK(t, syscall.Kill(pid, syscall.SIGHUP))
	if got := answeringVersion(t, dir); got != version {
		t.Errorf("after its terminal has gone it does not answer: %q", got)
	}
	if out := taskapi(t, "stop", "--data-dir", dir); !strings.Contains(out, "allocation is complete") {
		t.Errorf("stop:\n%s", out)
	}
}

// detachedPID returns the process in the background.
func detachedPID(t *testing.T, dataDir string) int {
	t.Helper()
	for pid, command := range belongingTo(dataDir) {
		if strings.Contains(command, "--detached") {
			return pid
		}
	}
	t.Fatal("no process runs in the background")
	return 0
}

// killDetached kills the process in the background, and waits for its end: until then, it has its locks and its
// listeners.
func killDetached(t *testing.T, dataDir string) {
	t.Helper()
	id := must.Get(proc.Identify(detachedPID(t, dataDir)))(t)
	must.OK(t, id.Signal(unix.SIGKILL))
	if !id.Await(deadline) {
		t.Fatalf("process %d does not end", id.PID)
	}
}
