package allocrunner_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner"
	"taskapi/allocrunner/drivers/builtin"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/same"
)

func TestMain(m *testing.M) {
	if code, kept := allocrunner.KeeperMain(os.Args, nil); kept {
		unix.Exit(code) // os.Exit would let the race detector sleep for a second
	}
	goleak.VerifyTestMain(m)
}

// deadline is when a test gives up on something that should have happened long before.
var deadline = polltest.Deadline()

// shell returns a task that runs a script; edits change it.
func shell(name, script string, edits ...func(*api.Task)) *api.Task {
	t := api.NewTask(name, "raw_exec").SetConfig("command", "/bin/sh").SetConfig("args", []any{"-c", script})
	t.KillTimeout = new(2 * time.Second)
	for _, edit := range edits {
		edit(t)
	}
	return t
}

func lifecycle(hook string, sidecar bool) func(*api.Task) {
	return func(t *api.Task) { t.Lifecycle = &api.TaskLifecycle{Hook: hook, Sidecar: sidecar} }
}

// running is an allocation under way.
type running struct {
	t      *testing.T
	cfg    config
	runner *allocrunner.Runner
	dir    string
	stop   context.CancelFunc
	result chan error
	events diary // "task: type"
}

// run starts an allocation of the tasks in a job of the type.
func run(t *testing.T, jobType string, tasks ...*api.Task) *running {
	t.Helper()
	return runWith(t, jobType, unedited, tasks...)
}

func unedited(*api.TaskGroup, *config) {}

func runWith(t *testing.T, jobType string, edit func(*api.TaskGroup, *interfaces.Config), tasks ...*api.Task) *running {
	t.Helper()
	return begin(t, configure(t, jobType, edit, tasks...))
}

func configure(t *testing.T, jobType string, edit func(*api.TaskGroup, *interfaces.Config),
	tasks ...*api.Task) interfaces.Config {
	group := api.NewTaskGroup("g", 1)
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Interval: new(time.Minute),
		Delay: new(10 * time.Millisecond), Mode: new("fail")}
	group.Tasks = tasks
	job := &api.Job{ID: new("job"), Name: new("job"), Type: &jobType, TaskGroups: []*api.TaskGroup{group},
		Datacenters: []string{"dc1"}}
	cfg := interfaces.Config{
		Alloc: &api.Allocation{ID: "115ef685-6b9e-3eaf-e74b-6b04f094ebca", Name: "job.g[0]", Namespace: "default",
			JobID: "job", Job: job, TaskGroup: "g", NodeID: "n", NodeName: "n"},
		Dir:    filepath.Join(t.TempDir(), "alloc"),
		State:  &memory{},
		Logger: slog.New(slog.DiscardHandler),
	}
	edit(group, &cfg)
	job.Canonicalize()
	return cfg
}

// begin runs an allocation, or what an earlier runner has left of it, until the test ends at the latest.
func begin(t *testing.T, cfg interfaces.Config) *running {
	t.Helper()
	return beginWith(t, allocrunner.WithDrivers(builtin.Drivers), cfg)
}

func beginWith(t *testing.T, factory interfaces.Factory, cfg interfaces.Config) *running {
	t.Helper()
	r := &running{t: t, cfg: cfg, dir: cfg.Dir, result: make(chan error, 1)}
	also := cfg.OnEvent
	cfg.OnEvent = func(task string, e *api.TaskEvent) {
		if also != nil {
			also(task, e)
		}
		r.events.note(task + ": " + e.Type)
	}
	made := must.Get(factory(cfg))(t)
	runner := made.(*allocrunner.Runner)
	ctx, cancel := context.WithCancel(t.Context())
	r.runner, r.stop = runner, cancel
	go func() { r.result <- runner.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		runner.Kill()
		_ = r.end()
	})
	return r
}

func (r *running) seen() []string { return r.events.read() }

// saved returns what another runner would know.
func (r *running) saved() *interfaces.Saved {
	return r.cfg.State.(interface{ saved() *interfaces.Saved }).saved()
}

// leave ends the runner, not its tasks, and returns what another runner needs to go on with them.
func (r *running) leave() config {
	r.t.Helper()
	r.runner.Detach()
	if err := r.end(); !errors.Is(err, interfaces.ErrDetached) {
		r.t.Fatalf("got %v, want ErrDetached", err)
	}
	next := r.cfg
	next.Saved = r.saved()
	return next
}

// version returns a copy of the job, to be edited.
func (r *running) version(edit func(*api.Job)) *api.Job {
	next := copyJob(r.cfg.Alloc.Job)
	edit(next)
	return next
}

// end waits for the allocation to end and gives Run's error, also when called again.
func (r *running) end() error {
	r.t.Helper()
	select {
	case err := <-r.result:
		r.result <- err
		return err
	case <-time.After(deadline):
		r.t.Fatalf("the allocation does not end; events so far: %v", r.seen())
		return nil
	}
}

// until waits for the allocation to be as ok says.
func (r *running) until(what string, ok func(*api.Allocation) bool) *api.Allocation {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	for alloc := r.runner.Alloc(); ; alloc = r.runner.Wait(ctx, alloc.ModifyIndex) {
		if ok(alloc) {
			return alloc
		}
		if ctx.Err() != nil {
			r.t.Fatalf("not %s; events so far: %v", what, r.seen())
		}
	}
}

