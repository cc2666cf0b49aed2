package allocrunner_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// moments is a State that remembers what it had after each write.
type moments struct {
	memory
	mu  sync.Mutex // guards had; held over a write, so that they come in order
	had []*interfaces.Saved
}

func (m *moments) Put(c interfaces.Saved) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.memory.Put(c); err != nil {
		return err
	}
	m.had = append(m.had, m.saved())
	return nil
}

// TestThePowerIsCut after each write of an allocation's life. The next runner brings the allocation to its end: dead
// tasks do not run again, nor do running tasks without a restart policy; poststop tasks follow the main tasks; a stop
// is not forgotten; and the index goes on above every index that was seen.
func TestThePowerIsCut(t *testing.T) {
	t.Parallel()
	says := `echo >> $NOMAD_TASK_DIR/runs; `
	forever := says + `exec sleep 1000`
	for name, tc := range map[string]struct {
		stopped bool
		tasks   func() []*api.Task
	}{
		"its leader ends": {false, func() []*api.Task {
			return []*api.Task{
				shell("lead", says, func(t *api.Task) { t.Leader = true }),
				shell("other", forever),
				shell("beside", forever, lifecycle("poststart", true)),
				shell("last", says, lifecycle("poststop", false)),
			}
		}},
		"it is stopped": {true, func() []*api.Task {
			return []*api.Task{shell("other", forever), shell("last", says, lifecycle("poststop", false))}
		}},
	} {
		state := &moments{}
		r := runWith(t, "batch", func(_ *api.TaskGroup, c *config) { c.State = state }, tc.tasks()...)
		if tc.stopped {
			r.untilState("other", "running")
			must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
		}
		_ = r.end() // tasks that were killed may count as failed
		index := r.runner.Alloc().ModifyIndex
		if len(state.had) < 4 || !state.had[len(state.had)-1].Terminal {
			t.Fatalf("%s: %d writes, the last without the end", name, len(state.had))
		}
		for i, had := range state.had {
			t.Run(fmt.Sprintf("%s/%d of %d", name, i+1, len(state.had)), func(t *testing.T) {
				t.Parallel()
				next := r.cfg
				next.Saved, next.State, next.Dir = had, &memory{}, filepath.Join(t.TempDir(), "alloc")
				goOn(t, next, tc.stopped, index)
			})
		}
	}
}

// goOn runs an allocation from its saved state to its end, on a machine where no process is left.
func goOn(t *testing.T, cfg interfaces.Config, stopped bool, index uint64) {
	t.Helper()
	before := cfg.Saved
	r := begin(t, cfg)
	if stopped && before.Alloc.DesiredStatus != "stop" {
		must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
	}
	_ = r.end()
	alloc := r.runner.Alloc()
	if !r.runner.Terminal() || alloc.ModifyIndex <= index || stopped != (alloc.DesiredStatus == "stop") {
		t.Errorf("over %v, index %d after %d, to %s", r.runner.Terminal(), alloc.ModifyIndex, index, alloc.DesiredStatus)
	}
	for name, is := range alloc.TaskStates {
		was, known := before.Tasks[name]
		if !known {
			t.Errorf("nothing was written down of %s", name)
			continue
		}
		text, _ := os.ReadFile(filepath.Join(cfg.Dir, name, "local", "runs"))
		runs := len(text)
		same.As(t, "dead", is.State, name, " is at the end")
		if most := map[bool]int{true: 0, false: 1}[was.Phase == "dead" || was.Handle != nil]; runs > most {
			t.Errorf("%s runs %d times after it was %s", name, runs, was.Phase)
		}
		if name == "last" && was.Handle == nil && runs != 1 {
			t.Errorf("the poststop task does not run after it was %s", was.Phase)
		}
		if was.Phase == "running" && count(types(is), "Terminated") != count(types(was.State), "Terminated")+1 {
			t.Errorf("%s: %q; want the end of the process to be reported", name, types(is))
		}
	}
}

// types returns the types of a task's events.
func types(s *api.TaskState) []string {
	var all []string
	for _, e := range s.Events {
		all = append(all, e.Type)
	}
	return all
}
