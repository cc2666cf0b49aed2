package state_test

import (
	"fmt"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/internal/logfile"
	"taskapi/internal/must"
)

// TestFileOfFormat3 reads a file that an earlier version of taskapi has written. The file was rewritten once. Then it
// got a change that its header acknowledges, a whole one that the header does not acknowledge, and two thirds of
// another one.
func TestFileOfFormat3(t *testing.T) {
	data := must.Read(t, "testdata/format3.db")
	path := statePath(t)
	writeFile(t, path, data)
	check := func(what string, saved *interfaces.Saved, err error) {
		t.Helper()
		if err != nil || saved.Alloc.ModifyIndex != 3 || saved.Alloc.ClientStatus != "running" ||
			*saved.Alloc.Job.ID != "j" || saved.Life != "life" {
			t.Fatalf("%s: %+v, %v", what, saved, err)
		}
		diff(t, what, map[string]interfaces.SavedTask{"t": {Attempts: 3, Phase: "run"}}, saved.Tasks)
	}
	saved, err := state.Read(path)
	check("read", saved, err)
	dump, err := state.Inspect(path)
	if err != nil || len(dump.Problems) > 0 || dump.Version != "0.9-recorded" {
		t.Fatalf("inspect: %+v, %v", dump, err)
	}
	db := open(t, path)
	check("loaded", load(t, db), nil)
	put(t, db, interfaces.Saved{Terminal: true})
	if saved = load(t, db); !saved.Terminal {
		t.Error("a change that follows is not there")
	}
	check("after a change", saved, nil)
}

// TestEnded: a file says that its allocation has ended when its latest value does, and the file is whole.
func TestEnded(t *testing.T) {
	path := statePath(t)
	want := func(when string, ended bool) {
		t.Helper()
		if state.Ended(path) != ended {
			t.Errorf("%s: ended: %v", when, !ended)
		}
	}
	want("missing", false)
	db := open(t, path)
	want("empty", false)
	put(t, db, interfaces.Saved{Alloc: &api.Allocation{ID: "a"}})
	want("begun", false)
	put(t, db, interfaces.Saved{Terminal: true})
	want("ended", true)
	must.OK(t, db.Recreate(interfaces.Saved{Alloc: &api.Allocation{ID: "a"}}))
	want("begun again", false)
	put(t, db, interfaces.Saved{Terminal: true})
	data := must.Read(t, path)
	for at := range data {
		data[at] ^= 1
		writeFile(t, path, data)
		dump, err := state.Inspect(path) // the version in an earlier change is of no use any more
		want(fmt.Sprintf("byte %d is damaged", at), err == nil && len(dump.Problems) == 0)
		data[at] ^= 1
	}
	writeFile(t, path, append(data, logfile.Magic...))
	want("with what a crash has left", true)
}

// BenchmarkEnded asks a file of an allocation that has ended.
func BenchmarkEnded(b *testing.B) {
	path, _ := lived(b)
	db := open(b, path)
	put(b, db, interfaces.Saved{Terminal: true})
	for b.Loop() {
		if !state.Ended(path) {
			b.Fatal("not ended")
		}
	}
}
