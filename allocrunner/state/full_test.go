package state_test

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

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/interfaces/storetest"
	"taskapi/allocrunner/state"
)

// refusedThenWritten puts changes that the file system refuses, and requires that none of them is half there, that they can be put once it
// does not, and that what was put before stays. refuse makes it refuse, and allow ends that.
func refusedThenWritten(t *testing.T, path string, cause error, remedy string, refuse, allow func()) {
	t.Helper()
	db := open(t, path)
	a := alloc("a", 1)
	a.Job = job("j")
	storetest.Put(t, db, interfaces.Change{ID: "a", Alloc: a, Tasks: map[string]interfaces.SavedTask{"t": storetest.Task("before"), "u": storetest.Task("before")}})
	long := strings.Repeat("long ", 16000)
	for round := range 2 {
		refuse()
		change := interfaces.Change{ID: "a", Alloc: alloc("a", uint64(round+2)), Tasks: map[string]interfaces.SavedTask{
			"t": storetest.Task("then" + long), "u": storetest.Task("then" + long)}}
		for range 3 {
			err := db.Put(change)
			if !errors.Is(err, state.ErrFile) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), remedy) || !errors.Is(err, cause) {
				t.Fatalf("round %d: got %v, want %v, the file's name and %q", round, err, cause, remedy)
			}
		}
		if got := storetest.Load(t, db); round == 0 && (got.Tasks["t"].Phase != "before" || got.Tasks["u"].Phase != "before" || got.Alloc.ModifyIndex != 1) {
			t.Errorf("what was refused is half there: %.20s, %d", got.Tasks["t"].Phase, got.Alloc.ModifyIndex)
		}
		allow()
		storetest.Put(t, db, change)
		if got := storetest.Load(t, db); got.Tasks["t"].Phase != "then"+long || got.Alloc.ModifyIndex != uint64(round+2) || *got.Alloc.Job.ID != "j" {
			t.Errorf("round %d: something is lost: %.20q, %d", round, got.Tasks["t"].Phase, got.Alloc.ModifyIndex)
		}
		long = strings.Repeat(long, 3) // the next round needs more than the file has become
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := state.Read(path); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestFullDisk runs into the end of a file system.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Skipf("a small file system can't be mounted here, which takes CAP_SYS_ADMIN: %v; TestSizeLimit covers what it can", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	filler := filepath.Join(dir, "filler")
	refuse := func() {
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for block := make([]byte, 16*4096); err == nil; _, err = f.Write(block) {
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
	refusedThenWritten(t, filepath.Join(dir, state.FileName), syscall.ENOSPC, "make room", refuse, allow)

	refuse()
	path := filepath.Join(dir, "another")
	if db, err := state.Open(path, ""); !errors.Is(err, state.ErrFile) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("a new file on a full disk: %v, %v", db, err)
	}
	allow()
	storetest.Put(t, open(t, path), interfaces.Change{ID: "a", Alloc: alloc("a", 1)})
	if _, err := os.Stat(path + ".new"); err == nil {
		t.Error("a draft is left")
	}
}

// limited runs a test in a process of its own, where the size of files may be limited: that goes for all that a process writes. It reports
// whether this is that process.
func limited(t *testing.T) bool {
	t.Helper()
	const variable = "STATE_TEST_LIMITED"
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

// limitSize sets how large a file may become that this process writes.
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

// TestSizeLimit refuses at each point of a write: that the file grows, that its pages are written, that a page is written half.
func TestSizeLimit(t *testing.T) {
	if !limited(t) {
		return
	}
	for name, limit := range map[string]func(path string) uint64{
		"growing":     func(path string) uint64 { return uint64(len(readFile(t, path))) },
		"pages":       func(string) uint64 { return 0 },
		"half a page": func(string) uint64 { return uint64(3*4096 + 4096/2) },
	} {
		t.Run(name, func(t *testing.T) {
			path := statePath(t)
			refusedThenWritten(t, path, syscall.EFBIG, "ulimit -f", func() { limitSize(t, limit(path)) }, func() { limitSize(t, unix.RLIM_INFINITY) })
		})
	}
}

// TestAfterAFailureNothingIsTakenForWritten: a write may fail after the file shows it and before the disk has it.
func TestAfterAFailureNothingIsTakenForWritten(t *testing.T) {
	if !limited(t) {
		return
	}
	path := statePath(t)
	db := open(t, path)
	storetest.Put(t, db, interfaces.Change{ID: "a", Alloc: alloc("a", 1)})
	before := len(readFile(t, path))
	limitSize(t, 0)
	if err := db.Put(interfaces.Change{ID: "a", Alloc: alloc("a", 2)}); !errors.Is(err, syscall.EFBIG) {
		t.Fatalf("put: %v", err)
	}
	limitSize(t, unix.RLIM_INFINITY)
	again := interfaces.Change{ID: "a", Alloc: alloc("a", 1)} // as the file has it
	storetest.Put(t, db, again)
	after := len(readFile(t, path))
	storetest.Put(t, db, again)
	if end := len(readFile(t, path)); after <= before || end != after {
		t.Errorf("the file has had %d, %d and %d bytes, want one more change in the second", before, after, end)
	}
}
