package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"taskapi/allocrunner/datadir"
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
	dir := shortDir(t)
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=8m,mode=711"); err != nil {
		t.Skipf("no file system can be mounted: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	file := mustWrite(t, filepath.Join(t.TempDir(), "job.nomad.hcl"), isolatedJob)
	pidFile := filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "t", "local", "pid")
	first := startProcess(t, dir, file, "--isolate-users")
	until(t, first, "it runs", func() bool { return written(pidFile) })
	pid, _ := os.ReadFile(pidFile)
	kill(t, first)
	filler := fillUp(t, dir)

	second := startProcess(t, dir, file, "--isolate-users")
	until(t, second, "it goes on", func() bool {
		return strings.Contains(taskapi(t, "status", "--data-dir", dir), " running  ")
	})
	if !alive(pid) {
		t.Errorf("the task has not run on:\n%s", second.out)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	taskapi(t, "stop", "--data-dir", dir, testAllocID)
	if err := second.Wait(); err != nil {
		t.Errorf("%v:\n%s", err, second.out)
	}
}

// fillUp leaves no room on a directory's file system but what the file takes that it names.
func fillUp(t *testing.T, dir string) (name string) {
	t.Helper()
	filler, err := os.Create(filepath.Join(dir, "filler"))
	for block := make([]byte, 4096); err == nil; {
		_, err = filler.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	filler.Close()
	return filler.Name()
}

// TestDetachOnAFullDisk says why there is no allocation, though the log can't.
func TestDetachOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a file system")
	}
	t.Parallel()
	dir := shortDir(t)
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=1m,mode=711"); err != nil {
		t.Skipf("no file system can be mounted: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	file := mustWrite(t, filepath.Join(t.TempDir(), "job.nomad.hcl"), isolatedJob)
	fillUp(t, dir)
	p := startProcess(t, dir, file, "--detach")
	if err := p.Wait(); err == nil || !strings.Contains(p.out.String(), "no space left on device; make room") {
		t.Errorf("%v: %q", err, p.out)
	}
}
