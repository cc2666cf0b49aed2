package state_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
)

func TestChangesAtTheSameTimeAreWrittenTogether(t *testing.T) {
	path := statePath(t)
	synctest.Test(t, func(t *testing.T) {
		db, err := state.Open(path, "")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		const callers = 100
		release := db.Hold()
		var calls sync.WaitGroup
		for i := range callers {
			calls.Go(func() { put(t, db, interfaces.Change{ID: fmt.Sprint(i), Alloc: alloc(fmt.Sprint(i), 1)}) })
		}
		synctest.Wait()
		release()
		calls.Wait()
		if s := db.Stats(); s.Puts != callers || s.Writes != 1 {
			t.Errorf("%+v, want %d puts and 1 write", s, callers)
		}
		for i := range callers {
			saved(t, db, fmt.Sprint(i))
		}
	})
}

// TestLoneChangeDoesNotWait: time stands still while anybody works, and goes on when all wait for it.
func TestLoneChangeDoesNotWait(t *testing.T) {
	path := statePath(t)
	synctest.Test(t, func(t *testing.T) {
		db, err := state.Open(path, "")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		since := time.Now()
		for i := range uint64(10) {
			put(t, db, interfaces.Change{ID: "a", Alloc: alloc("a", i)})
		}
		if waited := time.Since(since); waited != 0 || db.Stats().Writes != 10 {
			t.Errorf("waited %v for %+v", waited, db.Stats())
		}
	})
}

// TestLastOneWins: who calls one after the other, beside others who do, finds what was put last.
func TestLastOneWins(t *testing.T) {
	path := statePath(t)
	db := open(t, path)
	const callers, rounds = 20, 20
	var calls sync.WaitGroup
	for i := range callers {
		id := fmt.Sprint(i % 4) // five for each allocation, each with a task of its own
		name := fmt.Sprint("t", i)
		calls.Go(func() {
			for n := 1; n <= rounds; n++ {
				put(t, db, interfaces.Change{ID: id, Alloc: alloc(id, 1), Tasks: map[string]interfaces.SavedTask{name: {Attempts: n}}})
			}
		})
	}
	calls.Wait()
	db.Close()
	for i := range 4 {
		got, err := state.ReadAlloc(path, fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		for name, task := range got.Tasks {
			if task.Attempts != rounds || len(got.Tasks) != callers/4 {
				t.Errorf("allocation %d, task %s of %d: %d, want %d", i, name, len(got.Tasks), task.Attempts, rounds)
			}
		}
	}
}
