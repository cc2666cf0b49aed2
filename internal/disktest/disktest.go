// Package disktest helps tests with disks that take no more: a small file system that is filled up, and a limit of the size of files. Nothing
// but tests may import it.
package disktest

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Small is a file system of its own, until the end of a test.
type Small struct {
	Dir string // its root

	tb testing.TB
}

// Mount mounts a file system with tmpfs(5)'s options, such as "size=8m". Where that can't be done the test is skipped; instead says which test
// covers what it can there.
func Mount(tb testing.TB, options, instead string) Small {
	tb.Helper()
	dir := tb.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, options); err != nil {
		tb.Skipf("a small file system can't be mounted here, which takes CAP_SYS_ADMIN: %v; %s covers what it can", err, instead)
	}
	tb.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			tb.Error(err)
		}
	})
	return Small{dir, tb}
}

func (s Small) filler() string { return filepath.Join(s.Dir, "filler") }

// Fill leaves no room in the file system.
func (s Small) Fill() {
	s.tb.Helper()
	f, err := os.Create(s.filler())
	if err != nil {
		s.tb.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 4096); err == nil; _, err = f.Write(block) {
	}
	if !errors.Is(err, syscall.ENOSPC) {
		s.tb.Fatal(err)
	}
}

// Empty gives back the room that Fill has taken.
func (s Small) Empty() {
	s.tb.Helper()
	if err := os.Remove(s.filler()); err != nil {
		s.tb.Fatal(err)
	}
}

// limited is set in the environment of a process that Limited has started.
const limited = "DISKTEST_LIMITED"

// Limited runs a test in a process of its own, where the size of files may be limited: that goes for all that a process writes. It reports
// whether this is that process.
func Limited(t *testing.T) bool {
	t.Helper()
	if os.Getenv(limited) != "" {
		signal.Ignore(unix.SIGXFSZ) // the error is enough
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), limited+"=1", "GORACE=atexit_sleep_ms=0")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// LimitSize sets how large a file may become that this process writes, in bytes; unix.RLIM_INFINITY is no limit.
func LimitSize(tb testing.TB, size uint64) {
	tb.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		tb.Fatal(err)
	}
	limit.Cur = min(size, limit.Max)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		tb.Fatal(err)
	}
}
