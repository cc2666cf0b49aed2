package main

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/state"
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

// TestLeaveBeforeItHasBegun tells a taskapi to leave that still waits for the one before it to end.
func TestLeaveBeforeItHasBegun(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := mustWrite(t, filepath.Join(t.TempDir(), "job.nomad.hcl"), survivorJob)
	path := datadir.Dir(dir).State(testAllocID)
	p := startProcess(t, dir, file)
	counter := filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "counter", "local", "pid")
	until(t, p, "the task runs", func() bool { return written(counter) })
	endsOf(t, p, syscall.SIGUSR1)

	held, err := state.Open(path, version)
	if err != nil {
		t.Fatal(err)
	}
	p = startProcess(t, dir, file)
	until(t, p, "it waits for the state", func() bool { return opens(p.Process.Pid, path) })
	if err := p.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	endsOf(t, p, syscall.Signal(0)) // by what it got before
	if t.Failed() {
		_ = p.Process.Kill()
	}
	taskapi(t, "stop", "--data-dir", dir, testAllocID)
}
