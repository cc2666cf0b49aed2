package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/internal/must"
)

// opens reports whether a process has a file open.
func opens(pid int, path string) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	fds, _ := os.ReadDir(dir)
	for _, fd := range fds {
		if target, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && target == path {
			return true
		}
	}
	return false
}

// TestSignalsBeforeItHasBegun reach a taskapi that still waits for the one before it to exit: it does what they say
// when it has the allocation.
func TestSignalsBeforeItHasBegun(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"detach": syscall.SIGUSR1, "stop": syscall.SIGTERM,
		"interrupt": syscall.SIGINT} {
		t.Run(name, func(t *testing.T) { testSignalBeforeItHasBegun(t, sig) })
	}
}

func testSignalBeforeItHasBegun(t *testing.T, sig syscall.Signal) {
	t.Parallel()
	dir := shortDir(t)
	file := jobFile(t, survivorJob)
	path := datadir.Dir(dir).State(testAllocID)
	p := startProcess(t, dir, file)
	counter := filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "counter", "local", "pid")
	until(t, p, "the task runs", func() bool { return written(counter) })
	endsOf(t, p, syscall.SIGUSR1)

	held := must.Get(state.Open(path, version))(t)
	p = startProcess(t, dir, file)
	until(t, p, "it waits for the state", func() bool { return opens(p.Process.Pid, path) })
	must.OK(t, p.Process.Signal(sig))
	must.OK(t, held.Close())
	endsOf(t, p, syscall.Signal(0)) // by what it got before
	if t.Failed() {
		_ = p.Process.Kill()
	}
	saved, err := datadir.Dir(dir).Saved(testAllocID)
	if stopped := sig != syscall.SIGUSR1; err != nil || saved.Terminal != stopped {
		t.Errorf("%+v, %v; want it stopped: %t\n%s", saved, err, stopped, p.out)
	}
	taskapi(t, "stop", "--data-dir", dir, testAllocID)
}

// TestASignalBeforeTheJobIsRead ends a run that waits for its job file on standard input, and nothing has begun.
func TestASignalBeforeTheJobIsRead(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	p := newProcess(self(t), "run", "-data-dir", dir, "-")
	stdin, job, err := os.Pipe()
	must.OK(t, err)
	defer job.Close()
	p.Stdin = stdin
	must.Get(job.WriteString("job "))(t)
	must.OK(t, p.Start())
	until(t, p, "it reads", func() bool {
		unread, err := unix.IoctlGetInt(int(stdin.Fd()), unix.TIOCINQ)
		return err == nil && unread == 0
	})
	must.OK(t, p.Process.Signal(syscall.SIGTERM))
	_ = p.Wait()
	if p.ProcessState.ExitCode() != base.ExitFailed ||
		!strings.Contains(p.out.String(), "terminated: nothing was started or changed") {
		t.Errorf("%v:\n%s", p.ProcessState, p.out)
	}
}
