package state_test

import (
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
)

// sink hands a version to the file as the buffer of updates does.
func sink(t testing.TB, db *state.DB, allocs ...*api.Allocation) {
	t.Helper()
	if err := db.PutAllocs(t.Context(), allocs); err != nil {
		t.Fatal(err)
	}
}

// desired is a version of "a" with a word that tells it from others, and the state of a task.
func desired(index uint64, word string) *api.Allocation {
	a := alloc("a", index)
	a.DesiredStatus, a.TaskStates = word, map[string]*api.TaskState{"t": taskState(word)}
	return a
}

// TestAnOlderVersionNeverFollows has the buffer come late with a version that the runner has overtaken, and the runner with one that the
// buffer has: what else the change holds is written.
func TestAnOlderVersionNeverFollows(t *testing.T) {
	path := statePath(t)
	db := open(t, path)
	old, young := job("old"), job("young")
	given := func(index uint64, word string, job *api.Job) *api.Allocation {
		a := desired(index, word)
		a.Job = job
		return a
	}
	want := func(word string, over bool) {
		t.Helper()
		if got := saved(t, db, "a"); got.Alloc.DesiredStatus != word || got.Over != over || *got.Alloc.Job.ID != "young" {
			t.Errorf("%s of job %s, over %v; want %s", got.Alloc.DesiredStatus, *got.Alloc.Job.ID, got.Over, word)
		}
	}
	put(t, db, interfaces.Change{ID: "a", Alloc: given(1, "run", old)}, interfaces.Change{ID: "a", Alloc: given(3, "stop", young)})
	sink(t, db, given(2, "run", old))
	want("stop", false)
	sink(t, db, given(5, "later", young))
	put(t, db, interfaces.Change{ID: "a", Alloc: given(4, "stop", old), Over: true})
	want("later", true)

	release := db.Hold() // what comes now is written together, in whatever order it comes
	var group sync.WaitGroup
	group.Go(func() { sink(t, db, given(7, "newest", young)) })
	group.Go(func() { put(t, db, interfaces.Change{ID: "a", Alloc: given(6, "older", old)}) })
	release()
	group.Wait()
	want("newest", true)

	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = open(t, path)
	put(t, db, interfaces.Change{ID: "a", Alloc: given(1, "anew", young)})
	want("anew", true)
}

// TestTaskStatesAreKeptOnce: with the tasks' records, or with the allocation where a task has none.
func TestTaskStatesAreKeptOnce(t *testing.T) {
	path := statePath(t)
	db := open(t, path)
	states := func(db *state.DB, want map[string]*api.TaskState) {
		t.Helper()
		if d := cmp.Diff(want, saved(t, db, "a").Alloc.TaskStates); d != "" {
			t.Errorf("task states (-want +got):\n%s", d)
		}
	}
	sink(t, db, desired(5, "w"))
	put(t, db, interfaces.Change{ID: "a", Alloc: desired(5, "w")}) // the runner writes the same one without
	states(db, map[string]*api.TaskState{"t": taskState("w")})

	put(t, db, interfaces.Change{ID: "a", Tasks: map[string]interfaces.SavedTask{"t": task("own")}})
	both := desired(6, "x")
	both.TaskStates["u"] = taskState("other")
	sink(t, db, both)
	states(db, map[string]*api.TaskState{"t": taskState("own"), "u": taskState("other")})
	if len(both.TaskStates) != 2 {
		t.Error("what was given has been changed")
	}

	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = open(t, path) // which knows of the records
	before := db.Stats().Writes
	sink(t, db, desired(7, "y"))
	same := desired(7, "z")
	same.DesiredStatus = "y"
	sink(t, db, same) // but for the state of a task that has a record
	if n := db.Stats().Writes - before; n != 1 {
		t.Errorf("%d writes, want 1", n)
	}
}
