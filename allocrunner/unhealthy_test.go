package allocrunner_test

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/must"
	"taskapi/internal/polltest"
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

// graces notes how long each task had been up when a check had it restarted.
type graces struct {
	mu      sync.Mutex // guards the fields below
	started map[string]int64
	after   map[string][]time.Duration
}

func (g *graces) note(task string, e *api.TaskEvent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case e.Type == "Started":
		g.started[task] = e.Time
	case strings.HasPrefix(e.DisplayMessage, "healthcheck: "):
		g.after[task] = append(g.after[task], time.Duration(e.Time-g.started[task]))
	}
}

func (g *graces) of(task string) []time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.after[task])
}

// TestEachStartHasItsGrace before a check of the group can ask for a restart.
func TestEachStartHasItsGrace(t *testing.T) {
	t.Parallel()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	const grace = 400 * time.Millisecond
	seen := &graces{started: map[string]int64{}, after: map[string][]time.Duration{}}
	r := runWith(t, "service", func(g *api.TaskGroup, c *config) {
		watched(g, restartingCheck(port, grace))
		c.OnEvent = seen.note
	}, shell("main", "exec sleep 1000"))
	r.untilEvents("main", "Started", 1)
	<-time.After(grace) // the first start's is over
	must.OK(t, r.runner.RestartTask(t.Context(), "main"))
	r.untilEvents("main", "Restarting", 1)
	listener.Close()
	if !polltest.Until(func() bool { return len(seen.of("main")) > 0 }) {
		t.Fatalf("it is never restarted: %v", r.of("main"))
	}
	if after := seen.of("main")[0]; after < grace {
		t.Errorf("restarted %v after its start, within the grace of %v", after, grace)
	}
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
