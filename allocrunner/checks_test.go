package allocrunner_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/polltest"
)

// copyJob returns a deep copy.
func copyJob(job *api.Job) *api.Job {
	var next *api.Job
	decode(encode(job), &next)
	return next
}

// service has provider nomad. task is the task of its script checks, for a service of the group.
func service(task string, checks ...api.ServiceCheck) *api.Service {
	return &api.Service{Name: "s", Provider: "nomad", TaskName: task, Checks: checks}
}

func okCheck(name string) api.ServiceCheck {
	return api.ServiceCheck{Name: name, Type: "tcp", PortLabel: "1", Interval: time.Hour, Timeout: time.Second}
}

// script returns a check that runs often.
func script(task, command string) api.ServiceCheck {
	return api.ServiceCheck{
		Name: "script", Type: "script", TaskName: task, Command: "sh", Args: []string{"-c", command},
		Interval: 50 * time.Millisecond, Timeout: 5 * time.Second,
	}
}

// onlyCheck returns the result of the only check there is.
func (r *running) onlyCheck() api.AllocCheckStatus {
	results, _ := r.runner.Checks()
	for _, c := range results {
		return c
	}
	return api.AllocCheckStatus{}
}

// untilCheck waits for the only check to be as ok says.
func (r *running) untilCheck(what string, ok func(api.AllocCheckStatus) bool) {
	r.t.Helper()
	if !polltest.Until(func() bool { return ok(r.onlyCheck()) }) {
		results, _ := json.Marshal(r.onlyCheck())
		r.t.Fatalf("no check is %s: %s", what, results)
	}
}

// TestHealthIsShown once it is decided, and written without anybody's asking for it.
func TestHealthIsShown(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		script  string
		time    time.Duration
		healthy bool
	}{
		"healthy":   {"exec sleep 1000", 20 * time.Millisecond, true},
		"unhealthy": {"exit 1", time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := runWith(t, "service", func(g *api.TaskGroup, _ *config) {
				g.Update = &api.UpdateStrategy{
					MaxParallel: new(1), HealthCheck: new("task_states"), MinHealthyTime: &tc.time, HealthyDeadline: new(time.Hour),
				}
			}, shell("main", tc.script))
			alloc := r.until("its health is known", healthKnown)
			if got := *alloc.DeploymentStatus.Healthy; got != tc.healthy || alloc.DeploymentStatus.Timestamp.IsZero() {
				t.Errorf("got %+v, want healthy %v", alloc.DeploymentStatus, tc.healthy)
			}
			if !polltest.Until(func() bool { return healthKnown(r.saved().Alloc) }) {
				t.Error("the health of the allocation is not written")
			}
		})
	}
}

// TestAProgressDeadline fails a deployment if nobody has decided its health before the deadline. The tasks run on.
func TestAProgressDeadline(t *testing.T) {
	t.Parallel()
	r := runWith(t, "service", func(g *api.TaskGroup, c *config) {
		g.Update = &api.UpdateStrategy{MaxParallel: new(1), HealthCheck: new("manual"),
			ProgressDeadline: new(100 * time.Millisecond)}
		c.Alloc.DeploymentID = "11111111-2222-3333-4444-555555555555"
	}, shell("main", "exec sleep 1000"))
	r.until("its deployment is over", func(*api.Allocation) bool { return r.runner.Deployments()[0].Status != "running" })
	if d := r.runner.Deployments()[0]; d.Status != "failed" || d.StatusDescription != "Failed due to progress deadline" {
		t.Errorf("the deployment is %s: %s", d.Status, d.StatusDescription)
	}
	r.untilState("main", "running")
}

// TestADeadlineOfHealthIsAnEvent of the tasks that were not healthy then, and of no others.
func TestADeadlineOfHealthIsAnEvent(t *testing.T) {
	t.Parallel()
	check := api.ServiceCheck{Name: "port", Type: "tcp", PortLabel: "1", Interval: 10 * time.Millisecond,
		Timeout: time.Second}
	for name, tc := range map[string]struct {
		change func(*api.TaskGroup)
		tasks  []*api.Task
	}{
		"a task": {
			func(g *api.TaskGroup) { g.Tasks[0].Lifecycle = &api.TaskLifecycle{Hook: "prestart"} },
			[]*api.Task{shell("a", "exec sleep 1000"), shell("b", "exec sleep 1000")},
		},
		"a group's check": {
			func(g *api.TaskGroup) { g.Services = []*api.Service{service("", check)} },
			[]*api.Task{shell("a", "exec sleep 1000")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := runWith(t, "service", func(g *api.TaskGroup, _ *config) {
				g.Update = &api.UpdateStrategy{MaxParallel: new(1), HealthCheck: new("checks"),
					MinHealthyTime:  new(time.Millisecond),
					HealthyDeadline: new(100 * time.Millisecond)}
				tc.change(g)
			}, tc.tasks...)
			r.untilEvents("a", "Alloc Unhealthy", 1)
			alloc := r.until("its health is known", healthKnown)
			said := event(alloc, "a", "Alloc Unhealthy").DisplayMessage
			if *alloc.DeploymentStatus.Healthy || !strings.HasPrefix(said, "not healthy within 100ms: ") {
				t.Errorf("healthy %v, and the event says %q", *alloc.DeploymentStatus.Healthy, said)
			}
			if n := count(r.of("b"), "Alloc Unhealthy"); n > 0 {
				t.Errorf("b, which nothing is said of, has %d events", n)
			}
		})
	}
}

// TestHealthIsJudgedByTheNextRunner with a deadline of its own, since nobody has watched the allocation meanwhile.
func TestHealthIsJudgedByTheNextRunner(t *testing.T) {
	t.Parallel()
	r := runWith(t, "service", func(g *api.TaskGroup, _ *config) {
		g.Update = &api.UpdateStrategy{MaxParallel: new(1), HealthCheck: new("task_states"),
			MinHealthyTime: new(30 * time.Minute), HealthyDeadline: new(time.Hour)}
	}, shell("main", "exec sleep 1000"))
	r.untilState("main", "running")

	cfg := r.leave()
	cfg.Saved.Alloc.CreateTime = time.Now().Add(-2 * time.Hour).UnixNano()
	cfg.Saved.Alloc.Job.TaskGroups[0].Update.MinHealthyTime = new(time.Millisecond)
	next := begin(t, cfg)
	alloc := next.until("its health is known", healthKnown)
	if !*alloc.DeploymentStatus.Healthy {
		t.Error("it is said to be unhealthy because of a deadline that went by without anybody to evaluate it")
	}
}
