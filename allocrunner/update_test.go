package allocrunner_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/same"
)

// TestAnUpdateDuringTheSetUp is followed by hooks and tasks that had been made of the job before.
func TestAnUpdateDuringTheSetUp(t *testing.T) {
	t.Parallel()
	d, begin := &diary{}, make(chan struct{})
	r := runWith(t, "service", func(g *api.TaskGroup, c *config) {
		noted(d, c)
		g.Services = []*api.Service{service("", okCheck("old"))}
		c.Hooks = append(c.Hooks, prerunHook(func() { <-begin }))
	}, shell("main", `trap 'exit 0' USR1; echo up > local/up; while :; do sleep 0.05; done`))
	next := r.version(func(j *api.Job) {
		j.Meta = map[string]string{"colour": "blue"}
		j.TaskGroups[0].Tasks[0].KillSignal = "SIGUSR1"
		j.TaskGroups[0].Services[0].Checks[0].Name = "new"
	})
	r.untilCalls(d, "prerun", 1)
	must.OK(t, r.runner.Update(t.Context(), next))
	close(begin)
	r.untilFile("main/local/up")
	r.untilState("main", "running")
	same.As(t, "new", r.onlyCheck().Check, "the check is")
	r.stop()
	must.OK(t, r.end())
	if e := event(r.runner.Alloc(), "main", "Terminated"); e.Details["exit_code"] != "0" {
		t.Errorf("the new kill_signal was not sent: %+v", e)
	}
	if calls := strings.Join(d.read(), "; "); !strings.HasPrefix(calls, "prerun g; update blue; main update blue; main "+
		"prestart") {
		t.Errorf("calls: %s", calls)
	}
}

// TestARefusedUpdateChangesNothing, whatever it is that can't be done.
func TestARefusedUpdateChangesNothing(t *testing.T) {
	t.Parallel()
	d := &diary{}
	r := runWith(t, "service", func(g *api.TaskGroup, c *config) {
		noted(d, c)
		g.Services = []*api.Service{service("", okCheck("c"))}
	}, shell("main", "exec sleep 1000"))
	r.untilCalls(d, "main poststart", 1)
	before := r.runner.Alloc()
	for name, edit := range map[string]func(*api.TaskGroup){
		"SIGNOPE": func(g *api.TaskGroup) { g.Tasks[0].KillSignal = "SIGNOPE" },
		"nolabel": func(g *api.TaskGroup) { g.Services[0].Checks[0].PortLabel = "nolabel" },
	} {
		next := r.version(func(j *api.Job) { edit(j.TaskGroups[0]) })
		same.Says(t, nil, name, r.runner.Update(t.Context(), next), name)
	}
	for name, edit := range map[string]func(*api.Job){
		"no such group": func(j *api.Job) { *j.TaskGroups[0].Name = "other" },
		"no such task":  func(j *api.Job) { j.TaskGroups[0].Tasks[0].Name = "other" },
	} {
		err := r.runner.Update(t.Context(), r.version(edit))
		if _, refused := errors.AsType[*interfaces.DestructiveError](err); !refused {
			t.Errorf("%s: it is not refused as destructive", name)
		}
	}
	if after := r.runner.Alloc(); *after.Job.Version != *before.Job.Version || after.ModifyIndex != before.ModifyIndex {
		t.Errorf("version %d, index %d; before: %d, %d", *after.Job.Version, after.ModifyIndex, *before.Job.Version,
			before.ModifyIndex)
	}
	if calls := strings.Join(d.read(), "; "); strings.Contains(calls, "update") {
		t.Errorf("hooks were called: %s", calls)
	}
}

// following is a hook that notes whether it has time to follow an update.
type following struct{ *diary }

func (f following) Name() string { return "following" }

func (f following) Update(ctx context.Context, _ *interfaces.RunnerUpdateRequest) error {
	f.note("update, given up " + map[bool]string{true: "yes", false: "no"}[ctx.Err() != nil])
	return errors.New("this is logged, and stops nothing")
}

