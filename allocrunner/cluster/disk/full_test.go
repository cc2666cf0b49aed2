package disk_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/disk"
	"taskapi/internal/disktest"
)

// refusedThenWritten makes commits that the file system refuses. It requires that nothing of them is there, that reads
// go on, and that the same commits succeed once the file system allows them. refuse and allow change that.
func refusedThenWritten(t *testing.T, dir string, cause error, remedy string, refuse, allow func()) {
	t.Helper()
	s, other := open(t, dir), open(t, dir)
	index := clustertest.Put(t, s, "k", "before")
	clustertest.Get(t, other, "k")
	large := strings.Repeat("v", 400<<10)
	for round := range 3 {
		refuse()
		for range 3 {
			_, err := s.Commit(t.Context(), clustertest.Txn(clustertest.Set("k", large), clustertest.Set("l", large)))
			if !errors.Is(err, cluster.ErrUnavailable) || errors.Is(err, cluster.ErrUncertain) ||
				!errors.Is(err, cause) ||
				!strings.Contains(err.Error(), remedy) || !strings.Contains(err.Error(), dir) {
				t.Fatalf("round %d: got %v, want %v and %q", round, err, cause, remedy)
			}
			for _, s := range []*disk.Store{s, other} {
				if e := clustertest.Get(t, s, "k"); string(e.Value) != "before" || e.ModifyIndex != index ||
					clustertest.Get(t, s, "l").ModifyIndex != 0 {
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

// TestFullDisk fills a file system, with commits and with the rewriting of the log.
func TestFullDisk(t *testing.T) {
	small := disktest.Mount(t, "size=8m,mode=0700", "TestSizeLimit")
	dir := filepath.Join(small.Dir, "cluster")
	refusedThenWritten(t, dir, syscall.ENOSPC, "make room", small.Fill, small.Empty)

	// There is no room for a second log. Commits go on while there is room for them.
	t.Run("rewriting", func(t *testing.T) {
		s := open(t, dir)
		for n := 0; ; n++ {
			next := clustertest.Set(fmt.Sprint(n), strings.Repeat("v", 400<<10))
			if _, err := s.Commit(t.Context(), clustertest.Txn(next)); err != nil {
				if !errors.Is(err, syscall.ENOSPC) || n < 10 {
					t.Fatalf("after %d: %v", n, err)
				}
				break
			}
		}
		clustertest.Put(t, s, "k", "small")
		if names := files(t, dir); fmt.Sprint(names) != "[leases lock log queue]" {
			t.Errorf("%q is left", names)
		}
		clustertest.Commit(t, s, clustertest.Txn(clustertest.Delete("0"), clustertest.Delete("1")))
	})
	t.Run("a new store", func(t *testing.T) {
		small.Fill()
		dir := filepath.Join(small.Dir, "another")
		s := open(t, dir)
		_, _, err := s.Get(t.Context(), "k")
		if !errors.Is(err, cluster.ErrUnavailable) || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("on a full disk: %v", err)
		}
		small.Empty()
		clustertest.Put(t, s, "k", "v")
	})
}

// TestSizeLimit: a write is refused at its beginning or in its middle.
func TestSizeLimit(t *testing.T) {
	if !disktest.Limited(t) {
		return
	}
	for name, room := range map[string]int64{"at its beginning": 0, "in its middle": 500 << 10} {
		t.Run(name, func(t *testing.T) {
			dir := scratch(t)
			refuse := func() { disktest.LimitSize(t, uint64(size(t, dir)+room)) }
			refusedThenWritten(t, dir, syscall.EFBIG, "ulimit -f", refuse,
				func() { disktest.LimitSize(t, unix.RLIM_INFINITY) })
		})
	}
}
