package allocrunner_test

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// event returns the latest event of that type, nil for none.
func event(a *api.Allocation, task, kind string) *api.TaskEvent {
	var found *api.TaskEvent
	for _, e := range a.TaskStates[task].Events {
		if e.Type == kind {
			found = e
		}
	}
	return found
}

func count(list []string, want string) int {
	n := 0
	for _, s := range list {
		if s == want {
			n++
		}
	}
	return n
}

func TestStopIsSafeBeforeItIsAnswered(t *testing.T) {
	t.Parallel()
	r := run(t, "service", shell("main", "exec sleep 1000"))
	r.untilState("main", "running")
	for range 2 { // the second is as good as the first
		must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
		same.As(t, "stop", r.saved().Alloc.DesiredStatus, "written down")
	}
	must.OK(t, r.end())
	same.Error(t, nil, r.runner.Stop(t.Context(), interfaces.StopRequest{}), "of one that has ended")
	alloc := r.runner.Alloc()
	if saved := r.saved(); alloc.ClientStatus != "complete" || !saved.Terminal ||
		saved.Alloc.ClientStatus != "complete" {
		t.Errorf("status %s, saved: %s, terminal %v", alloc.ClientStatus, saved.Alloc.ClientStatus, saved.Terminal)
	}
}

// TestTheNextRunnerCompletesAStop that was under way: one Killing, the same process, and what the kill timeout has
// left.
func TestTheNextRunnerCompletesAStop(t *testing.T) {
	t.Parallel()
	r := run(t, "service",
		shell("main", `trap 'echo signalled >> $NOMAD_TASK_DIR/signalled' INT; echo $$ > $NOMAD_TASK_DIR/pid; while :; do `+
			`sleep 0.05; done`,
			func(t *api.Task) { t.KillTimeout = new(time.Hour) }),
		shell("bye", `echo bye > $NOMAD_ALLOC_DIR/bye`, lifecycle("poststop", false)))
	r.untilFile("main/local/pid")
	r.untilState("main", "running")
	must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
	r.untilFile("main/local/signalled")

	cfg := r.leave()
	main := cfg.Saved.Tasks["main"]
	if left := time.Until(main.Due); left <= 0 || left > time.Hour {
		t.Errorf("%v are left of the kill timeout", left)
	}
	main.Due = time.Now()
	cfg.Saved.Tasks["main"] = main
	next := begin(t, cfg)
	must.OK(t, next.end())
	next.wantEvents("main", "Terminated", "Killed")
	next.untilFile("alloc/bye")
	alloc := next.runner.Alloc()
	if e := event(alloc, "main", "Terminated"); alloc.ClientStatus != "complete" || e.Details["signal"] != "9" {
		t.Errorf("status %s, %+v", alloc.ClientStatus, e)
	}
}

// TestExitsWhileNobodyLooks are reported by the next runner, with their hooks, and the dead do not run again.
func TestExitsWhileNobodyLooks(t *testing.T) {
	t.Parallel()
	d := &diary{}
	r := runWith(t, "batch", func(_ *api.TaskGroup, c *interfaces.Config) { noted(d, c) },
		shell("early", "echo $$ >> $NOMAD_TASK_DIR/pids"),
		shell("late", `echo $$ >> $NOMAD_TASK_DIR/pids; until [ -e $NOMAD_ALLOC_DIR/go ]; do sleep 0.05; done; exit 7`))
	r.untilState("early", "dead")
	r.untilFile("late/local/pids")
	r.untilState("late", "running")
	cfg := r.leave()
	before := len(d.read())
	r.write("alloc/go", "")
	r.untilGone(r.untilFile("late/local/pids"))

	next := begin(t, cfg)
	same.Says(t, nil, `task "late"`, next.end())
	next.wantEvents("early")
	next.wantEvents("late", "Terminated", "Not Restarting")
	if e := event(next.runner.Alloc(), "late", "Terminated"); e.Details["exit_code"] != "7" {
		t.Errorf("got %+v, want exit code 7", e)
	}
	calls := strings.Join(d.read()[before:], "; ")
	same.As(t, "prerun g; late exited; late stop; postrun", calls, "hooks of the next runner")
	for _, task := range []string{"early", "late"} {
		if pids := next.untilFile(task + "/local/pids"); strings.Contains(pids, "\n") {
			t.Errorf("%s ran again: pids %q", task, pids)
		}
	}
}

