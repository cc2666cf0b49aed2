package allocrunner_test

import (
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/must"
)

// These tests are about what the failing checks of a group's services lead to.

// restartingCheck is of a port, often, and asks for a restart after two failures.
func restartingCheck(port string, grace time.Duration) api.ServiceCheck {
	return api.ServiceCheck{Name: "port", Type: "tcp", PortLabel: port, Interval: 20 * time.Millisecond,
		Timeout:      time.Second,
		CheckRestart: &api.CheckRestart{Limit: 2, Grace: &grace}}
}

// watched gives a group a service with a check, and its tasks as many restarts as it likes.
func watched(g *api.TaskGroup, check api.ServiceCheck) {
	g.Services = []*api.Service{service("", check)}
	g.RestartPolicy.Attempts, g.RestartPolicy.Interval = new(1000), new(time.Hour)
}

// TestTheNextRunnerKnowsTheGrace: a task that it takes over has had its grace with the runner before.
func TestTheNextRunnerKnowsTheGrace(t *testing.T) {
	t.Parallel()
	r := runWith(t, "service", func(g *api.TaskGroup, _ *config) { watched(g, restartingCheck("1", time.Hour)) },
		shell("main", "exec sleep 1000"))
	r.untilState("main", "running")
	cfg := r.leave()
	if slices.Contains(r.of("main"), "Restart Signaled") {
		t.Error("restarted within the grace")
	}
	main := cfg.Saved.Tasks["main"]
	main.State.StartedAt = main.State.StartedAt.Add(-2 * time.Hour)
	cfg.Saved.Tasks["main"] = main
	begin(t, cfg).untilEvents("main", "Restart Signaled", 1)
}

// TestTheGroupsServicesComeBack when all tasks begin again after the main tasks had ended.
func TestTheGroupsServicesComeBack(t *testing.T) {
	t.Parallel()
	r := runWith(t, "batch", func(g *api.TaskGroup, _ *config) { watched(g, restartingCheck("1", time.Hour)) },
		shell("main", "test -e again && exec sleep 1000; exit 0"),
		shell("last", "exec sleep 1000", lifecycle("poststop", false)))
	r.untilState("last", "running")
	if got, _ := r.runner.Checks(); got != nil {
		t.Errorf("the services have checks without a task: %v", got)
	}
	r.write("main/again", "")
	must.OK(t, r.runner.RestartAll(t.Context()))
	r.untilCheck("a failure", func(c api.AllocCheckStatus) bool { return c.Status == "failure" })
}

// TestUnhealthyServicesWaitForTheirTasks: nothing is restarted before the main tasks run, and what prepares them never
// is.
func TestUnhealthyServicesWaitForTheirTasks(t *testing.T) {
	t.Parallel()
	r := runWith(t, "service", func(g *api.TaskGroup, _ *config) { watched(g, restartingCheck("1", time.Millisecond)) },
		shell("init", "sleep 0.5", lifecycle("prestart", false)), shell("main", "exec sleep 1000"),
		shell("side", "exec sleep 1000", lifecycle("prestart", true)), shell("hello", "exec sleep 1000",
			lifecycle("poststart", false)))
	r.untilEvents("side", "Restart Signaled", 2)
	r.untilEvents("main", "Restart Signaled", 2)
	seen := r.seen()
	if slices.Index(seen, "side: Restart Signaled") < slices.Index(seen, "main: Started") {
		t.Errorf("a sidecar was restarted before the main task was there: %v", seen)
	}
	r.wantEvents("init", "Received", "Task Setup", "Started", "Terminated")
	r.wantEvents("hello", "Received", "Task Setup", "Started")
}
