package allocrunner_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
)

// ends returns a task that writes its name to the order when it is signalled.
func ends(name string, edits ...func(*api.Task)) *api.Task {
	return shell(name, `trap 'echo $NOMAD_TASK_NAME >> $NOMAD_ALLOC_DIR/order; exit 0' INT; echo up > local/up; while `+
		`:; do sleep 0.05; done`, edits...)
}

func leads(t *api.Task) { t.Leader = true }

// fails fails when there is a file of its name.
func fails(name string, edits ...func(*api.Task)) *api.Task {
	return shell(name, `until [ -e $NOMAD_ALLOC_DIR/$NOMAD_TASK_NAME ]; do sleep 0.05; done; exit 3`, edits...)
}

// TestOrderOfAStop is the leader, all others but sidecars, the sidecars, and then poststop runs.
func TestOrderOfAStop(t *testing.T) {
	t.Parallel()
	r := run(t, "service",
		ends("early", lifecycle("prestart", true)), ends("late", lifecycle("poststart", true)),
		ends("one"), ends("boss", leads), ends("two"),
		shell("bye", "echo bye >> $NOMAD_ALLOC_DIR/order", lifecycle("poststop", false)))
	for _, task := range []string{"early", "late", "one", "boss", "two"} {
		r.untilFile(task + "/local/up")
		r.untilState(task, "running")
	}
	r.stop()
	must.OK(t, r.end())
	got := strings.Fields(r.untilFile("alloc/order"))
	if len(got) != 6 || got[0] != "boss" || got[5] != "bye" {
		t.Fatalf("order %v", got)
	}
	for i, task := range got[1:5] {
		if main := task == "one" || task == "two"; main != (i < 2) {
			t.Errorf("order %v: sidecars come after the others", got)
		}
	}
	for _, task := range []string{"early", "late", "one", "two"} {
		r.wantEvents(task, "Received", "Task Setup", "Started", "Leader Task Dead", "Killing", "Terminated", "Killed")
	}
	r.wantEvents("boss", "Received", "Task Setup", "Started", "Killing", "Terminated", "Killed")
}

// TestSidecarsOutliveTheMainTasksOfAStop: as in Nomad, they are killed for that.
func TestSidecarsOutliveTheMainTasksOfAStop(t *testing.T) {
	t.Parallel()
	r := run(t, "service", ends("early", lifecycle("prestart", true)), ends("main"),
		ends("late", lifecycle("poststart", true)))
	for _, task := range []string{"early", "main", "late"} {
		r.untilFile(task + "/local/up")
		r.untilState(task, "running")
	}
	r.stop()
	must.OK(t, r.end())
	r.wantEvents("main", "Received", "Task Setup", "Started", "Killing", "Terminated", "Killed")
	for _, task := range []string{"early", "late"} {
		r.wantEvents(task, "Received", "Task Setup", "Started", "Main Tasks Dead", "Killing", "Terminated", "Killed")
	}
}

// TestManyAreStoppedTogether, and each has its own exit code.
func TestManyAreStoppedTogether(t *testing.T) {
	t.Parallel()
	const many = 40
	var tasks []*api.Task
	for i := range many {
		tasks = append(tasks,
			shell(fmt.Sprintf("t%d", i), fmt.Sprintf(`trap 'exit %d' INT; echo up > local/up; sleep 1000 & wait`, 1+i)))
	}
	r := run(t, "service", tasks...)
	for i := range many {
		r.untilFile(fmt.Sprintf("t%d/local/up", i))
		r.untilState(fmt.Sprintf("t%d", i), "running")
	}
	r.stop()
	must.OK(t, r.end())
	for i := range many {
		task := fmt.Sprintf("t%d", i)
		var codes []string
		for _, e := range r.runner.Alloc().TaskStates[task].Events {
			if e.Type == api.TaskTerminated {
				codes = append(codes, e.Details["exit_code"])
			}
		}
		if len(codes) != 1 || codes[0] != strconv.Itoa(1+i) {
			t.Errorf("%s: exit codes %v", task, codes)
		}
	}
}

// TestADeadLeaderEndsThoseInARestartDelay, too.
func TestADeadLeaderEndsThoseInARestartDelay(t *testing.T) {
	t.Parallel()
	r := run(t, "batch", shell("boss", "until [ -e $NOMAD_ALLOC_DIR/go ]; do sleep 0.05; done", leads),
		shell("waits", "exit 1", func(t *api.Task) {
			t.RestartPolicy = &api.RestartPolicy{Attempts: new(1), Interval: new(2 * time.Hour), Delay: new(time.Hour),
				Mode: new("fail")}
		}))
	r.untilEvents("waits", "Restarting", 1)
	r.write("alloc/go", "")
	must.OK(t, r.end())
	r.wantEvents("waits", "Received", "Task Setup", "Started", "Terminated", "Restarting", "Leader Task Dead", "Killing")
	r.wantEvents("boss", "Received", "Task Setup", "Started", "Terminated")
}