func TestGroupShutdownDelay(t *testing.T) {
	t.Parallel()
	const delay = 300 * time.Millisecond
	d := &diary{}
	r := runWith(t, "batch", func(g *api.TaskGroup, c *interfaces.Config) { noted(d, c); g.ShutdownDelay = new(delay) },
		shell("leader", "until [ -e $NOMAD_ALLOC_DIR/go ]; do sleep 0.05; done", func(t *api.Task) { t.Leader = true }),
		shell("other", "exec sleep 1000"))
	r.untilState("leader", "running")
	r.untilState("other", "running")
	r.write("alloc/go", "")
	must.OK(t, r.end())
	alloc := r.runner.Alloc()
	ended, signalled := event(alloc, "leader", "Terminated"), event(alloc, "other", "Killing")
	if signalled == nil || time.Duration(signalled.Time-ended.Time) < delay {
		t.Errorf("the leader ended at %v, the other was signalled at %v: want %v between them", ended, signalled, delay)
	}
	calls := d.read()
	if at, after := indexOf(calls, "prekill"), indexOf(calls, "other prekill"); at < 0 || at > after {
		t.Errorf("the allocation's pre-kill hook comes before the delay, the task's after it: %v", calls)
	}
}

// TestGroupShutdownDelayGoesOn where an earlier runner has begun it.
func TestGroupShutdownDelayGoesOn(t *testing.T) {
	t.Parallel()
	d := &diary{}
	began := time.Now()
	r := runWith(t, "service", func(g *api.TaskGroup, c *interfaces.Config) {
		noted(d, c)
		g.ShutdownDelay = new(time.Hour)
	},
		shell("main", "exec sleep 1000"))
	r.untilCalls(d, "main poststart", 1)
	must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
	r.untilCalls(d, "prekill", 1)
	cfg := r.leave()
	if left := cfg.Saved.KillAfter.Sub(began); left < time.Hour || left > time.Hour+time.Since(began) {
		t.Errorf("written down: %v after the beginning, want an hour after the stop", left)
	}
	cfg.Saved.KillAfter = time.Now()
	next := begin(t, cfg)
	must.OK(t, next.end())
	if e := event(next.runner.Alloc(), "main", "Terminated"); e == nil || e.Details["signal"] != "2" {
		t.Errorf("it did not get its kill_signal: %+v", e)
	}
}

func indexOf(list []string, want string) int {
	for i, s := range list {
		if s == want {
			return i
		}
	}
	return -1
}

// records keeps what is logged.
type records struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (r *records) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *records) read() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// TestAFullDiskHurtsNobody: the tasks go on, the operator is warned once, and what could not be written is written when
// there is room.
func TestAFullDiskHurtsNobody(t *testing.T) {
	t.Parallel()
	log := &records{}
	r := runWith(t, "service", func(g *api.TaskGroup, c *interfaces.Config) {
		g.RestartPolicy.Attempts = new(100)
		c.Logger = slog.New(slog.NewTextHandler(log, nil))
	}, shell("main", "echo $$ >> $NOMAD_TASK_DIR/pids; exec sleep 1000"))
	r.untilState("main", "running")
	r.untilFile("main/local/pids")
	state := r.cfg.State.(*memory)
	state.setFull(true)
	must.OK(t, r.runner.RestartTask(t.Context(), "main"))
	r.untilLines("main/local/pids", 2)
	r.until("restarted", func(a *api.Allocation) bool {
		return a.TaskStates["main"].Restarts == 1 && a.TaskStates["main"].State == "running"
	})
	same.Says(t, nil, "could not be saved",
		r.runner.Stop(t.Context(), interfaces.StopRequest{}), "a stop that can't be made safe says")
	state.setFull(false)
	must.OK(t, r.end())
	if n := strings.Count(log.read(), "make room on the disk"); n != 1 {
		t.Errorf("the operator was warned %d times:\n%s", n, log.read())
	}
	if saved := state.saved(); !saved.Terminal || saved.Tasks["main"].State.Restarts != 1 {
		t.Errorf("written down at the end: %+v", saved)
	}
}

