package allocrunner_test

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// ends returns a task that writes its name to the order when it is signalled.
func ends(name string, edits ...func(*api.Task)) *api.Task {
	return shell(name, `trap 'echo $NOMAD_TASK_NAME >> $NOMAD_ALLOC_DIR/order; exit 0' INT; echo up > local/up; while `+
		`:; do sleep 0.05; done`, edits...)
}

func leads(t *api.Task) { t.Leader = true }

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

// TestATaskThatFailsForGoodEndsAll but a poststop task. The failure is the allocation's, and not that of those that end
// with the task.
func TestATaskThatFailsForGoodEndsAll(t *testing.T) {
	t.Parallel()
	r := run(t, "service", shell("main", "exec sleep 1000"),
		shell("x", `until [ -e $NOMAD_ALLOC_DIR/x ]; do sleep 0.05; done; exit 3`, lifecycle("poststart", false)),
		shell("bye", "echo bye > $NOMAD_ALLOC_DIR/bye", lifecycle("poststop", false)))
	r.untilState("x", "running")
	r.write("alloc/x", "")
	same.Says(t, allocrunner.ErrFailed, `task "x": Exit Code: 3`, r.end())
	r.wantEvents("main", "Received", "Task Setup", "Started", "Sibling Task Failed", "Killing", "Terminated", "Killed")
	r.untilFile("alloc/bye")
	if got := r.runner.Alloc(); got.ClientStatus != "failed" || got.TaskStates["main"].Failed {
		t.Errorf("status %s, main %+v", got.ClientStatus, got.TaskStates["main"])
	}
}

// TestAStopWaitsForNoOtherInterval of a poststop task's restart policy, also where the wait began under another runner.
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
		same.Says(t, allocrunner.ErrFailed, `task "bye": Exit Code: 4`, r.end())
	}
	t.Run("before the stop", func(t *testing.T) {
		t.Parallel()
		r := run(t, "batch", shell("main", "exit 0"), bye())
		r.until("bye waits", waits)
		r.stop()
		fails(t, r)
	})
	t.Run("another runner", func(t *testing.T) {
		t.Parallel()
		r := run(t, "batch", shell("main", "exit 0"), bye())
		r.until("bye waits", waits)
		cfg := r.leave()
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
			same.As(t, "gone", r.untilFile("bye/local/found"), "a process of main still ran when the next task began")
			if e := event(r.runner.Alloc(), "main", api.TaskDriverMessage); e == nil || e.Details["leftover_processes"] == "" {
				t.Errorf("nothing tells of what was left behind: %v", r.of("main"))
			}
		})
	}
}
