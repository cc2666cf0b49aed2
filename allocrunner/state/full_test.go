package state_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
)

// refusedThenWritten puts changes that the file system refuses, and requires that all of them are there once it does not. refuse makes
// it refuse, and allow ends that.
func refusedThenWritten(t *testing.T, path string, cause error, remedy string, refuse, allow func()) {
	t.Helper()
	db := open(t, path)
	a := alloc("a", 1)
	a.Job = job("j")
	put(t, db, interfaces.Change{ID: "a", Alloc: a, Tasks: map[string]interfaces.SavedTask{"t": task("before"), "u": task("before")}})
	long := strings.Repeat("long ", 16000) // more than the file has free
	for round := range 2 {
		refuse()
		for i, phase := range []string{"first", "second" + long, "third" + long} {
			err := db.Put(interfaces.Change{ID: "a", Alloc: alloc("a", uint64(i)), Tasks: map[string]interfaces.SavedTask{
				[]string{"t", "u", "t"}[i]: task(phase + long)}})
			if !errors.Is(err, state.ErrFile) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), remedy) ||
				!strings.Contains(err.Error(), cause.Error()) || !db.Pending() {
				t.Fatalf("round %d: got %v, pending %v, want %v, the file's name and %q", round, err, db.Pending(), cause, remedy)
			}
		}
		if err := db.Retry(); !errors.Is(err, state.ErrFile) {
			t.Fatalf("retry while it is refused: %v", err)
		}
		if got := saved(t, db, "a"); round == 0 && (got.Tasks["t"].Phase != "before" || got.Alloc.ModifyIndex != 1) {
			t.Errorf("what was refused is half there: %.20s, %d", got.Tasks["t"].Phase, got.Alloc.ModifyIndex)
		}
		allow()
		put(t, db, interfaces.Change{ID: "b", Alloc: alloc("b", uint64(round))}) // takes along what waits
		if db.Pending() {
			t.Fatal("still pending")
		}
		got := saved(t, db, "a")
		if got.Tasks["t"].Phase != "third"+long+long || got.Tasks["u"].Phase != "second"+long+long || got.Alloc.ModifyIndex != 2 || *got.Alloc.Job.ID != "j" {
			t.Errorf("round %d: something is lost: %.20q, %.20q, %d", round, got.Tasks["t"].Phase, got.Tasks["u"].Phase, got.Alloc.ModifyIndex)
		}
		long = strings.Repeat(long, 3) // the next round needs more than the file has become
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := state.ReadAlloc(path, "a"); err != nil {
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
		for block := make([]byte, 16*pageSize); err == nil; _, err = f.Write(block) {
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
	put(t, open(t, path), interfaces.Change{ID: "a", Alloc: alloc("a", 1)})
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
		"half a page": func(string) uint64 { return uint64(3*pageSize + pageSize/2) },
	} {
		t.Run(name, func(t *testing.T) {
			path := statePath(t)
			refusedThenWritten(t, path, syscall.EFBIG, "ulimit -f", func() { limitSize(t, limit(path)) }, func() { limitSize(t, unix.RLIM_INFINITY) })
		})
	}
}

// TestNothingIsLostBetweenTwoFailures: what comes while a write is about to fail waits with what it was to write.
func TestNothingIsLostBetweenTwoFailures(t *testing.T) {
	if !limited(t) {
		return
	}
	defer limitSize(t, unix.RLIM_INFINITY)
	db := open(t, statePath(t))
	const callers, rounds = 8, 50
	put(t, db, interfaces.Change{ID: "a", Alloc: alloc("a", 1)})
	limitSize(t, 0)
	var calls sync.WaitGroup
	for i := range callers {
		calls.Go(func() {
			for n := 1; n <= rounds; n++ {
				err := db.Put(interfaces.Change{ID: "a", Tasks: map[string]interfaces.SavedTask{fmt.Sprint(i): {Attempts: n}}})
				if !errors.Is(err, syscall.EFBIG) {
					t.Errorf("put: %v", err)
				}
				if w := db.Waiting("a", fmt.Sprint("task/", i)); !strings.Contains(w, fmt.Sprintf(`"Attempts":%d,`, n)) {
					t.Errorf("task %d: %q waits after the change that says %d", i, w, n)
				}
			}
		})
	}
	calls.Wait()
	limitSize(t, unix.RLIM_INFINITY)
	if err := db.Retry(); err != nil {
		t.Fatal(err)
	}
	got := saved(t, db, "a").Tasks
	for i := range callers {
		if n := got[fmt.Sprint(i)].Attempts; n != rounds {
			t.Errorf("task %d: %d, want %d", i, n, rounds)
		}
	}
}

// TestAfterAFailureNothingIsTakenForWritten: a write may fail after the file shows it and before the disk has it.
func TestAfterAFailureNothingIsTakenForWritten(t *testing.T) {
	if !limited(t) {
		return
	}
	db := open(t, statePath(t))
	put(t, db, interfaces.Change{ID: "a", Alloc: alloc("a", 1)})
	limitSize(t, 0)
	if err := db.Put(interfaces.Change{ID: "a", Alloc: alloc("a", 2)}); !errors.Is(err, syscall.EFBIG) {
		t.Fatalf("put: %v", err)
	}
	limitSize(t, unix.RLIM_INFINITY)
	for i := range 2 {
		put(t, db, interfaces.Change{ID: "a", Alloc: alloc("a", 1)}) // as the file has it
		if s := db.Stats(); s.Writes != 2 || s.Failed != 1 {
			t.Errorf("change %d: %+v, want 2 writes and 1 failed", i, s)
		}
	}
}

// TestCloseWritesWhatWaits: the end of the process is the last chance.
func TestCloseWritesWhatWaits(t *testing.T) {
	if !limited(t) {
		return
	}
	for _, refused := range []bool{false, true} {
		path := statePath(t)
		db := open(t, path)
		put(t, db, interfaces.Change{ID: "a", Alloc: alloc("a", 1)})
		limitSize(t, 0)
		if err := db.Put(interfaces.Change{ID: "a", Alloc: alloc("a", 2)}); !errors.Is(err, syscall.EFBIG) {
			t.Fatalf("put: %v", err)
		}
		if !refused {
			limitSize(t, unix.RLIM_INFINITY)
		}
		if err := db.Close(); refused != errors.Is(err, syscall.EFBIG) {
			t.Errorf("close: %v, refused %v", err, refused)
		}
		limitSize(t, unix.RLIM_INFINITY)
		got, err := state.Read(path)
		if want := map[bool]uint64{false: 2, true: 1}[refused]; err != nil || got.Alloc.ModifyIndex != want {
			t.Errorf("read: %v, want %d", err, want)
		}
	}
}
