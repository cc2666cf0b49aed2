package allocrunner_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/drivers/builtin"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/same"
)

// flavour is a driver for the tests of life cycles, which hold for each.
type flavour struct {
	name string
	// factory returns one that knows the tasks of those that it has returned before.
	factory func() interfaces.Factory
	task    func(name, program string) *api.Task
}

// scripts do for raw_exec what memoryPrograms do for the memory driver.
var scripts = map[string]string{
	"ends well":            `exit 0`,
	"ends badly":           `exit 3`,
	"sleeps":               `echo up; exec sleep 1000`,
	"is orderly":           `trap 'echo got INT; exit 7' INT; echo up; while :; do sleep 0.05; done`,
	"is deaf":              `trap '' INT; echo up; while :; do sleep 0.05; done`,
	"says what hooks give": `echo $GIVEN $NOMAD_TASK_NAME; exec sleep 1000`,
	"says its signals": `trap 'exit 0' INT; trap 'echo got user defined signal 1' USR1; echo up; ` +
		`while :; do sleep 0.05; done`,
}

// eachDriver runs a test with raw_exec and with the memory driver.
func eachDriver(t *testing.T, test func(t *testing.T, f flavour)) {
	t.Parallel()
	known := drivers.NewRegistry(newMemoryDriver())
	for _, f := range []flavour{
		{"raw_exec", func() interfaces.Factory { return allocrunner.WithDrivers(builtin.Drivers) },
			func(name, program string) *api.Task {
				return shell(name, scripts[program])
			}},
		{"memory", func() interfaces.Factory { return allocrunner.WithDrivers(known) },
			func(name, program string) *api.Task {
				return inMemory(name, program)
			}},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			test(t, f)
		})
	}
}

// run runs one task, main.
func (f flavour) run(t *testing.T, jobType, program string, edits ...func(*api.Task, *config)) *running {
	t.Helper()
	task := f.task("main", program)
	return beginWith(t, f.factory(), configure(t, jobType, func(_ *api.TaskGroup, c *config) {
		for _, edit := range edits {
			edit(task, c)
		}
	}, task))
}

// said returns what the task main has written.
func (r *running) said() string {
	frames, err := r.runner.Files(nil).Logs("main", "stdout", interfaces.Span{Await: true})
	if err != nil {
		return ""
	}
	defer frames.Close()
	var text strings.Builder
	for {
		frame, err := frames.Next(r.t.Context())
		if err != nil {
			return text.String()
		}
		text.Write(frame.Data)
	}
}

func (r *running) untilSaid(want string) {
	r.t.Helper()
	if !polltest.Until(func() bool { return r.said() == want }) {
		r.t.Fatalf("it says %q, want %q; events %v", r.said(), want, r.seen())
	}
}

func TestLifeOfATaskThatEnds(t *testing.T) {
	eachDriver(t, func(t *testing.T, f flavour) {
		r := f.run(t, "batch", "ends well")
		must.OK(t, r.end())
		r.wantEvents("main", "Received", "Task Setup", "Started", "Terminated")
		if a := r.runner.Alloc(); a.ClientStatus != "complete" || a.DesiredStatus != "run" ||
			a.TaskStates["main"].FinishedAt.IsZero() || !r.runner.Terminal() {
			t.Errorf("status %s, desired %s, state %+v", a.ClientStatus, a.DesiredStatus, a.TaskStates["main"])
		}

		r = f.run(t, "batch", "ends badly", func(task *api.Task, _ *interfaces.Config) {
			task.RestartPolicy = &api.RestartPolicy{Attempts: new(1)}
		})
		same.Says(t, allocrunner.ErrFailed, "Exit Code: 3", r.end())
		r.wantEvents("main", "Received", "Task Setup", "Started", "Terminated", "Restarting", "Started", "Terminated",
			"Not Restarting")
	})
}

