package disk_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/disk"
	"taskapi/internal/must"
)

// overwrite changes some bytes of the log in place, as a failing disk does.
func overwrite(t *testing.T, dir, what, by string) {
	t.Helper()
	log, at := filepath.Join(dir, "log"), bytes.Index(readLog(t, dir), []byte(what))
	f, err := os.OpenFile(log, os.O_WRONLY, 0)
	if err != nil || at < 0 || len(what) != len(by) {
		t.Fatalf("%q at byte %d: %v", what, at, err)
	}
	must.Get(f.WriteAt([]byte(by), int64(at)))(t)
	must.OK(t, f.Close())
}

// rewritten commits until the log has been rewritten.
func rewritten(t *testing.T, dir string, s cluster.Store) {
	t.Helper()
	for range 100 {
		before := size(t, dir)
		if clustertest.Put(t, s, "filler", strings.Repeat("f", 50<<10)); size(t, dir) < before {
			return
		}
	}
	t.Fatalf("the log has %d bytes", size(t, dir))
}

// TestDamagedValueIsCarried: rewriting the log carries along a damaged value, with its bytes, its indexes and its
// lease. It is never returned as a value. A store that is opened later has everything else.
func TestDamagedValueIsCarried(t *testing.T) {
	dir := scratch(t)
	s := open(t, dir)
	clustertest.Put(t, s, "bad", "older value")
	index := clustertest.Put(t, s, "bad", "precious value")
	lease, err := s.Hold(t.Context(), "owner")
	must.OK(t, err)
	leased := clustertest.Commit(t, s, clustertest.Txn(clustertest.Leased("leased", "a leased value", "owner")))
	clustertest.Put(t, s, "good", "value")
	overwrite(t, dir, "precious value", "precious vXlue")
	overwrite(t, dir, "a leased value", "a lXased value")

	_, _, err = s.Get(t.Context(), "bad")
	wantDamaged(t, dir, "before the log is rewritten", err)
	for range 2 { // the second time what is damaged is known to be
		rewritten(t, dir, s)
		for name, s := range map[string]*disk.Store{"opened before": s, "opened after": open(t, dir)} {
			for _, want := range []cluster.Entry{
				{Key: "bad", CreateIndex: 2, ModifyIndex: index, Damaged: true},
				{Key: "leased", CreateIndex: leased, ModifyIndex: leased, Lease: "owner", Damaged: true},
			} {
				if e := clustertest.Get(t, s, want.Key); fmt.Sprint(e) != fmt.Sprint(want) {
					t.Errorf("%s: got %v, want %v", name, e, want)
				}
			}
			page, err := s.List(t.Context(), cluster.Span{Only: func(key string) bool { return key != "filler" }})
			if err != nil || len(page.Entries) != 3 || !page.Entries[0].Damaged || len(page.Entries[0].Value) != 0 ||
				string(page.Entries[1].Value) != "value" {
				t.Errorf("%s: listed %v, %v", name, page.Entries, err)
			}
		}
		if log := readLog(t, dir); bytes.Count(log, []byte("precious vXlue")) != 1 ||
			bytes.Contains(log, []byte("older value")) {
			t.Error("the log has not what was left of the value, and nothing else of it")
		}
	}

	must.OK(t, lease.Close())
	other := open(t, dir)
	if e := clustertest.Get(t, other, "leased"); e.ModifyIndex != 0 {
		t.Errorf("after the end of its lease: %v", e)
	}
	clustertest.Put(t, other, "bad", "new", cluster.Condition{Key: "bad", ModifyIndex: index})
	rewritten(t, dir, s)
	if e := clustertest.Get(t, s, "bad"); e.Damaged || string(e.Value) != "new" ||
		bytes.Contains(readLog(t, dir), []byte("vXlue")) {
		t.Errorf("written again: %v", e)
	}
}

// TestLogThatCannotBeRewritten: a log that can't be rewritten is bounded, too. A commit is refused then, with the
// reason, and succeeds once the log can be rewritten.
func TestLogThatCannotBeRewritten(t *testing.T) {
	dir := scratch(t)
	s := open(t, dir)
	draft := filepath.Join(dir, "log.new")
	clustertest.Put(t, s, "k", "v")
	must.OK(t, os.MkdirAll(filepath.Join(draft, "in the way"), 0o700))
	large := []cluster.Operation{clustertest.Set("large", strings.Repeat("v", cluster.MaxValueBytes))}
	const most = 16 * cluster.MaxValueBytes
	s.SetMaxLog(most)
	var err error
	for err == nil && size(t, dir) <= most {
		_, err = s.Commit(t.Context(), cluster.Txn{Then: large})
	}
	if !errors.Is(err, cluster.ErrUnavailable) || !errors.Is(err, syscall.ENOTEMPTY) ||
		!strings.Contains(err.Error(), "too long") ||
		!strings.Contains(err.Error(), draft) {
		t.Fatalf("a log of %d bytes: %v", size(t, dir), err)
	}
	if e := clustertest.Get(t, s, "k"); string(e.Value) != "v" {
		t.Errorf("got %q", e.Value)
	}
	must.OK(t, os.RemoveAll(draft))
	clustertest.Commit(t, open(t, dir), cluster.Txn{Then: large})
	if size(t, dir) > 3*cluster.MaxValueBytes {
		t.Errorf("the log has %d bytes", size(t, dir))
	}
}