// TestAnUpdateIsCompleted when its caller has gone away, and when a hook fails.
func TestAnUpdateIsCompleted(t *testing.T) {
	t.Parallel()
	d, log := &diary{}, &records{}
	r := runWith(t, "service", func(_ *api.TaskGroup, c *config) {
		noted(d, c)
		c.Hooks, c.Logger = append(c.Hooks, following{d}), slog.New(slog.NewTextHandler(log, nil))
	},
		shell("a", "exec sleep 1000"), shell("b", "exec sleep 1000"))
	r.untilCalls(d, "poststart", 2)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	next := r.version(func(j *api.Job) { j.Meta = map[string]string{"colour": "blue"} })
	if err := r.runner.Update(gone, next); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	r.untilCalls(d, "update, given up no", 1)
	r.untilCalls(d, "a update blue", 1)
	r.untilCalls(d, "b update blue", 1)
	if got := log.read(); !strings.Contains(got, "this is logged") {
		t.Errorf("logged:\n%s", got)
	}
}

// TestUpdateTasks: the tasks that an update names get new processes with the new version, the others keep theirs. What
// restarts don't suffice for is refused, and nothing restarts.
func TestUpdateTasks(t *testing.T) {
	t.Parallel()
	body := "echo $$ $TEXT >> $NOMAD_TASK_DIR/starts; exec sleep 1000"
	first := shell("first", "exit 0")
	first.Lifecycle = &api.TaskLifecycle{Hook: api.TaskLifecycleHookPrestart}
	r := run(t, "service", first, shell("changed", body), shell("other", body))
	starts := func(task string) []string {
		text, _ := os.ReadFile(filepath.Join(r.dir, task, "local", "starts"))
		return strings.FieldsFunc(string(text), func(c rune) bool { return c == '\n' })
	}
	untilStarts := func(task string, n int) []string {
		t.Helper()
		if !polltest.Until(func() bool { return len(starts(task)) >= n }) {
			t.Fatalf("%s has started %q, want %d", task, starts(task), n)
		}
		return starts(task)
	}
	untilStarts("changed", 1)
	untilStarts("other", 1)

	next := r.version(func(j *api.Job) { j.TaskGroups[0].Tasks[1].Env = map[string]string{"TEXT": "new"} })
	must.OK(t, r.runner.UpdateTasks(t.Context(), next, []string{"changed"}))
	if got := untilStarts("changed", 2); !strings.HasSuffix(got[1], " new") {
		t.Errorf("started %q, want the second with new", got)
	}
	if got := *r.saved().Alloc.Job.Version; got != 1 {
		t.Errorf("version %d is saved, want 1", got)
	}

	for name, edit := range map[string]func(*api.TaskGroup){
		"a task that is not named": func(g *api.TaskGroup) { g.Tasks[2].Env = map[string]string{"TEXT": "newer"} },
		"a task that has ended":    func(g *api.TaskGroup) { g.Tasks[0].Env = map[string]string{"TEXT": "newer"} },
		"another user":             func(g *api.TaskGroup) { g.Tasks[1].User = "nobody" },
	} {
		refused := copyJob(next)
		edit(refused.TaskGroups[0])
		before := len(starts("changed"))
		err := r.runner.UpdateTasks(t.Context(), refused, []string{"changed"})
		if _, is := errors.AsType[*interfaces.DestructiveError](err); !is {
			t.Errorf("%s: got %v, want a *DestructiveError", name, err)
		}
		if got := starts("changed"); len(got) != before {
			t.Errorf("%s: started %q, want none more", name, got)
		}
	}
	if got := starts("other"); len(got) != 1 {
		t.Errorf("the other task has started %q", got)
	}
	if event(r.runner.Alloc(), "first", "Restart Signaled") != nil {
		t.Error("the prestart task was restarted")
	}
	same.As(t, 1, *r.runner.Alloc().Job.Version, "version")
}