func TestLifeOfATaskThatIsStopped(t *testing.T) {
	eachDriver(t, func(t *testing.T, f flavour) {
		for program, want := range map[string]struct{ said, code, signal string }{
			"sleeps": {"up\n", "130", "2"}, "is orderly": {"up\ngot INT\n", "7", "0"}, "is deaf": {"up\n", "137", "9"},
		} {
			r := f.run(t, "service", program, func(task *api.Task, _ *interfaces.Config) {
				if program == "is deaf" {
					task.KillTimeout = new(50 * time.Millisecond)
				}
			})
			r.untilSaid("up\n")
			r.untilState("main", "running")
			r.stop()
			if err := r.end(); err != nil {
				t.Error(program, err)
			}
			r.wantEvents("main", "Received", "Task Setup", "Started", "Killing", "Terminated", "Killed")
			alloc := r.runner.Alloc()
			if got := event(alloc, "main", "Terminated").Details; got["exit_code"] != want.code ||
				got["signal"] != want.signal || r.said() != want.said {
				t.Errorf("one that %s: %v, output %q", program, got, r.said())
			}
			if alloc.ClientStatus != "complete" || alloc.DesiredStatus != "stop" {
				t.Errorf("status %s, desired %s; want complete, stop", alloc.ClientStatus, alloc.DesiredStatus)
			}
		}
	})
}

// TestLifeOfATaskThatIsActedOn is signalled, restarted, updated and measured, and a program runs beside it.
func TestLifeOfATaskThatIsActedOn(t *testing.T) {
	eachDriver(t, func(t *testing.T, f flavour) {
		r := f.run(t, "service", "says its signals", func(task *api.Task, _ *interfaces.Config) {
			task.Env = map[string]string{"COLOUR": "blue"}
		})
		r.untilSaid("up\n")
		r.untilState("main", "running")
		must.OK(t, r.runner.Signal(t.Context(), "main", "SIGUSR1"))
		r.untilSaid("up\ngot user defined signal 1\n")
		must.OK(t, r.runner.RestartTask(t.Context(), "main"))
		r.untilSaid("up\ngot user defined signal 1\nup\n")
		r.until("restarted", func(a *api.Allocation) bool {
			return a.TaskStates["main"].Restarts == 1 && a.TaskStates["main"].State == "running"
		})

		must.OK(t, r.runner.Update(t.Context(), r.version(func(j *api.Job) { j.Meta = map[string]string{"size": "large"} })))
		if got := r.runner.Alloc(); *got.Job.Version != 1 || got.TaskStates["main"].Restarts != 1 {
			t.Errorf("version %d after %d restarts", *got.Job.Version, got.TaskStates["main"].Restarts)
		}

		s := must.Get(r.runner.Exec(t.Context(), interfaces.ExecRequest{Task: "main",
			Command: []string{"sh", "-c", "cat; echo $COLOUR; exit 4"}}))(t)
		must.Get(io.WriteString(s.Stdin(), "hello\n"))(t)
		s.Stdin().Close()
		if out, errs, code := whole(t, s); out != "hello\nblue\n" || errs != "" || code != 4 {
			t.Errorf("%q, %q, code %d", out, errs, code)
		}
		s.Close()

		r.usage(func(u *api.AllocResourceUsage) error {
			if rss(u, "main") == 0 || u.ResourceUsage.MemoryStats.RSS != rss(u, "main") {
				return fmt.Errorf("no memory of %v", u.Tasks)
			}
			return nil
		})
	})
}

// TestLifeOfATaskWithChecks runs their scripts beside the task, and one that fails restarts it.
func TestLifeOfATaskWithChecks(t *testing.T) {
	eachDriver(t, func(t *testing.T, f flavour) {
		with := func(check api.ServiceCheck) func(*api.Task, *interfaces.Config) {
			return func(task *api.Task, _ *interfaces.Config) {
				task.Env = map[string]string{"COLOUR": "blue"}
				task.Services = []*api.Service{service("", check)}
				task.RestartPolicy = &api.RestartPolicy{Attempts: new(1), Interval: new(time.Hour),
					Delay: new(time.Millisecond), Mode: new("fail")}
			}
		}
		r := f.run(t, "service", "sleeps", with(script("", "echo $COLOUR; exit 0")))
		r.untilCheck("a success", func(c api.AllocCheckStatus) bool {
			return c.Status == "success" && c.Output == "blue\n"
		})

		failing := script("", "exit 1")
		failing.CheckRestart = &api.CheckRestart{Limit: 2, Grace: new(time.Millisecond)}
		r = f.run(t, "service", "sleeps", with(failing))
		if err := r.end(); !errors.Is(err, allocrunner.ErrFailed) || r.said() != "up\nup\n" {
			t.Errorf("%v, %q", err, r.said())
		}
	})
}

