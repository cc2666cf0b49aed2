package allocdir_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	if err := allocdir.Remove(dir); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
