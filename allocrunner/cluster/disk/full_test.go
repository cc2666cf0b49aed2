package disk_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/disk"
)

// refusedThenWritten commits what the file system refuses, and requires that nothing of that is there, that reads go on, and that it can be committed
// once the file system does not. refuse makes it refuse, and allow ends that.
func refusedThenWritten(t *testing.T, dir string, cause error, remedy string, refuse, allow func()) {
	t.Helper()
	s, other := open(t, dir), open(t, dir)
	index := clustertest.Put(t, s, "k", "before")
	clustertest.Get(t, other, "k")
	large := strings.Repeat("v", 400<<10)
	for round := range 3 {
		refuse()
		for range 3 {
			_, err := s.Commit(t.Context(), cluster.Txn{Then: []cluster.Operation{clustertest.Set("k", large), clustertest.Set("l", large)}})
			if !errors.Is(err, cluster.ErrUnavailable) || errors.Is(err, cluster.ErrUncertain) || !errors.Is(err, cause) ||
				!strings.Contains(err.Error(), remedy) || !strings.Contains(err.Error(), dir) {
				t.Fatalf("round %d: got %v, want %v and %q", round, err, cause, remedy)
			}
			for _, s := range []*disk.Store{s, other} {
				if e := clustertest.Get(t, s, "k"); string(e.Value) != "before" || e.ModifyIndex != index || clustertest.Get(t, s, "l").ModifyIndex != 0 {
					t.Fatalf("round %d: what was refused is there: %.20q at %d", round, e.Value, e.ModifyIndex)
				}
			}
		}
		allow()
		clustertest.Put(t, s, "k", large)
		if e := clustertest.Get(t, other, "k"); string(e.Value) != large {
			t.Fatalf("round %d: %.20q", round, e.Value)
		}
		index = clustertest.Put(t, other, "k", "before")
	}
	if e := clustertest.Get(t, open(t, dir), "k"); string(e.Value) != "before" || e.ModifyIndex != index {
		t.Errorf("afterwards: %.20q at %d", e.Value, e.ModifyIndex)
	}
}

// TestFullDisk runs into the end of a file system, with commits and with the rewriting of the log.
func TestFullDisk(t *testing.T) {
	root := t.TempDir()
	if err := unix.Mount("none", root, "tmpfs", 0, "size=8m,mode=0700"); err != nil {
		t.Skipf("a small file system can't be mounted here, which takes CAP_SYS_ADMIN: %v; TestSizeLimit covers what it can", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	filler := filepath.Join(root, "filler")
	refuse := func() {
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for block := make([]byte, 4096); err == nil; _, err = f.Write(block) {
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	allow := func() {
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(root, "cluster")
	refusedThenWritten(t, dir, syscall.ENOSPC, "make room", refuse, allow)

	t.Run("rewriting", func(t *testing.T) { // which has room for no second log: commits go on while there is room for them
		s := open(t, dir)
		for n := 0; ; n++ {
			next := clustertest.Set(fmt.Sprint(n), strings.Repeat("v", 400<<10))
			if _, err := s.Commit(t.Context(), cluster.Txn{Then: []cluster.Operation{next}}); err != nil {
				if !errors.Is(err, syscall.ENOSPC) || n < 10 {
					t.Fatalf("after %d: %v", n, err)
				}
				break
			}
		}
		clustertest.Put(t, s, "k", "small")
		if names := files(t, dir); fmt.Sprint(names) != "[leases lock log]" {
			t.Errorf("%q is left", names)
		}
		clustertest.Commit(t, s, cluster.Txn{Then: []cluster.Operation{clustertest.Delete("0"), clustertest.Delete("1")}})
	})
	t.Run("a new store", func(t *testing.T) {
		refuse()
		dir := filepath.Join(root, "another")
		s := open(t, dir)
		_, _, err := s.Get(t.Context(), "k")
		if !errors.Is(err, cluster.ErrUnavailable) || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("on a full disk: %v", err)
		}
		allow()
		clustertest.Put(t, s, "k", "v")
	})
}

// limited runs a test in a process of its own, where the size of files may be limited: that goes for all that a process writes. It reports whether
// this is that process.
func limited(t *testing.T) bool {
	t.Helper()
	const variable = "DISK_TEST_LIMITED"
	if os.Getenv(variable) != "" {
		signal.Ignore(unix.SIGXFSZ) // the error is enough
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"=1", "GORACE=atexit_sleep_ms=0")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// TestSizeLimit refuses in the middle of a write, at its beginning, and that of the header, too.
func TestSizeLimit(t *testing.T) {
	if !limited(t) {
		return
	}
	for name, room := range map[string]int64{"at its beginning": 0, "in its middle": 500 << 10} {
		t.Run(name, func(t *testing.T) {
			dir := scratch(t)
			refuse := func() { limitSize(t, uint64(size(t, dir)+room)) }
			refusedThenWritten(t, dir, syscall.EFBIG, "ulimit -f", refuse, func() { limitSize(t, unix.RLIM_INFINITY) })
		})
	}
}

func limitSize(t *testing.T, size uint64) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Cur = min(size, limit.Max)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
}
