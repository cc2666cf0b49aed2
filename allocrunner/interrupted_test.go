package allocrunner_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// blocking is a hook whose Prerun waits for the end of its context.
type blocking struct {
	*diary
	called chan struct{}
}

func (blocking) Name() string { return "blocking" }

func (b blocking) Prerun(ctx context.Context, _ *interfaces.RunnerPrerunRequest) error {
	close(b.called)
	<-ctx.Done()
	b.note("prerun ended")
	return ctx.Err()
}

func (b blocking) Ending(context.Context, *interfaces.RunnerPrerunRequest) error {
	b.note("ending")
	return nil
}

// interruptions end the set-up of an allocation.
var interruptions = map[string]func(*running) error{
	"stop": func(r *running) error { return r.runner.Stop(context.Background(), interfaces.StopRequest{}) },
	"kill": func(r *running) error { r.runner.Kill(); return nil },
	"end of Run's context": func(r *running) error {
		r.stop()
		return nil
	},
}

// TestAStopInterruptsTheSetUp of a new allocation: nothing has started but its poststop task, and nothing has failed.
func TestAStopInterruptsTheSetUp(t *testing.T) {
	t.Parallel()
	for name, interrupt := range interruptions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &diary{}
			hook := blocking{d, make(chan struct{})}
			r := runWith(t, "service", func(_ *api.TaskGroup, c *interfaces.Config) {
				c.Hooks = []interfaces.RunnerHook{&noting{diary: d}, hook, ending{d}}
			}, shell("main", "exec sleep 1000"), shell("after", "echo up > $NOMAD_TASK_DIR/up", lifecycle("poststop", false)))
			<-hook.called
			must.OK(t, interrupt(r))
			must.OK(t, r.end())
			want := []string{"prerun g", "prerun ended", "ending", "ending, restored no", "prekill", "postrun"}
			same.As(t, want, d.read(), "calls")
			if a := r.runner.Alloc(); a.ClientStatus != "complete" || slices.Contains(r.of("main"), api.TaskStarted) {
				t.Errorf("%s; events of main: %v", a.ClientStatus, r.of("main"))
			}
			if got := slices.Contains(r.of("after"), api.TaskStarted); got == (name == "kill") {
				t.Errorf("the poststop task started: %t", got)
			}
		})
	}
}

// TestAStopInterruptsTheSetUpOfARunningTask, which is then ended.
func TestAStopInterruptsTheSetUpOfARunningTask(t *testing.T) {
	t.Parallel()
	_, cfg, d := leftRunning(t)
	before := len(d.read())
	hook := blocking{d, make(chan struct{})}
	cfg.Hooks = []interfaces.RunnerHook{hook, &noting{diary: d}}
	r := begin(t, cfg)
	<-hook.called
	must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
	must.OK(t, r.end())
	calls := strings.Join(d.read()[before:], "; ")
	if strings.Contains(calls, "prerun g") || !strings.HasPrefix(calls, "prerun ended; ending; ") ||
		!strings.Contains(calls, "main exited; main stop") || !strings.HasSuffix(calls, "postrun") {
		t.Errorf("calls: %s", calls)
	}
}

// TestADetachInterruptsTheSetUp of a new allocation and of one with a running task: the next runner goes on, with one
// process of the task.
func TestADetachInterruptsTheSetUp(t *testing.T) {
	t.Parallel()
	for name, resumed := range map[string]bool{"new": false, "resumed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &diary{}
			cfg := configure(t, "service", unedited, shell("main", "echo $$ >> $NOMAD_TASK_DIR/pids; exec sleep 1000"))
			if resumed {
				_, cfg, d = leftRunning(t)
			}
			hooks := cfg.Hooks
			for range 2 { // the next runner may be interrupted, too
				hook := blocking{d, make(chan struct{})}
				cfg.Hooks = []interfaces.RunnerHook{hook}
				r := begin(t, cfg)
				<-hook.called
				cfg = r.leave()
				if r.runner.Terminal() {
					t.Fatal("it has ended")
				}
			}
			cfg.Hooks = hooks
			next := begin(t, cfg)
			next.untilState("main", "running")
			next.untilFile("main/local/pids")
			must.OK(t, next.runner.Stop(t.Context(), interfaces.StopRequest{}))
			must.OK(t, next.end())
			if pids := next.untilFile("main/local/pids"); strings.Contains(pids, "\n") {
				t.Errorf("a second copy was started: pids %q", pids)
			}
			if strings.Contains(strings.Join(d.read(), "; "), "ending") {
				t.Errorf("calls: %q", d.read())
			}
		})
	}
}
