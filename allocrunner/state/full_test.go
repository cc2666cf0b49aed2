package state_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/internal/disktest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// refusedThenWritten puts changes that the file system refuses. It requires that none of them is half there, that
// earlier changes stay, and that the same changes can be put once the file system allows them. refuse and allow change
// that.
func refusedThenWritten(t *testing.T, path string, cause error, remedy string, refuse, allow func()) {
	t.Helper()
	db := open(t, path)
	a := alloc("a", 1)
	a.Job = job("j")
	put(t, db, interfaces.Saved{Alloc: a,
		Tasks: map[string]interfaces.SavedTask{"t": task("before"), "u": task("before")}})
	long := strings.Repeat("long ", 16000)
	for round := range 2 {
		refuse()
		change := interfaces.Saved{Alloc: alloc("a", uint64(round+2)), Tasks: map[string]interfaces.SavedTask{
			"t": task("then" + long), "u": task("then" + long)}}
		for range 3 {
			err := db.Put(change)
			if !errors.Is(err, state.ErrFile) || !strings.Contains(err.Error(), path) ||
				!strings.Contains(err.Error(), remedy) || !errors.Is(err, cause) {
				t.Fatalf("round %d: got %v, want %v, the file's name and %q", round, err, cause, remedy)
			}
		}
		if got := load(t, db); round == 0 && (got.Tasks["t"].Phase != "before" ||
			got.Tasks["u"].Phase != "before" || got.Alloc.ModifyIndex != 1) {
			t.Errorf("what was refused is half there: %.20s, %d", got.Tasks["t"].Phase, got.Alloc.ModifyIndex)
		}
		allow()
		put(t, db, change)
		if got := load(t, db); got.Tasks["t"].Phase != "then"+long ||
			got.Alloc.ModifyIndex != uint64(round+2) || *got.Alloc.Job.ID != "j" {
			t.Errorf("round %d: something is lost: %.20q, %d", round, got.Tasks["t"].Phase, got.Alloc.ModifyIndex)
		}
		long = strings.Repeat(long, 3) // the next round needs more than the file has become
	}
	must.OK(t, db.Close())
	same.Error(t, nil, same.Err(state.Read(path)), "afterwards")
}

// TestFullDisk fills a file system.
func TestFullDisk(t *testing.T) {
	small := disktest.Mount(t, "size=64m", "TestSizeLimit")
	refusedThenWritten(t, filepath.Join(small.Dir, state.FileName), syscall.ENOSPC, "make room", small.Fill,
		small.Empty)

	small.Fill()
	path := filepath.Join(small.Dir, "another")
	if db, err := state.Open(path, ""); !errors.Is(err, state.ErrFile) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("a new file on a full disk: %v, %v", db, err)
	}
	small.Empty()
	put(t, open(t, path), interfaces.Saved{Alloc: alloc("a", 1)})
	same.Fails(t, same.Err(os.Stat(path+".new")), "a draft is left")
}

// TestSizeLimit: a write is refused when the file would grow, before its pages are written, and in the middle of a
// page.
func TestSizeLimit(t *testing.T) {
	if !disktest.Limited(t) {
		return
	}
	for name, limit := range map[string]func(path string) uint64{
		"growing":     func(path string) uint64 { return uint64(len(readFile(t, path))) },
		"pages":       func(string) uint64 { return 0 },
		"half a page": func(string) uint64 { return uint64(3*4096 + 4096/2) },
	} {
		t.Run(name, func(t *testing.T) {
			path := statePath(t)
			refusedThenWritten(t, path, syscall.EFBIG, "ulimit -f", func() { disktest.LimitSize(t, limit(path)) },
				func() { disktest.LimitSize(t, unix.RLIM_INFINITY) })
		})
	}
}

// TestAfterAFailureTheFileIsAsItWas: nothing of a failed change is in the file, so that the next one is compared with
// what is on the disk.
func TestAfterAFailureTheFileIsAsItWas(t *testing.T) {
	if !disktest.Limited(t) {
		return
	}
	path := statePath(t)
	db := open(t, path)
	first := interfaces.Saved{Alloc: alloc("a", 1)}
	put(t, db, first)
	before := readFile(t, path)
	for _, room := range []int{0, len(before), len(before) + 100} {
		disktest.LimitSize(t, uint64(room))
		if err := db.Put(interfaces.Saved{Alloc: alloc("a", 2)}); !errors.Is(err, syscall.EFBIG) {
			t.Fatalf("put: %v", err)
		}
		disktest.LimitSize(t, unix.RLIM_INFINITY)
		if after := readFile(t, path); !bytes.Equal(before, after) {
			t.Errorf("with room for %d bytes, the file has had %d bytes and has %d, or others", room, len(before),
				len(after))
		}
	}
	put(t, db, first)
	if after := readFile(t, path); !bytes.Equal(before, after) {
		t.Error("what the file has was written again")
	}
}
