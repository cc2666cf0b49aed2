package allocdir_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/allocdir"
	"taskapi/internal/disktest"
	"taskapi/internal/must"
)

// TestRemoveOnAFullDisk is what makes room on it.
func TestRemoveOnAFullDisk(t *testing.T) {
	parent := disktest.Mount(t, "nr_inodes=32").Dir
	dir := filepath.Join(parent, "alloc")
	must.OK(t, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700))
	var full error
	for i := 0; full == nil; i++ {
		full = os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600)
	}
	if !errors.Is(full, unix.ENOSPC) {
		t.Fatal(full)
	}
	must.OK(t, allocdir.Remove(dir))
	if left, err := os.ReadDir(parent); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestRemoveDeep: a task nests more directories than this process may open, beside a link out of the allocation.
func TestRemoveDeep(t *testing.T) {
	var limit unix.Rlimit
	must.OK(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	must.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: min(limit.Cur, 200), Max: limit.Max}))
	t.Cleanup(func() { must.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) })
	parent, outside := t.TempDir(), t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(outside, "f"), nil, 0o600))
	for _, dir := range []string{filepath.Join(parent, "alloc"), filepath.Join(parent, ".removed-before")} {
		at := filepath.Join(dir, strings.Repeat("d/", 500))
		must.OK(t, os.MkdirAll(at, 0o700))
		must.OK(t, os.Symlink(outside, filepath.Join(at, "link")))
	}
	must.OK(t, allocdir.Remove(filepath.Join(parent, "alloc")))
	must.OK(t, allocdir.RemoveLeftovers(parent))
	if left, err := os.ReadDir(parent); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	must.Get(os.Stat(filepath.Join(outside, "f")))(t)
}
