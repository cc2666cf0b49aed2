package datadir_test

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
)

const testID = "115ef685-6b9e-3eaf-e74b-6b04f094ebca"

func lock(t *testing.T, d datadir.Dir) *datadir.Lock {
	t.Helper()
	l, err := d.Lock(testID, d.Store("1.2.3"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestLock is one process's, and recreates an allocation without letting go.
func TestLock(t *testing.T) {
	d := datadir.Dir(t.TempDir())
	l := lock(t, d)
	if err := l.State().Put(interfaces.Change{ID: testID, Alloc: &api.Allocation{ID: testID}, Over: true}); err != nil {
		t.Fatal(err)
	}
	group, job := "g", "next"
	next := &api.Allocation{ID: testID, TaskGroup: group, Job: &api.Job{ID: &job, TaskGroups: []*api.TaskGroup{{Name: &group}}}}
	if err := l.Recreate(next); err != nil {
		t.Fatal(err)
	}
	if _, err := state.Read(filepath.Join(l.Dir, state.FileName)); err == nil {
		t.Error("another process can read a state that is locked")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again := lock(t, d)
	if s := again.Saved(); s.Over || *s.Alloc.Job.ID != job || s.Alloc.ClientStatus != api.AllocClientStatusPending {
		t.Fatalf("got %+v; want the next one, about to begin", s)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}
