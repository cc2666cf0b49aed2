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
	"pgregory.net/rapid"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
)

// TestModel puts changes at random and compares with what they come to.
func TestModel(t *testing.T) {
	dir, n := scratch(t), 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		path := filepath.Join(dir, fmt.Sprint(n))
		db, err := state.Open(path, "1")
		if err != nil {
			rt.Fatal(err)
		}
		model := &interfaces.Saved{}
		reopen := func(rt *rapid.T) {
			if err := db.Close(); err != nil {
				rt.Fatal(err)
			}
			if db, err = state.Open(path, rapid.SampledFrom([]string{"1", "2"}).Draw(rt, "version")); err != nil {
				rt.Fatal(err)
			}
		}
		for range rapid.IntRange(1, 12).Draw(rt, "changes") {
			c := drawChange(rt)
			write := db.Put
			if rapid.IntRange(0, 9).Draw(rt, "recreate") == 0 {
				write, *model = db.Recreate, interfaces.Saved{}
			}
			if err := write(c); err != nil {
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

func compare(rt *rapid.T, db *state.DB, want *interfaces.Saved) {
	got, err := db.Load()
	if want.Alloc == nil {
		if !errors.Is(err, state.ErrNotFound) {
			rt.Fatalf("without an allocation: %v", err)
		}
		return
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		rt.Fatalf("%v\n%s", err, d)
	}
}

// drawChange draws one of values that are small, and some as large as several pages.
func drawChange(rt *rapid.T) interfaces.Change {
	c := interfaces.Change{ID: "a", Over: rapid.IntRange(0, 9).Draw(rt, "over") == 0}
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
func apply(m *interfaces.Saved, c interfaces.Change) {
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