func (r *running) untilState(task, state string) {
	r.t.Helper()
	r.until(task+" is "+state, func(a *api.Allocation) bool { return a.TaskStates[task].State == state })
}

// untilFile waits for a task to have written a file below the allocation directory.
func (r *running) untilFile(path string) string {
	r.t.Helper()
	return r.untilLines(path, 1)
}

// untilLines waits for a file of a task to have as many lines.
func (r *running) untilLines(path string, lines int) string {
	r.t.Helper()
	var data []byte
	written := func() bool {
		data, _ = os.ReadFile(filepath.Join(r.dir, path))
		return strings.Count(string(data), "\n") >= lines
	}
	if !polltest.Until(written) {
		r.t.Fatalf("no %d lines in %s; events so far: %v", lines, path, r.seen())
	}
	return strings.TrimSpace(string(data))
}

// of returns the types of one task's events.
func (r *running) of(task string) []string {
	var types []string
	for _, e := range r.seen() {
		if name, kind, _ := strings.Cut(e, ": "); name == task {
			types = append(types, kind)
		}
	}
	return types
}

// wantEvents waits for as many events of a task, which are reported a moment after its state shows them, and compares
// them.
func (r *running) wantEvents(task string, want ...string) {
	r.t.Helper()
	polltest.Until(func() bool { return len(r.of(task)) >= len(want) })
	if diff := cmp.Diff(want, r.of(task)); diff != "" {
		r.t.Errorf("events of %s (-want +got):\n%s", task, diff)
	}
}

func TestRestartOnRequest(t *testing.T) {
	t.Parallel()
	r := run(t, "service", shell("main", `echo $$ >> $NOMAD_TASK_DIR/pids; exec sleep 1000`),
		shell("other", "exec sleep 1000"))
	r.untilState("main", "running")
	r.untilState("other", "running")
	old := r.untilFile("main/local/pids")
	must.OK(t, r.runner.RestartTask(t.Context(), "main"))
	if _, err := os.Stat("/proc/" + old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old process %s is still there when the restart has been answered", old)
	}
	r.until("started again", func(a *api.Allocation) bool {
		s := a.TaskStates["main"]
		return s.State == "running" && s.Restarts == 1
	})
	r.wantEvents("main", "Received", "Task Setup", "Started", "Restart Signaled", "Terminated", "Restarting", "Started")
	r.wantReason("main", "User requested task to restart")
	r.wantEvents("other", "Received", "Task Setup", "Started")
	for _, tc := range []struct {
		name string
		err  error
		want error
	}{
		{"unknown task", r.runner.RestartTask(t.Context(), "nope"), interfaces.ErrTaskNotFound},
		{"unknown task, signal", r.runner.Signal(t.Context(), "nope", "SIGHUP"), interfaces.ErrTaskNotFound},
		{"unknown signal", r.runner.Signal(t.Context(), "main", "SIGNOPE"), interfaces.ErrUnknownSignal},
		{"all of an unknown signal", r.runner.Signal(t.Context(), "", "SIGNOPE"), interfaces.ErrUnknownSignal},
		{"running ones", r.runner.RestartRunning(t.Context()), nil},
	} {
		if !errors.Is(tc.err, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, tc.err, tc.want)
		}
	}
}

func TestRestartOfAllRepeatsTheOrder(t *testing.T) {
	t.Parallel()
	r := run(t, "service",
		shell("init", `echo init >> $NOMAD_ALLOC_DIR/order`, lifecycle("prestart", false)),
		shell("main", `echo main >> $NOMAD_ALLOC_DIR/order; exec sleep 1000`))
	r.untilLines("alloc/order", 2)
	same.Error(t, interfaces.ErrTaskNotRunning, r.runner.RestartTask(t.Context(), "init"), "restart of a dead task")
	must.OK(t, r.runner.RestartAll(t.Context()))
	r.until("all started again", func(a *api.Allocation) bool {
		return a.TaskStates["init"].Restarts == 1 && a.TaskStates["main"].Restarts == 1 &&
			a.TaskStates["main"].State == "running"
	})
	same.As(t, "init\nmain\ninit\nmain", r.untilLines("alloc/order", 4), "order")
	r.until("init has ended again", func(*api.Allocation) bool { return len(r.of("init")) == 8 })
	r.wantEvents("init", "Received", "Task Setup", "Started", "Terminated", "Restart Signaled", "Restarting", "Started",
		"Terminated")
}

func TestTasksSeeTheirEnvironment(t *testing.T) {
	t.Parallel()
	r := runWith(t, "batch", func(g *api.TaskGroup, _ *interfaces.Config) {
		g.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http"}}}}
	}, shell("main", `echo "$0 ${NOMAD_PORT_http} $GREETING" > local/out`, func(t *api.Task) {
		t.Env = map[string]string{"GREETING": "hello ${NOMAD_TASK_NAME}"}
	}))
	must.OK(t, r.end())
	port := r.runner.Alloc().AllocatedResources.Shared.Ports[0].Value
	same.As(t, fmt.Sprintf("/bin/sh %d hello main", port), r.untilFile("main/local/out"))
}

type refusing struct{}

func (refusing) Name() string { return "refusing" }

func (refusing) Prerun(context.Context, *interfaces.RunnerPrerunRequest) error {
	return errors.New("no")
}
