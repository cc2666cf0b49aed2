package allocrunner_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/drivers/rawexec"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/same"
)

// giving is a prestart hook that gives what its test wants, and the number of its calls as GIVEN.
type giving struct {
	response interfaces.TaskPrestartResponse
	calls    int
}

func (*giving) Name() string { return "giving" }

func (g *giving) Prestart(context.Context, *interfaces.TaskPrestartRequest) (*interfaces.TaskPrestartResponse, error) {
	g.calls++
	resp := g.response
	resp.Env = map[string]string{"GIVEN": strconv.Itoa(g.calls)}
	return &resp, nil
}

func given(g *giving) func(*api.TaskGroup, *interfaces.Config) {
	return func(_ *api.TaskGroup, c *interfaces.Config) {
		c.TaskHooks = func(*api.Allocation, *api.Task) []interfaces.TaskHook { return []interfaces.TaskHook{g} }
	}
}

// TestADoneHookIsNotCalledAgain, neither at a restart nor by another runner, and what it gave stays.
func TestADoneHookIsNotCalledAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		done bool
		want []string // what each start is given: the second runner calls the hook for the process that it finds, too
	}{
		"done":     {true, []string{"1", "1", "1"}},
		"not done": {false, []string{"1", "2", "4"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hook := &giving{response: interfaces.TaskPrestartResponse{Done: c.done}}
			r := runWith(t, "service", given(hook), shell("main", `echo $GIVEN >> $NOMAD_TASK_DIR/given; exec sleep 1000`))
			r.untilLines("main/local/given", 1)
			r.restartTask("main")
			r.untilLines("main/local/given", 2)
			cfg := r.leave()
			if saved := cfg.Saved.Tasks["main"]; !c.done { // for an earlier version of this program it was
				saved.Hooks = map[string]map[string]string{"giving done": {"response": `{"Done":true}`}}
				cfg.Saved.Tasks["main"] = saved
			}
			r = begin(t, cfg)
			r.restartTask("main")
			same.As(t, c.want, strings.Fields(r.untilLines("main/local/given", 3)), "the starts were given")
		})
	}
}

// restartTask restarts a task once the runner has it running.
func (r *running) restartTask(task string) {
	r.t.Helper()
	var err error
	restarted := func() bool {
		err = r.runner.RestartTask(r.t.Context(), task)
		return err == nil
	}
	if !polltest.Until(restarted) {
		r.t.Fatal(err)
	}
}

// TestMountsThatTheDriverCanNotGive fail the task, once and for all.
func TestMountsThatTheDriverCanNotGive(t *testing.T) {
	t.Parallel()
	hook := &giving{response: interfaces.TaskPrestartResponse{Mounts: []interfaces.Mount{{HostPath: "/srv",
		TaskPath: "/data"}}}}
	r := runWith(t, "service", func(group *api.TaskGroup, c *interfaces.Config) {
		given(hook)(group, c)
		group.RestartPolicy.Attempts = new(5)
	}, shell("main", "exec sleep 1000"))
	_ = r.end()
	state := r.runner.Alloc().TaskStates["main"]
	why := slices.IndexFunc(state.Events, func(e *api.TaskEvent) bool {
		return e.Type == api.TaskDriverFailure && strings.Contains(e.DisplayMessage,
			`"raw_exec" can't give a task a mount`)
	})
	if !state.Failed || state.Restarts != 0 || why < 0 {
		t.Errorf("failed %v, %d restarts, events %v", state.Failed, state.Restarts, r.seen())
	}
}

// generous is a hook of the allocation that gives what its test wants to all tasks.
type generous struct{ gives interfaces.HookResources }

func (generous) Name() string { return "generous" }

func (g generous) Prerun(_ context.Context, req *interfaces.RunnerPrerunRequest) error {
	*req.Resources = g.gives
	return nil
}

// TestWhatHooksGive arrives at the driver, that of the allocation's hooks first.
func TestWhatHooksGive(t *testing.T) {
	t.Parallel()
	driver := newMemoryDriver()
	mount := func(path string) interfaces.Mount {
		return interfaces.Mount{HostPath: "/srv", TaskPath: path, ReadOnly: true}
	}
	device := func(path string) interfaces.Device {
		return interfaces.Device{HostPath: "/dev/null", TaskPath: path, Permissions: "rw"}
	}
	hook := &giving{response: interfaces.TaskPrestartResponse{Mounts: []interfaces.Mount{mount("/own")},
		Devices: []interfaces.Device{device("/dev/own")}}}
	cfg := configure(t, "batch", func(group *api.TaskGroup, c *interfaces.Config) {
		given(hook)(group, c)
		c.Hooks = []interfaces.RunnerHook{generous{interfaces.HookResources{
			Mounts: []interfaces.Mount{mount("/shared")}, Devices: []interfaces.Device{device("/dev/shared")},
			NetworkNamespace: "/run/netns/a",
		}}}
	}, inMemory("main", "ends well"))
	r := beginWith(t, allocrunner.WithDrivers(drivers.NewRegistry(driver)), cfg)
	if err := r.end(); err != nil {
		t.Fatal(err, r.seen())
	}
	got := driver.givenTo(t)
	same.As(t, []interfaces.Mount{mount("/shared"), mount("/own")}, got.Mounts)
	same.As(t, []interfaces.Device{device("/dev/shared"), device("/dev/own")}, got.Devices)
	if got.NetworkNamespace != "/run/netns/a" || got.Env.Get("GIVEN") != "1" || got.AllocID != cfg.Alloc.ID {
		t.Errorf("network namespace %q, GIVEN=%s, allocation %s", got.NetworkNamespace, got.Env.Get("GIVEN"),
			got.AllocID)
	}
}

