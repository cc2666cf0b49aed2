package state_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
	bolt "go.etcd.io/bbolt"
	"pgregory.net/rapid"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
)

// TestModel puts changes at random and compares with what they come to; and bbolt's own check with ours.
func TestModel(t *testing.T) {
	dir, n := scratch(t), 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		path := filepath.Join(dir, fmt.Sprint(n))
		db, err := state.Open(path, "1")
		if err != nil {
			rt.Fatal(err)
		}
		model := map[string]*interfaces.Saved{}
		reopen := func(rt *rapid.T) {
			if err := db.Close(); err != nil {
				rt.Fatal(err)
			}
			checkWithBolt(rt, path)
			if db, err = state.Open(path, rapid.SampledFrom([]string{"1", "2"}).Draw(rt, "version")); err != nil {
				rt.Fatal(err)
			}
		}
		for range rapid.IntRange(1, 12).Draw(rt, "changes") {
			c := drawChange(rt)
			if err := db.Put(c); err != nil {
				rt.Fatal(err)
			}
			apply(model, c)
			if rapid.IntRange(0, 3).Draw(rt, "reopen") == 0 {
				reopen(rt)
			}
		}
		compare(rt, db, model)
		reopen(rt)
		compare(rt, db, model)
		db.Close()
	})
}

func compare(rt *rapid.T, db *state.DB, model map[string]*interfaces.Saved) {
	for id, want := range model {
		got, err := db.Saved(id)
		if want.Alloc == nil {
			if !errors.Is(err, state.ErrNotFound) {
				rt.Fatalf("%s without an allocation: %v", id, err)
			}
			continue
		}
		if d := cmp.Diff(want, got); d != "" || err != nil {
			rt.Fatalf("%s: %v\n%s", id, err, d)
		}
	}
}

// drawChange draws one of values that are small, and some as large as several pages.
func drawChange(rt *rapid.T) interfaces.Change {
	c := interfaces.Change{ID: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "id"), Over: rapid.IntRange(0, 9).Draw(rt, "over") == 0}
	text := func(label string) string {
		return strings.Repeat("x", rapid.SampledFrom([]int{1, 100, 1500, 5000}).Draw(rt, label))
	}
	if rapid.Bool().Draw(rt, "alloc") {
		c.Alloc = alloc(c.ID, rapid.Uint64Range(1, 9).Draw(rt, "index"))
		c.Alloc.ClientDescription = text("description")
		name := text("job")
		c.Alloc.Job = &api.Job{ID: &name}
	}
	if rapid.Bool().Draw(rt, "kill") {
		c.KillAfter = time.Unix(rapid.Int64Range(1, 9).Draw(rt, "kill after"), 0).UTC()
	}
	for range rapid.IntRange(0, 3).Draw(rt, "tasks") {
		if c.Tasks == nil {
			c.Tasks = map[string]interfaces.SavedTask{}
		}
		c.Tasks[rapid.SampledFrom([]string{"t", "u", "v", "w"}).Draw(rt, "task")] = task(text("phase"))
	}
	return c
}

// apply does to the model what a change is to do.
func apply(model map[string]*interfaces.Saved, c interfaces.Change) {
	if model[c.ID] == nil {
		model[c.ID] = &interfaces.Saved{}
	}
	m := model[c.ID]
	if c.Alloc != nil {
		a := *c.Alloc
		m.Alloc = &a
	}
	for name, task := range c.Tasks {
		if m.Tasks == nil {
			m.Tasks = map[string]interfaces.SavedTask{}
		}
		m.Tasks[name] = task
	}
	m.Over = m.Over || c.Over
	if !c.KillAfter.IsZero() {
		m.KillAfter = c.KillAfter
	}
	if m.Alloc != nil && m.Tasks != nil {
		m.Alloc.TaskStates = map[string]*api.TaskState{}
		for name, task := range m.Tasks {
			m.Alloc.TaskStates[name] = task.State
		}
	}
}

func checkWithBolt(rt *rapid.T, path string) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		rt.Fatal(err)
	}
	defer db.Close()
	_ = db.View(func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			rt.Errorf("bbolt: %v", err)
		}
		return nil
	})
}
