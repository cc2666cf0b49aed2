package allocrunner_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/drivers/rawexec"
	"taskapi/allocrunner/interfaces"
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
			hook, state := &giving{response: interfaces.TaskPrestartResponse{Done: c.done}}, &memory{}
			cfg := configure(t, "service", given(hook), shell("main", `echo $GIVEN >> $NOMAD_TASK_DIR/given; exec sleep 1000`))
			cfg.State = state
			r := begin(t, cfg)
			r.untilLines("main/local/given", 1)
			r.restartTask("main")
			r.untilLines("main/local/given", 2)
			r.runner.Detach()
			_ = r.end()
			cfg.Saved = state.saved()
			r = begin(t, cfg)
			r.restartTask("main")
			if got := strings.Fields(r.untilLines("main/local/given", 3)); !slices.Equal(got, c.want) {
				t.Errorf("the starts were given %v, want %v", got, c.want)
			}
		})
	}
}

// restartTask restarts a task once the runner has it running.
func (r *running) restartTask(task string) {
	r.t.Helper()
	err := interfaces.ErrTerminal
	for give := time.Now().Add(deadline); err != nil && time.Now().Before(give); {
		if err = r.runner.RestartTask(r.t.Context(), task); err != nil {
			time.Sleep(2 * time.Millisecond) // nobody says that a runner has taken over what it found
		}
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// TestMountsThatTheDriverCanNotGive fail the task, once and for all.
func TestMountsThatTheDriverCanNotGive(t *testing.T) {
	t.Parallel()
	hook := &giving{response: interfaces.TaskPrestartResponse{Mounts: []interfaces.Mount{{HostPath: "/srv", TaskPath: "/data"}}}}
	r := runWith(t, "service", func(group *api.TaskGroup, c *interfaces.Config) {
		given(hook)(group, c)
		group.RestartPolicy.Attempts = new(5)
	}, shell("main", "exec sleep 1000"))
	_ = r.end()
	state := r.runner.Alloc().TaskStates["main"]
	why := slices.IndexFunc(state.Events, func(e *api.TaskEvent) bool {
		return e.Type == api.TaskDriverFailure && strings.Contains(e.DisplayMessage, `"raw_exec" can't give a task a mount`)
	})
	if !state.Failed || state.Restarts != 0 || why < 0 {
		t.Errorf("failed %v, %d restarts, events %v", state.Failed, state.Restarts, r.seen())
	}
}

// mounting is raw_exec, with what a task gets in its environment.
type mounting struct{ rawexec.Driver }

func (mounting) Name() string { return "mounting" }

func (mounting) Capabilities() drivers.Capabilities {
	return drivers.Capabilities{Mounts: true, Devices: true}
}

func (m mounting) Start(ctx context.Context, task drivers.Task) (drivers.Run, error) {
	task.Env = task.Env.With(map[string]string{"MOUNT": task.Mounts[0].TaskPath, "DEVICE": task.Devices[0].TaskPath})
	return m.Driver.Start(ctx, task)
}

// TestAnotherDriver gets what the hooks give.
func TestAnotherDriver(t *testing.T) {
	t.Parallel()
	hook := &giving{response: interfaces.TaskPrestartResponse{
		Mounts: []interfaces.Mount{{HostPath: "/srv", TaskPath: "/data"}}, Devices: []interfaces.Device{{HostPath: "/dev/null", TaskPath: "/dev/gpu"}},
	}}
	task := shell("main", `test "$GIVEN $MOUNT $DEVICE" = "1 /data /dev/gpu"`)
	task.Driver = "mounting"
	r := beginWith(t, allocrunner.WithDrivers(drivers.NewRegistry(mounting{})), configure(t, "batch", given(hook), task))
	if err := r.end(); err != nil {
		t.Error(err, r.seen())
	}
}
