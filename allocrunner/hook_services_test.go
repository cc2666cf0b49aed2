package allocrunner

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/checks"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/registration"
	"taskapi/allocrunner/internal/services"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// fakeServed is an allocation with a check of its group.
type fakeServed struct {
	alloc   *api.Allocation
	changed chan int // how many results there are
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	tasks   []checkedTask
}

func (f fakeServed) services(alloc *api.Allocation) (services.Owned, error) {
	return services.Resolver{}.ResolveAll(alloc, "dc1")
}
func (f fakeServed) checkConfig(alloc *api.Allocation) checks.Config {
	return checks.Config{Alloc: alloc, Logger: slog.New(slog.DiscardHandler), DialContext: f.dial,
		Provider: func(string) (interfaces.ServiceProvider, bool) { return nil, false }}
}
func (f fakeServed) checkedTasks(string) []checkedTask            { return f.tasks }
func (f fakeServed) preTaskRestart(context.Context)               {}
func (f fakeServed) checksChanged(results api.AllocCheckStatuses) { f.changed <- len(results) }

// newServed returns one whose check runs once an hour.
func newServed() fakeServed {
	group := api.NewTaskGroup("g", 1)
	group.Services = []*api.Service{{Name: "s", Provider: "nomad", PortLabel: "1", Checks: []api.ServiceCheck{
		{Name: "c", Type: "tcp", Interval: time.Hour, Timeout: time.Second},
	}}}
	job := &api.Job{ID: new("job"), Name: new("job"), TaskGroups: []*api.TaskGroup{group}}
	job.Canonicalize()
	alloc := &api.Allocation{ID: "115ef685-6b9e-3eaf-e74b-6b04f094ebca", Name: "job.g[0]", Job: job, TaskGroup: "g"}
	return fakeServed{alloc: alloc, changed: make(chan int, 100)}
}

// TestARestartOwesTheGroupACheck, which is made when a task that serves has started after it, and then alone.
func TestARestartOwesTheGroupACheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake, dials := newServed(), 0
		fake.dial = func(context.Context, string, string) (net.Conn, error) {
			dials++
			client, server := net.Pipe()
			server.Close()
			return client, nil
		}
		h := servicesHook{alloc: fake, logger: slog.New(slog.DiscardHandler), registrar: registration.New(fake.alloc.ID, nil)}
		must.OK(t, h.Prerun(t.Context(), &interfaces.RunnerPrerunRequest{Alloc: fake.alloc}))
		defer h.Shutdown()
		main, init := &taskServices{services: &h, task: "main", serves: true}, &taskServices{services: &h, task: "init"}
		for _, step := range []struct {
			name string
			do   func() error
			want int // runs of the check so far
		}{
			{"the first start", func() error { return main.Poststart(t.Context(), nil) }, 1},
			{"another start", func() error { return main.Poststart(t.Context(), nil) }, 1},
			{"a task that serves nothing", func() error { h.restart("", "unhealthy"); return init.Poststart(t.Context(), nil) },
				1},
			{"the start after a restart", func() error { return main.Poststart(t.Context(), nil) }, 2},
			{"the start after that", func() error { return main.Poststart(t.Context(), nil) }, 2},
			{"after a restart by a check of the task", func() error {
				h.restart("main", "unhealthy")
				return main.Poststart(t.Context(), nil)
			}, 2},
		} {
			must.OK(t, step.do())
			time.Sleep(time.Minute)
			synctest.Wait()
			same.As(t, step.want, dials, step.name, ": runs of the check")
		}
	})
}

// upTask is up since then, or in a phase.
type upTask struct {
	checkedTask
	up    time.Time
	phase lifecycle.Phase
}

func (u upTask) Up() time.Time          { return u.up }
func (u upTask) State() lifecycle.State { return lifecycle.State{Phase: u.phase} }

// TestUp: the grace of a group's check counts from the latest start, whichever task that is of; dead tasks don't
// matter, and one that is not up does.
func TestUp(t *testing.T) {
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	is := func(up time.Time) checkedTask { return upTask{up: up, phase: lifecycle.Running} }
	dead, starts := upTask{up: time.Unix(3, 0), phase: lifecycle.Dead}, upTask{phase: lifecycle.Pending}
	for name, c := range map[string]struct {
		tasks []checkedTask
		want  time.Time
	}{
		"the last is the latest":  {[]checkedTask{is(early), is(late)}, late},
		"the first is the latest": {[]checkedTask{is(late), is(early)}, late},
		"the dead one is":         {[]checkedTask{is(early), dead}, early},
		"one is not up":           {[]checkedTask{is(early), starts, is(late)}, time.Time{}},
		"none lives":              {[]checkedTask{dead}, time.Time{}},
	} {
		h := servicesHook{alloc: fakeServed{tasks: c.tasks}}
		if got := h.up(""); !got.Equal(c.want) {
			t.Errorf("%s: up since %v, want %v", name, got, c.want)
		}
	}
}

// TestAPoststopTaskBeginsNoChecks of the group, whose services have left, also when these have requested a restart just
// before.
func TestAPoststopTaskBeginsNoChecks(t *testing.T) {
	t.Parallel()
	fake := newServed()
	h := servicesHook{alloc: fake, logger: slog.New(slog.DiscardHandler), registrar: registration.New(fake.alloc.ID, nil)}
	must.OK(t, h.Prerun(t.Context(), &interfaces.RunnerPrerunRequest{Alloc: fake.alloc}))
	defer h.Shutdown()
	for <-fake.changed != 1 { // until they run
	}
	h.restart("", "unhealthy")
	h.groupEnded(true)
	started := func(task *taskServices) {
		if err := task.Poststart(t.Context(), nil); err != nil {
			t.Error(err)
		}
	}
	started(&taskServices{services: &h, task: "last"})
	if got, _ := h.results(); got != nil {
		t.Errorf("the services have checks without a task: %v", got)
	}
	h.groupEnded(false)
	started(&taskServices{services: &h, task: "main", serves: true})
	if got, _ := h.results(); len(got) != 1 {
		t.Errorf("got %d checks after the start of a task that serves, want 1", len(got))
	}
}
