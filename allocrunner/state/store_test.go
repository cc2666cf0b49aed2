package state_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
	"pgregory.net/rapid"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestStore: files keep what interfaces.Store promises.
func TestStore(t *testing.T) {
	for what, test := range map[string]func(*testing.T, interfaces.Store){
		"saved outlives its owner": testOutlives, "one owner": testOwner, "at the same time": testConcurrent,
		"model": testModel,
	} {
		t.Run(what, func(t *testing.T) {
			dir := scratch(t)
			test(t, state.Store{Path: func(id string) string { return filepath.Join(dir, id) }, Version: "1.2.3"})
		})
	}
}

func acquire(t testing.TB, s interfaces.Store, id string) interfaces.OwnedState {
	t.Helper()
	owned := must.Get(s.Acquire(id))(t)
	t.Cleanup(func() { owned.Close() })
	return owned
}

// put puts changes, one after the other.
func put(t testing.TB, s interfaces.OwnedState, changes ...interfaces.Saved) {
	t.Helper()
	for _, c := range changes {
		must.OK(t, s.Put(c))
	}
}

// load returns what is saved.
func load(t testing.TB, s interfaces.OwnedState) *interfaces.Saved {
	t.Helper()
	return must.Get(s.Load())(t)
}

// diff reports an error where got is not want.
func diff(t testing.TB, what string, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// taskState returns the state of a running task with an event of that text.
func taskState(text string) *api.TaskState {
	return &api.TaskState{State: "running", Events: []*api.TaskEvent{{Type: "Started", DisplayMessage: text, Time: 7}}}
}

// task returns a task as it is saved in a phase.
func task(phase string) interfaces.SavedTask {
	return interfaces.SavedTask{Phase: phase, State: taskState(phase), Attempts: 2, Due: time.Unix(9, 0).UTC(),
		Hooks: map[string]map[string]string{"h": {"k": "v"}}}
}

func storeAlloc(id string, index uint64, job string) *api.Allocation {
	return &api.Allocation{ID: id, ClientStatus: "running", TaskGroup: "g", ModifyIndex: index, Job: &api.Job{ID: &job}}
}

func testOutlives(t *testing.T, s interfaces.Store) {
	owned := acquire(t, s, "a")
	same.Error(t, interfaces.ErrNoState, same.Err(owned.Load()), "of nothing")
	given := storeAlloc("a", 7, "j")
	given.TaskStates = map[string]*api.TaskState{"gone": {}} // Tasks have them
	checks := api.AllocCheckStatuses{"c": {Check: "up", Status: "success"}}
	put(t, owned, interfaces.Saved{Alloc: given, Terminal: true, Checks: checks, Life: "life",
		KillAfter: time.Unix(5, 0).UTC(),
		Tasks:     map[string]interfaces.SavedTask{"t": task("run"), "u": {Phase: "new"}}})
	want := &interfaces.Saved{Alloc: storeAlloc("a", 7, "j"), Terminal: true, Life: "life",
		KillAfter: time.Unix(5, 0).UTC(), Checks: api.AllocCheckStatuses{"c": {Check: "up", Status: "success"}},
		Tasks: map[string]interfaces.SavedTask{"t": task("run"), "u": {Phase: "new"}}}
	want.Alloc.TaskStates = map[string]*api.TaskState{"t": taskState("run")}
	if given.Job == nil || given.TaskStates["gone"] == nil {
		t.Error("the caller's allocation has been changed")
	}
	given.ModifyIndex, checks["c"] = 99, api.AllocCheckStatus{} // which are the caller's to change
	diff(t, "while it is owned", want, load(t, owned))
	if err := errors.Join(owned.Close(), owned.Close()); err != nil {
		t.Fatalf("close twice: %v", err)
	}
	diff(t, "by the next owner", want, load(t, acquire(t, s, "a")))
}

func testOwner(t *testing.T, s interfaces.Store) {
	owned := acquire(t, s, "a")
	acquire(t, s, "b")
	same.Error(t, interfaces.ErrStateInUse, same.Err(s.Acquire("a")), "a second owner")
	must.OK(t, owned.Recreate(interfaces.Saved{Alloc: storeAlloc("a", 1, "j")}))
	same.Error(t, interfaces.ErrStateInUse, same.Err(s.Acquire("a")), "a second owner of what was made again")
	must.OK(t, owned.Close())
	if got := load(t, acquire(t, s, "a")); got.Alloc.ModifyIndex != 1 {
		t.Errorf("the next owner finds %+v", got.Alloc)
	}
}

// testConcurrent has many callers put changes at the same time: each finds what it has put last.
func testConcurrent(t *testing.T, s interfaces.Store) {
	owned := acquire(t, s, "a")
	const callers, rounds = 20, 20
	var calls sync.WaitGroup
	for i := range callers {
		name := fmt.Sprint("t", i)
		calls.Go(func() {
			for n := 1; n <= rounds; n++ {
				put(t, owned, interfaces.Saved{Alloc: storeAlloc("a", 1, "j"),
					Tasks: map[string]interfaces.SavedTask{name: {Attempts: n}}})
			}
		})
	}
	calls.Wait()
	for name, task := range load(t, owned).Tasks {
		same.As(t, rounds, task.Attempts, "task ", name)
	}
}

// testModel makes changes at random, and compares the store with a model.
func testModel(t *testing.T, s interfaces.Store) {
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		id := fmt.Sprint(n)
		owned, err := s.Acquire(id)
		model := interfaces.Saved{}
		for range rapid.IntRange(1, 12).Draw(rt, "changes") {
			must.OK(rt, err)
			c, write := drawChange(rt, id), owned.Put
			if rapid.IntRange(0, 9).Draw(rt, "recreate") == 0 {
				write, model = owned.Recreate, interfaces.Saved{}
			}
			must.OK(rt, write(c))
			apply(&model, c)
			if rapid.IntRange(0, 3).Draw(rt, "again") > 0 {
				continue
			}
			compare(rt, owned, &model)
			must.OK(rt, owned.Close())
			owned, err = s.Acquire(id)
		}
		must.OK(rt, err)
		compare(rt, owned, &model)
		owned.Close()
	})
}