// TestATaskThatFailsForGoodEndsAll but a poststop task, which only fails the allocation.
func TestATaskThatFailsForGoodEndsAll(t *testing.T) {
	t.Parallel()
	killed := []string{"Received", "Task Setup", "Started", "Sibling Task Failed", "Killing", "Terminated", "Killed"}
	for name, tc := range map[string]struct {
		failing *api.Task
		stops   bool // the allocation has to be stopped for the task to run
		main    []string
	}{
		"prestart sidecar": {fails("x", lifecycle("prestart", true)), false, killed},
		"main":             {fails("x"), false, killed},
		"leader":           {fails("x", leads), false, killed},
		"poststart":        {fails("x", lifecycle("poststart", false)), false, killed},
		"poststop": {fails("x", lifecycle("poststop", false)), true, []string{"Received", "Task Setup", "Started",
			"Killing", "Terminated", "Killed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t, "service", tc.failing, shell("main", "exec sleep 1000"),
				shell("bye", "echo bye > $NOMAD_ALLOC_DIR/bye", lifecycle("poststop", false)))
			r.untilState("main", "running")
			if tc.stops {
				r.stop()
			}
			r.untilState("x", "running")
			r.write("alloc/x", "")
			if err := r.end(); !errors.Is(err, allocrunner.ErrFailed) || !strings.Contains(err.Error(), `task "x"`) {
				t.Errorf("got %v, want the failure of x", err)
			}
			r.wantEvents("main", tc.main...)
			r.untilFile("alloc/bye")
			if got := r.runner.Alloc(); got.ClientStatus != "failed" || got.TaskStates["main"].Failed {
				t.Errorf("status %s, main %+v", got.ClientStatus, got.TaskStates["main"])
			}
		})
	}
}

// TestASidecarThatRestartsKeepsMainBack while main has not started, and hurts nobody afterwards.
func TestASidecarThatRestartsKeepsMainBack(t *testing.T) {
	t.Parallel()
	r := run(t, "batch",
		shell("side",
			`echo up >> local/up; until [ -e $NOMAD_ALLOC_DIR/side ]; do sleep 0.05; done; rm $NOMAD_ALLOC_DIR/side; exit 1`,
			lifecycle("prestart", true), func(t *api.Task) { t.RestartPolicy = &api.RestartPolicy{Attempts: new(5)} }),
		shell("init", `until [ -e $NOMAD_ALLOC_DIR/init ]; do sleep 0.05; done`, lifecycle("prestart", false)),
		shell("main", `until [ -e $NOMAD_ALLOC_DIR/main ]; do sleep 0.05; done`))
	for n := 1; n <= 2; n++ {
		r.untilLines("side/local/up", n)
		r.write("alloc/side", "")
	}
	r.untilLines("side/local/up", 3)
	r.wantEvents("main", "Received")
	r.write("alloc/init", "")
	r.untilState("main", "running")
	r.write("alloc/side", "")
	r.untilLines("side/local/up", 4)
	r.write("alloc/main", "")
	must.OK(t, r.end())
	r.wantEvents("main", "Received", "Task Setup", "Started", "Terminated")
}

// TestPoststopRunsWhenNothingElseHas: the allocation was stopped before main could start.
func TestPoststopRunsWhenNothingElseHas(t *testing.T) {
	t.Parallel()
	r := run(t, "service", ends("init", lifecycle("prestart", false)), ends("main"),
		shell("bye", "echo bye >> $NOMAD_ALLOC_DIR/order", lifecycle("poststop", false)))
	r.untilFile("init/local/up")
	r.untilState("init", "running")
	r.stop()
	must.OK(t, r.end())
	if diff := cmp.Diff("init\nbye", r.untilFile("alloc/order")); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	r.wantEvents("main", "Received", "Killing")
}