// TestAllocationHooksThatTheDriverCanNotHonour keep every task from starting.
func TestAllocationHooksThatTheDriverCanNotHonour(t *testing.T) {
	t.Parallel()
	for want, gives := range map[string]interfaces.HookResources{
		"a mount":             {Mounts: make([]interfaces.Mount, 1)},
		"a device":            {Devices: make([]interfaces.Device, 1)},
		"a network namespace": {NetworkNamespace: "/run/netns/a"},
	} {
		driver := newMemoryDriver()
		cfg := configure(t, "batch", func(_ *api.TaskGroup, c *interfaces.Config) {
			c.Hooks = []interfaces.RunnerHook{generous{gives}}
		}, inMemory("init", "ends well", lifecycle("prestart", false)), shell("main", "exit 0"))
		r := beginWith(t, allocrunner.WithDrivers(drivers.NewRegistry(driver, rawexec.Driver{})), cfg)
		same.Says(t, nil, `task "main": the driver "raw_exec" can't give a task `+want, r.end(), want)
		if driver.started() > 0 || r.seen() != nil || r.runner.Alloc().ClientStatus != "failed" {
			t.Errorf("%s: %d starts, events %v, status %s", want, driver.started(), r.seen(),
				r.runner.Alloc().ClientStatus)
		}
	}
}

// templating is a hook as one of templates would be: it writes a file for its task, and acts on the task when the file
// changes.
type templating struct {
	file   interfaces.File
	change chan interfaces.TaskLifecycle // gets one when the task has been prepared
}

func (*templating) Name() string { return "templating" }

func (h *templating) Prestart(
	_ context.Context, req *interfaces.TaskPrestartRequest,
) (*interfaces.TaskPrestartResponse, error) {
	select {
	case h.change <- req.Lifecycle:
	default:
	}
	return nil, req.WriteFile(h.file)
}

// TestAHookThatWritesFiles gives them a mode and an owner, and has its task signalled or restarted.
func TestAHookThatWritesFiles(t *testing.T) {
	eachDriver(t, func(t *testing.T, f flavour) {
		hook := &templating{
			file:   interfaces.File{Path: "local/etc/app.conf", Data: []byte("a=b"), Mode: 0o640},
			change: make(chan interfaces.TaskLifecycle, 1),
		}
		owner := os.Getuid()
		if owner == 0 {
			owner = 4242
			hook.file.Owner = &interfaces.Owner{UID: 4242, GID: 4243}
		}
		r := f.run(t, "service", "says its signals", func(_ *api.Task, c *interfaces.Config) {
			c.TaskHooks = func(*api.Allocation, *api.Task) []interfaces.TaskHook { return []interfaces.TaskHook{hook} }
		})
		r.untilSaid("up\n")
		r.untilState("main", "running")
		info, err := os.Stat(filepath.Join(r.dir, "main", hook.file.Path))
		if err != nil || info.Mode() != 0o640 || int(info.Sys().(*syscall.Stat_t).Uid) != owner {
			t.Errorf("%v, %v", info, err)
		}
		task := <-hook.change
		must.OK(t, task.Signal(t.Context(), "SIGUSR1"))
		r.untilSaid("up\ngot user defined signal 1\n")
		must.OK(t, task.Restart(t.Context(), "a template has changed"))
		r.untilSaid("up\ngot user defined signal 1\nup\n")
		r.wantReason("main", "a template has changed")
	})
}

// TestAHookRunsACommandAndFailsItsTask: the command has the task's environment, and the failed task is not restarted.
func TestAHookRunsACommandAndFailsItsTask(t *testing.T) {
	t.Parallel()
	hook := &templating{
		file:   interfaces.File{Path: "data/shared.conf", Shared: true, Data: []byte("a=b\n"), Mode: 0o644},
		change: make(chan interfaces.TaskLifecycle, 1),
	}
	r := runWith(t, "service", func(g *api.TaskGroup, c *interfaces.Config) {
		*g.RestartPolicy.Attempts = 5
		c.TaskHooks = func(*api.Allocation, *api.Task) []interfaces.TaskHook { return []interfaces.TaskHook{hook} }
	}, shell("main", "exec sleep 1000"))
	r.untilState("main", "running")
	same.As(t, "a=b", r.untilFile("alloc/data/shared.conf"), "the shared file says")
	task := <-hook.change
	code, err := task.Exec(t.Context(), []string{"/bin/sh", "-c", `echo "$NOMAD_TASK_NAME" > local/ran; exit 7`})
	if code != 7 || err != nil {
		t.Errorf("Exec: %d, %v", code, err)
	}
	same.As(t, "main", r.untilFile("main/local/ran"), "the command saw the task")
	task.Event("Template", "Missing: x")
	task.Fail("Template failed: y")
	same.Says(t, nil, `task "main": Template failed: y`, r.end(), "the allocation ended with")
	r.wantEvents("main", "Received", "Task Setup", "Started", "Template", "Killing", "Terminated", "Killed")
	if _, err := task.Exec(t.Context(), []string{"/bin/true"}); !errors.Is(err, interfaces.ErrTaskNotRunning) {
		t.Errorf("Exec in a dead task: %v", err)
	}
}
