package state_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
)

func TestStateOutlivesItsWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), state.FileName)
	db, err := state.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Saved(); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("new state: got %v, want ErrNotFound", err)
	}
	want := &interfaces.Saved{
		Alloc: &api.Allocation{ID: "a", ClientStatus: "complete", ModifyIndex: 7,
			TaskStates: map[string]*api.TaskState{"t": {State: "dead", Events: []*api.TaskEvent{{Type: "Received"}}}}},
		Tasks: map[string]interfaces.SavedTask{"t": {Phase: "backoff", Attempts: 2, Due: time.Unix(9, 0).UTC()}},
		Over:  true,
	}
	if err := db.Put(*want); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Close(), db.Close()); err != nil {
		t.Fatalf("close twice: %v", err)
	}
	got, err := state.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode().Perm())
	}
}

func TestSecondWriterIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), state.FileName)
	db, err := state.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := state.Open(path); !errors.Is(err, state.ErrInUse) {
		t.Errorf("second writer: got %v, want ErrInUse", err)
	}
	if _, err := state.Read(path); !errors.Is(err, state.ErrInUse) {
		t.Errorf("reader beside a writer: got %v, want ErrInUse", err)
	}
}

func TestBadFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	junk := filepath.Join(dir, "junk")
	if err := os.WriteFile(junk, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, path string
		want       error
	}{
		{"missing", filepath.Join(dir, "none"), state.ErrNotFound},
		{"junk", junk, state.ErrDamaged},
	} {
		if _, err := state.Read(tc.path); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, err, tc.want)
		}
	}
}