func compare(rt *rapid.T, s interfaces.OwnedState, want *interfaces.Saved) {
	got, err := s.Load()
	if want.Alloc == nil {
		if !errors.Is(err, interfaces.ErrNoState) {
			rt.Fatalf("without an allocation: %v", err)
		}
		return
	}
	must.OK(rt, err)
	if reflect.DeepEqual(want, got) { // much faster than Diff, and too strict about times
		return
	}
	if d := cmp.Diff(want, got); d != "" {
		rt.Fatal(d)
	}
}

// drawChange draws a change. Most of its values are small, and some as large as several pages.
func drawChange(rt *rapid.T, id string) interfaces.Saved {
	c := interfaces.Saved{Terminal: rapid.IntRange(0, 9).Draw(rt, "over") == 0}
	text := func(label string) string {
		return strings.Repeat("x", rapid.SampledFrom([]int{1, 100, 1500, 5000}).Draw(rt, label))
	}
	if rapid.Bool().Draw(rt, "alloc") {
		c.Alloc = storeAlloc(id, rapid.Uint64Range(1, 9).Draw(rt, "index"), text("job"))
		c.Alloc.ClientDescription = text("description")
	}
	if rapid.Bool().Draw(rt, "checks") {
		c.Checks = api.AllocCheckStatuses{}
		if rapid.Bool().Draw(rt, "one check") {
			c.Checks[text("check")] = api.AllocCheckStatus{Status: "success"}
		}
	}
	if rapid.Bool().Draw(rt, "life") {
		c.Life = text("life")
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

// apply makes a change to the model.
func apply(m *interfaces.Saved, c interfaces.Saved) {
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
	if c.Checks != nil {
		m.Checks = c.Checks
	}
	if c.Life != "" {
		m.Life = c.Life
	}
	m.Terminal = m.Terminal || c.Terminal
	if !c.KillAfter.IsZero() {
		m.KillAfter = c.KillAfter
	}
	m.ShowTasks()
}