// TestAStopWaitsForNoOtherInterval of a poststop task's restart policy, whether the wait began before it, after it, or
// under another runner.
func TestAStopWaitsForNoOtherInterval(t *testing.T) {
	t.Parallel()
	bye := func() *api.Task {
		return shell("bye", "exit 4", lifecycle("poststop", false), func(t *api.Task) {
			t.RestartPolicy = &api.RestartPolicy{Attempts: new(1), Interval: new(time.Hour), Delay: new(time.Millisecond),
				Mode: new("delay")}
		})
	}
	waits := func(a *api.Allocation) bool {
		e := event(a, "bye", "Restarting")
		return e != nil && strings.HasPrefix(e.DisplayMessage, "Exceeded allowed attempts, applying a delay")
	}
	fails := func(t *testing.T, r *running) {
		t.Helper()
		if err := r.end(); !errors.Is(err, allocrunner.ErrFailed) ||
			!strings.Contains(err.Error(), `task "bye": Exit Code: 4`) {
			t.Errorf("got %v, want the failure of bye", err)
		}
		got := event(r.runner.Alloc(), "bye", "Not Restarting")
		if got == nil ||
			got.DisplayMessage != "Exceeded allowed attempts 1 in interval 1h0m0s and a stop does not wait for the next" {
			t.Errorf("events of bye: %v, the last is %+v", r.of("bye"), got)
		}
	}
	t.Run("after the stop", func(t *testing.T) {
		t.Parallel()
		r := run(t, "service", shell("main", "exec sleep 1000"), bye())
		r.untilState("main", "running")
		r.stop()
		fails(t, r)
		r.wantEvents("bye", "Received", "Task Setup", "Started", "Terminated", "Restarting", "Started", "Terminated",
			"Not Restarting")
	})
	t.Run("before the stop", func(t *testing.T) {
		t.Parallel()
		r := run(t, "batch", shell("main", "exit 0"), bye())
		r.until("bye waits", waits)
		r.stop()
		fails(t, r)
	})
	t.Run("another runner", func(t *testing.T) {
		t.Parallel()
		state := &memory{}
		var cfg config
		r := runWith(t, "batch", func(_ *api.TaskGroup, c *config) { c.State = state; cfg = *c }, shell("main", "exit 0"),
			bye())
		r.until("bye waits", waits)
		r.runner.Detach()
		if err := r.end(); !errors.Is(err, interfaces.ErrDetached) {
			t.Fatalf("got %v, want ErrDetached", err)
		}
		cfg.Saved = state.saved()
		cfg.Saved.Alloc.DesiredStatus = "stop" // as when it was killed between the one and the other
		fails(t, begin(t, cfg))
	})
}

// TestNothingOfATaskIsLeft when it ends by itself, or is stopped, whatever its processes did to hide.
func TestNothingOfATaskIsLeft(t *testing.T) {
	t.Parallel()
	const hides = `setsid sh -c 'trap "" INT TERM HUP; echo $$ > local/child; while :; do sleep 0.1; done' & until [ -s ` +
		`local/child ]; do sleep 0.05; done; echo up > local/up; `
	for name, tc := range map[string]struct {
		script string
		stop   bool
	}{
		"ends":    {hides + "exit 0", false},
		"stopped": {hides + "exec sleep 1000", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t, "batch", shell("main", tc.script),
				shell("bye", `stat=$(cat /proc/$(cat $NOMAD_ALLOC_DIR/../main/local/child)/stat); case "$stat" in ""|*") Z "*) `+
					`echo gone ;; *) echo "$stat" ;; esac > local/found`, lifecycle("poststop", false)))
			r.untilFile("main/local/up")
			if tc.stop {
				r.untilState("main", "running")
				r.stop()
			}
			must.OK(t, r.end())
			if got := r.untilFile("bye/local/found"); got != "gone" {
				t.Errorf("a process of main still ran when the next task began: %s", got)
			}
			if e := event(r.runner.Alloc(), "main", api.TaskDriverMessage); e == nil || e.Details["leftover_processes"] == "" {
				t.Errorf("nothing tells of what was left behind: %v", r.of("main"))
			}
		})
	}
}

// TestEndsDuringTheSetUp take effect before anything starts.
func TestEndsDuringTheSetUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(*allocrunner.Runner)
		want error
	}{
		"detached": {(*allocrunner.Runner).Detach, interfaces.ErrDetached},
		"killed":   {(*allocrunner.Runner).Kill, nil},
		"stopped":  {func(r *allocrunner.Runner) { _ = r.Stop(t.Context(), interfaces.StopRequest{}) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			entered, goOn := make(chan struct{}), make(chan struct{})
			hook := &updating{func(context.Context) error { close(entered); <-goOn; return nil }}
			r := runWith(t, "service", func(_ *api.TaskGroup, cfg *interfaces.Config) { cfg.Hooks = append(cfg.Hooks, hook) },
				shell("main", "exec sleep 1000"))
			until(t, entered)
			c.end(r.runner)
			close(goOn)
			if err := r.end(); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if seen := r.seen(); slices.Contains(seen, "main: Task Setup") {
				t.Errorf("the task has begun to start: %v", seen)
			}
			if got := r.runner.Terminal(); got != (c.want == nil) {
				t.Errorf("terminal: %v", got)
			}
			// the keeper of the detached one, which works in the directory
			if _, err := allocrunner.KillOrphans(context.Background(), r.dir); err != nil {
				t.Error(err)
			}
		})
	}
}
