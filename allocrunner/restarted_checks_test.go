package allocrunner_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// visited returns a port that counts who comes.
func visited(t *testing.T) (port string, visits *atomic.Int64) {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { listener.Close() })
	visits = new(atomic.Int64)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			visits.Add(1)
			conn.Close()
		}
	}()
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port), visits
}

// untilVisits waits for as many.
func untilVisits(t *testing.T, visits *atomic.Int64, want int64) {
	t.Helper()
	if !polltest.Until(func() bool { return visits.Load() >= want }) {
		t.Fatalf("%d visits, want %d", visits.Load(), want)
	}
}

// TestNoCheckRunsDuringTheShutdownDelay: the services have left.
func TestNoCheckRunsDuringTheShutdownDelay(t *testing.T) {
	t.Parallel()
	port, visits := visited(t)
	const interval = 20 * time.Millisecond
	check := api.ServiceCheck{Name: "port", Type: "tcp", PortLabel: port, Interval: interval, Timeout: time.Minute}
	main := shell("main", "exec sleep 1000", func(t *api.Task) { t.ShutdownDelay = time.Hour })
	r := runWith(t, "service", func(g *api.TaskGroup, _ *config) { g.Services = []*api.Service{service("", check)} }, main)
	r.untilState("main", "running")
	untilVisits(t, visits, 2)
	must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
	r.untilEvents("main", "Waiting for shutdown delay", 1)
	// nobody says that nothing happens
	for give, was := time.Now().Add(deadline), int64(-1); was != visits.Load(); time.Sleep(25 * interval) {
		if time.Now().After(give) {
			t.Fatal("the checks go on")
		}
		was = visits.Load()
	}
	r.runner.Kill()
	must.OK(t, r.end())
}

// TestPreTaskRestart is called before tasks are restarted together, for whatever reason, and not for one that is
// restarted alone.
func TestPreTaskRestart(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		check   api.ServiceCheck
		restart func(*running) error
		want    bool
	}{
		"running tasks": {okCheck("x"), func(r *running) error { return r.runner.RestartRunning(t.Context()) }, true},
		"all tasks":     {okCheck("x"), func(r *running) error { return r.runner.RestartAll(t.Context()) }, true},
		"check_restart": {restartingCheck("1", time.Millisecond), func(*running) error { return nil }, true},
		"one task":      {okCheck("x"), func(r *running) error { return r.runner.RestartTask(t.Context(), "main") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &diary{}
			r := runWith(t, "service", func(g *api.TaskGroup, c *config) {
				watched(g, tc.check)
				noted(d, c)
			}, shell("main", "exec sleep 1000"))
			r.untilCalls(d, "main poststart", 1)
			must.OK(t, tc.restart(r))
			r.untilCalls(d, "main prekill", 1)
			calls := d.read()
			before := calls[:slices.Index(calls, "main prekill")]
			if got := slices.Contains(before, "pre-task-restart"); got != tc.want {
				t.Errorf("called before: %t, want %t: %q", got, tc.want, calls)
			}
		})
	}
}

// ending is a hook that notes what it is called for an allocation that is to stop, and fails.
type ending struct{ *diary }

func (ending) Name() string { return "ending" }

func (e ending) Prerun(context.Context, *interfaces.RunnerPrerunRequest) error {
	e.note("ending prerun")
	return nil
}

func (e ending) Ending(_ context.Context, req *interfaces.RunnerPrerunRequest) error {
	e.note("ending, restored " + map[bool]string{true: "yes", false: "no"}[req.Restored])
	return errors.New("it fails")
}

// TestNoPrerunForAStop of an allocation that was taken over for it; what a hook does instead keeps no task from being
// ended.
func TestNoPrerunForAStop(t *testing.T) {
	t.Parallel()
	_, cfg, d := leftRunning(t)
	interfaces.StopRequest{}.Apply(cfg.Saved.Alloc)
	cfg.Hooks = append(slices.Clone(cfg.Hooks), ending{d})
	before := len(d.read())
	next := begin(t, cfg)
	must.OK(t, next.end())
	calls := d.read()[before:]
	if slices.ContainsFunc(calls, func(s string) bool { return strings.HasPrefix(s, "prerun") }) ||
		!slices.Contains(calls, "ending, restored yes") ||
		!slices.Contains(calls, "main exited") || !slices.Contains(calls, "postrun") {
		t.Errorf("calls: %q", calls)
	}
}