func TestUpdateInPlace(t *testing.T) {
	t.Parallel()
	r := runWith(t, "service", func(g *api.TaskGroup, _ *interfaces.Config) {
		g.Services = []*api.Service{service("", okCheck("old"))}
	}, shell("main", `trap 'exit 0' USR1; echo $$ >> $NOMAD_TASK_DIR/pids; while :; do sleep 0.05; done`))
	r.untilState("main", "running")
	r.untilFile("main/local/pids")

	job := copyJob(r.cfg.Alloc.Job)
	next := r.version(func(j *api.Job) {
		j.TaskGroups[0].Tasks[0].KillSignal = "SIGUSR1"
		j.TaskGroups[0].Services[0].Checks[0].Name = "new"
		j.Meta = map[string]string{"colour": "blue"}
	})
	must.OK(t, r.runner.Update(t.Context(), next))
	same.Error(t, nil, r.runner.Update(t.Context(), next), "the same once more")
	alloc := r.runner.Alloc()
	if *alloc.Job.Version != 1 || alloc.Job.Meta["colour"] != "blue" || *r.saved().Alloc.Job.Version != 1 {
		t.Errorf("job version %d with meta %v; written down: version %d; want version 1, blue", *alloc.Job.Version,
			alloc.Job.Meta, *r.saved().Alloc.Job.Version)
	}
	results, _ := r.runner.Checks()
	for _, c := range results {
		if c.Check != "new" {
			t.Errorf("check %q is still there", c.Check)
		}
	}

	other := copyJob(next)
	other.TaskGroups[0].Tasks[0].Env = map[string]string{"A": "1"}
	err := r.runner.Update(t.Context(), other)
	if refused, ok := errors.AsType[*interfaces.DestructiveError](err); !ok || len(refused.Changes) != 1 ||
		!strings.Contains(refused.Changes[0], "env") {
		t.Errorf("got %v, want a *DestructiveError that names env", err)
	}
	if r.runner.Alloc().Job.TaskGroups[0].Tasks[0].Env != nil {
		t.Error("a refused update has changed something")
	}
	must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
	must.OK(t, r.end())
	if e := event(r.runner.Alloc(), "main", "Terminated"); e.Details["exit_code"] != "0" {
		t.Errorf("the new kill_signal was not sent: %+v", e)
	}
	if pids := r.untilFile("main/local/pids"); strings.Contains(pids, "\n") {
		t.Errorf("the update restarted the task: pids %q", pids)
	}
	same.Error(t, interfaces.ErrTerminal, r.runner.Update(t.Context(), job), "of one that has ended")
}

// TestTasksWithoutARecord, which was lost with a damaged file, are known by their processes.
func TestTasksWithoutARecord(t *testing.T) {
	t.Parallel()
	r := run(t, "service", shell("main", "echo $$ >> $NOMAD_TASK_DIR/pids; exec sleep 1000"))
	r.untilFile("main/local/pids")
	r.untilState("main", "running")
	cfg := r.leave()
	cfg.Saved.Tasks, cfg.Saved.Alloc.TaskStates = nil, nil
	next := begin(t, cfg)
	next.untilState("main", "running")
	must.OK(t, next.runner.Stop(t.Context(), interfaces.StopRequest{}))
	must.OK(t, next.end())
	next.wantEvents("main", "Started", "Killing", "Terminated", "Killed")
	if pids := next.untilFile("main/local/pids"); strings.Contains(pids, "\n") {
		t.Errorf("a second copy was started: pids %q", pids)
	}
}

// TestARestartOfAllIsCompletedByTheNextRunner in its order: nothing starts beside what the first one is ending.
func TestARestartOfAllIsCompletedByTheNextRunner(t *testing.T) {
	t.Parallel()
	says := `echo $NOMAD_TASK_NAME >> $NOMAD_ALLOC_DIR/order; `
	r := run(t, "service",
		shell("init", says, lifecycle("prestart", false)),
		shell("main",
			`trap 'until [ -e $NOMAD_ALLOC_DIR/go ]; do sleep 0.05; done; sleep 0.2
				echo end >> $NOMAD_ALLOC_DIR/order; exit' INT
			echo up > local/up; while :; do sleep 0.05; done`, func(t *api.Task) { t.KillTimeout = new(deadline) }),
		shell("other", `exec sleep 1000`))
	r.untilFile("main/local/up")
	r.untilState("main", "running")
	r.untilState("other", "running")
	restarted := later(func() error { return r.runner.RestartAll(t.Context()) })
	r.untilEvents("init", "Restarting", 1)
	r.untilEvents("main", "Restart Signaled", 1)
	r.untilEvents("other", "Restarting", 1)
	cfg := r.leave()
	_ = result(t, restarted)

	next := begin(t, cfg)
	next.until("it goes on", func(*api.Allocation) bool {
		return next.runner.Signal(t.Context(), "main", "SIGNULL") == nil
	})
	next.write("alloc/go", "")
	for _, task := range []string{"init", "main", "other"} {
		next.untilEvents(task, "Started", 1)
	}
	same.As(t, "init\nend\ninit", next.untilLines("alloc/order", 3), "order")
	if seen := next.seen(); slices.Index(seen, "main: Terminated") > slices.Index(seen, "init: Started") ||
		slices.Index(seen, "main: Terminated") > slices.Index(seen, "other: Started") {
		t.Errorf("something was started beside what was to end: %v", seen)
	}
}