// TestLifeGoesOnFromAnyMoment: whenever the runner is killed, what it has saved by then is enough for the next, which
// finds the task that was started, and starts no other.
func TestLifeGoesOnFromAnyMoment(t *testing.T) {
	eachDriver(t, func(t *testing.T, f flavour) {
		state := &moments{}
		r := f.run(t, "service", "is orderly", func(_ *api.Task, c *config) { c.State = state })
		r.untilSaid("up\n")
		r.untilState("main", "running")
		cfg := r.leave()
		cfg.State = &memory{}
		var next *running
		for i, had := range state.had {
			cfg.Saved = had
			next = beginWith(t, f.factory(), cfg)
			next.untilState("main", "running")
			if i == len(state.had)-1 {
				break
			}
			next.leave()
		}
		next.stop()
		if err := next.end(); err != nil || next.said() != "up\ngot INT\n" {
			t.Errorf("%v, %q, events %v", err, next.said(), next.seen())
		}
		same.As(t, "7", event(next.runner.Alloc(), "main", "Terminated").Details["exit_code"], "exit code")
	})
}

// TestLifeAfterTheDriverHasForgotten the task, as with the power of the machine: its end is reported, and the restart
// policy decides.
func TestLifeAfterTheDriverHasForgotten(t *testing.T) {
	t.Parallel()
	cfg := configure(t, "service", func(group *api.TaskGroup, _ *config) { group.RestartPolicy.Attempts = new(1) },
		inMemory("main", "sleeps"))
	first := newMemoryDriver()
	r := beginWith(t, allocrunner.WithDrivers(drivers.NewRegistry(first)), cfg)
	r.untilState("main", "running")
	r = beginWith(t, allocrunner.WithDrivers(drivers.NewRegistry(newMemoryDriver())), r.leave())
	r.until("running again", func(a *api.Allocation) bool {
		return a.TaskStates["main"].Restarts == 1 && a.TaskStates["main"].State == "running"
	})
	if e := event(r.runner.Alloc(), "main", "Terminated"); !strings.Contains(e.DisplayMessage,
		drivers.ErrNoRun.Error()) {
		t.Errorf("%+v", e)
	}
	for _, run := range first.latest {
		_, _ = run.Destroy(t.Context())
	}
}

// TestADriverThatCanNotTell whether its tasks run keeps an allocation from being resumed, and it stays as it is.
func TestADriverThatCanNotTell(t *testing.T) {
	t.Parallel()
	driver := newMemoryDriver()
	cfg := configure(t, "service", unedited, inMemory("main", "sleeps"))
	r := beginWith(t, allocrunner.WithDrivers(drivers.NewRegistry(driver)), cfg)
	r.untilState("main", "running")
	cfg = r.leave()
	r = beginWith(t, allocrunner.WithDrivers(drivers.NewRegistry(silent{driver})), cfg)
	if err := r.end(); err == nil || errors.Is(err, interfaces.ErrDetached) ||
		!strings.Contains(err.Error(), `task "main": no answer`) || r.runner.Terminal() {
		t.Errorf("%v, over %v", err, r.runner.Terminal())
	}
	r = beginWith(t, allocrunner.WithDrivers(drivers.NewRegistry(driver)), cfg)
	r.untilState("main", "running")
	if driver.started() != 1 {
		t.Errorf("%d starts", driver.started())
	}
}

// silent is a driver that does not answer.
type silent struct{ *memoryDriver }

func (silent) Recover(context.Context, drivers.Task, interfaces.Handle) (drivers.Run, error) {
	return nil, errors.New("no answer")
}

// TestARunWithoutAbilities takes no signals and has no programs beside it; it is stopped all the same.
func TestARunWithoutAbilities(t *testing.T) {
	t.Parallel()
	cfg := configure(t, "service", unedited, inMemory("main", "sleeps"))
	r := beginWith(t, allocrunner.WithDrivers(drivers.NewRegistry(plainDriver{newMemoryDriver()})), cfg)
	r.untilState("main", "running")
	same.Error(t, interfaces.ErrNotSupported, r.runner.Signal(t.Context(), "main", "SIGHUP"))
	if _, err := r.runner.Exec(t.Context(), interfaces.ExecRequest{Task: "main",
		Command: []string{"true"}}); !errors.Is(err, interfaces.ErrNotSupported) {
		t.Error(err)
	}
	r.stop()
	must.OK(t, r.end())
	r.wantEvents("main", "Received", "Task Setup", "Started", "Killing", "Terminated", "Killed")
}
