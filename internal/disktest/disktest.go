// Package disktest helps to test what happens on a full disk: with a small file system that a test fills up, or with a
// limit on the size of files. Only tests may import it.
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

	"taskapi/internal/must"
)

// Small is a small file system, which is unmounted at the end of the test.
type Small struct {
	Dir string // its root

	tb testing.TB
}

// Mount mounts a file system with options of tmpfs(5), such as "size=8m". Where it can't, it skips the test; instead
// names the tests that cover as much as possible there. Paths in it leave room for the name of a socket.
func Mount(tb testing.TB, options string, instead ...string) Small {
	tb.Helper()
	dir := must.ShortDir(tb)
	if err := unix.Mount("none", dir, "tmpfs", 0, options); err != nil {
		tb.Skipf("a small file system can't be mounted here, which takes CAP_SYS_ADMIN: %v; instead: %q", err, instead)
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

// Limited runs a test in a process of its own, since LimitSize limits all files that a process writes. It reports
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

// LimitSize limits the size of files that this process writes, in bytes; unix.RLIM_INFINITY is no limit.
func LimitSize(tb testing.TB, size uint64) {
	tb.Helper()
	var limit unix.Rlimit
	must.OK(tb, unix.Getrlimit(unix.RLIMIT_FSIZE, &limit))
	limit.Cur = min(size, limit.Max)
	must.OK(tb, unix.Setrlimit(unix.RLIMIT_FSIZE, &limit))
}
