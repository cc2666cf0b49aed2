package allocrunner_test

import (
	"context"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/registration/registrationtest"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/same"
)

// named returns a service of a name, with provider nomad.
func named(name string, checks ...api.ServiceCheck) *api.Service {
	return &api.Service{Name: name, Provider: "nomad", Tags: []string{"${NOMAD_TASK_NAME}", "${NOMAD_GROUP_NAME}"},
		Checks: checks}
}

// registers has an allocation's services, and the events of its tasks, noted in a diary.
func registers(d *diary, c *config) *registrationtest.Provider {
	p := registrationtest.New("nomad", d.note)
	c.ServiceProviders = []interfaces.ServiceProvider{p}
	c.OnEvent = func(task string, e *api.TaskEvent) { d.note(task + ": " + e.Type) }
	return p
}

// inOrder reports whether a list has these in this order, with others in between.
func inOrder(list []string, want ...string) bool {
	for _, s := range list {
		if len(want) > 0 && s == want[0] {
			want = want[1:]
		}
	}
	return len(want) == 0
}

// untilInOrder waits for a diary to have these in this order.
func (r *running) untilInOrder(d *diary, want ...string) {
	r.t.Helper()
	if !polltest.Until(func() bool { return inOrder(d.read(), want...) }) {
		r.t.Fatalf("not in this order: %q; noted: %q", want, d.read())
	}
}

// TestServicesComeAndGo with what they lead to: the group's before the first task starts and after it is known that the
// allocation ends, a task's between the start and the end of its process. A shutdown delay comes after the group's have
// left, and a forced stop cuts it.
func TestServicesComeAndGo(t *testing.T) {
	t.Parallel()
	d := &diary{}
	var p *registrationtest.Provider
	main := shell("main", "exec sleep 1000")
	main.Services = []*api.Service{named("db")}
	r := runWith(t, "service", func(g *api.TaskGroup, c *config) {
		p = registers(d, c)
		c.Hooks = []interfaces.RunnerHook{&noting{diary: d}} // as the operator's socket, which waits for no registry
		g.ShutdownDelay = new(time.Hour)
		g.Services = []*api.Service{named("web")}
	}, main)
	r.untilInOrder(d, "prerun g", "+web", "main: Started")
	r.untilInOrder(d, "+db")
	for _, s := range p.Has() {
		want := []string{"${NOMAD_TASK_NAME}", "g"}
		if s.ServiceName == "db" {
			want[0] = "main"
		}
		if !slices.Equal(s.Tags, want) || s.AllocID != r.runner.Alloc().ID || s.Namespace != "default" || s.NodeID != "n" {
			t.Errorf("%s is %+v, want tags %q", s.ServiceName, s, want)
		}
	}
	must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
	r.untilInOrder(d, "-web")
	if got := p.Names(); !slices.Equal(got, []string{"db"}) || slices.Contains(d.read(), "main: Killing") {
		t.Errorf("in the shutdown delay known are %q, noted %q", got, d.read())
	}
	must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{NoShutdownDelay: true}))
	must.OK(t, r.end())
	if !inOrder(d.read(), "-web", "main: Killing", "-db", "main: Terminated") || len(p.Names()) > 0 {
		t.Errorf("noted %q, left %q", d.read(), p.Names())
	}
}

// TestChecksAreKnownDuringAResume: the agent's hooks open the API's socket before the services of a resumed allocation
// are set up. Clients find the results of before, not an allocation without checks.
func TestChecksAreKnownDuringAResume(t *testing.T) {
	t.Parallel()
	r := runWith(t, "service", func(g *api.TaskGroup, c *config) {
		registers(&diary{}, c)
		g.Services = []*api.Service{service("", restartingCheck("1", time.Hour))}
	}, shell("main", "exec sleep 1000"))
	r.untilState("main", "running")
	r.until("a check to have a result", func(*api.Allocation) bool { return len(r.saved().Checks) > 0 })
	saved := r.saved() // as after SIGKILL
	cfg := r.leave()
	cfg.Saved = saved
	var next *running
	begun, known := make(chan struct{}), make(chan int, 1)
	cfg.Hooks = []interfaces.RunnerHook{prerunHook(func() {
		<-begun
		results, _ := next.runner.Checks()
		known <- len(results)
	})}
	next = begin(t, cfg)
	close(begun)
	same.As(t, 1, <-known, "checks that the hook finds")
	next.untilState("main", "running")
	must.OK(t, next.runner.Stop(t.Context(), interfaces.StopRequest{}))
	must.OK(t, next.end())
	if got, version := next.runner.Checks(); len(got) > 0 || version == math.MaxUint64 {
		t.Errorf("after the end: %d checks of version %d", len(got), version)
	}
}

type prerunHook func()

func (prerunHook) Name() string { return "prerun" }

func (h prerunHook) Prerun(context.Context, *interfaces.RunnerPrerunRequest) error {
	h()
	return nil
}

// TestResultsEndWithTheRegistration: what was found before a restart is not shown after it, while nothing has been
// found since. The checks begin again with a restart: in an hour they would not run a second time by themselves.
func TestResultsEndWithTheRegistration(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]func(*running) error{
		"of the group, running tasks": func(r *running) error { return r.runner.RestartRunning(t.Context()) },
		"of the group, all tasks":     func(r *running) error { return r.runner.RestartAll(t.Context()) },
		"of a task":                   func(r *running) error { return r.runner.RestartTask(t.Context(), "main") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var visits atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				if visits.Add(1) > 1 {
					<-req.Context().Done() // nothing is found
				}
			}))
			t.Cleanup(server.Close)
			_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
			check := api.ServiceCheck{Name: "c", Type: "http", PortLabel: port, Path: "/", Interval: time.Hour,
				Timeout: time.Hour}
			main := shell("main", "exec sleep 1000")
			d := &diary{}
			r := runWith(t, "service", func(g *api.TaskGroup, c *config) {
				registers(d, c)
				if name == "of a task" {
					main.Services = []*api.Service{named("db", check)}
				} else {
					g.Services = []*api.Service{named("web", check)}
				}
			}, main)
			r.untilState("main", "running")
			r.untilCheck("a success", func(c api.AllocCheckStatus) bool { return c.Status == "success" })
			must.OK(t, restart(r))
			if c := r.onlyCheck(); c.Status != "pending" {
				t.Errorf("after the restart %q is shown, which was found before", c.Status)
			}
			untilVisits(t, &visits, 2)
			if c := r.onlyCheck(); c.Status != "pending" {
				t.Errorf("during the first run after the restart %q is shown", c.Status)
			}
		})
	}
}

// TestAnUpdateRegistersWhatChanged, and nothing else.
func TestAnUpdateRegistersWhatChanged(t *testing.T) {
	t.Parallel()
	d := &diary{}
	var p *registrationtest.Provider
	main := shell("main", "exec sleep 1000")
	main.Services = []*api.Service{named("db")}
	r := runWith(t, "service", func(g *api.TaskGroup, c *config) {
		p = registers(d, c)
		g.Services = []*api.Service{named("web"), named("gone"), named("stays")}
	}, main)
	r.untilInOrder(d, "main: Started", "+db")
	p.Took()
	next := r.version(func(j *api.Job) {
		j.TaskGroups[0].Services[0].Tags = []string{"new"}
		j.TaskGroups[0].Services[1].Name = "came"
	})
	must.OK(t, r.runner.Update(t.Context(), next))
	same.As(t, []string{"+web", "+came", "-gone"}, p.Took(), "told")
	for what, change := range map[string]func(*api.TaskGroup){
		"no such port":     func(g *api.TaskGroup) { g.Services[0].PortLabel = "nope" },
		"no such provider": func(g *api.TaskGroup) { g.Tasks[0].Services[0].Provider = "consul" },
	} {
		bad := copyJob(next)
		change(bad.TaskGroups[0])
		same.Error(t, interfaces.ErrInvalidJob, r.runner.Update(t.Context(), bad), what)
	}
	if got := p.Took(); len(got) > 0 {
		t.Errorf("told %q of what was refused", got)
	}
}

// TestNoServiceIsLost: one whose provider there is not keeps its allocation from starting, with its name.
func TestNoServiceIsLost(t *testing.T) {
	t.Parallel()
	s := named("web")
	s.Provider = "consul"
	r := runWith(t, "service", func(g *api.TaskGroup, _ *config) { g.Services = []*api.Service{s} },
		shell("main", "exec sleep 1000"))
	err := r.end()
	if err == nil || !strings.Contains(err.Error(), `service "web": there is no provider "consul" here`) ||
		slices.Contains(r.seen(), "main: Started") {
		t.Errorf("got %v, events %q", err, r.seen())
	}
}

// TestServicesOfATaskThatEndsAtOnce, and of one that runs last, come and go with them, and the group's go before the
// last one starts.
func TestServicesOfATaskThatEndsAtOnce(t *testing.T) {
	t.Parallel()
	d := &diary{}
	var p *registrationtest.Provider
	main, last := shell("main", "exit 0"), shell("last", "exit 0", lifecycle("poststop", false))
	main.Services, last.Services = []*api.Service{named("db")}, []*api.Service{named("end")}
	r := runWith(t, "batch", func(g *api.TaskGroup, c *config) {
		p = registers(d, c)
		g.Services = []*api.Service{named("web")}
	}, main, last)
	must.OK(t, r.end())
	if !inOrder(d.read(), "+web", "+db", "-db", "-web", "last: Started", "-end") || !inOrder(d.read(), "+end", "-end") ||
		len(p.Names()) > 0 {
		t.Errorf("noted %q, left %q", d.read(), p.Names())
	}
}

// TestServicesOutliveTheirRunner, and leave when a task has ended before the next one came.
func TestServicesOutliveTheirRunner(t *testing.T) {
	t.Parallel()
	d := &diary{}
	var p *registrationtest.Provider
	stays, ends := shell("stays", "exec sleep 1000"), shell("ends",
		"until [ -e $NOMAD_ALLOC_DIR/end ]; do sleep 0.05; done")
	stays.Services, ends.Services = []*api.Service{named("db")}, []*api.Service{named("short")}
	r := runWith(t, "batch", func(g *api.TaskGroup, c *config) {
		p = registers(d, c)
		g.Services = []*api.Service{named("web")}
	}, stays, ends)
	r.untilInOrder(d, "+db")
	r.untilInOrder(d, "+short")
	cfg := r.leave()
	all := []string{"db", "short", "web"}
	if got := p.Names(); !slices.Equal(got, all) {
		t.Fatalf("after the first runner known are %q, want %q", got, all)
	}
	r.write("alloc/end", "")
	p.Took()
	cfg.Saved.Alloc.TaskStates["stays"].State = "pending" // as saved right after the task's start
	next := begin(t, cfg)
	next.untilState("ends", "dead")
	next.untilInOrder(d, "+db", "+db") // it has been taken over
	must.OK(t, next.runner.RestartTask(t.Context(), "stays"))
	got := p.Took()
	if !slices.Contains(got, "-short") || slices.Contains(got, "-web") ||
		slices.Index(got, "-db") < slices.Index(got, "+db") {
		t.Errorf("told %q, want all but short known throughout", got)
	}
	must.OK(t, next.runner.Stop(t.Context(), interfaces.StopRequest{}))
	_ = next.end()
	if got := p.Names(); len(got) > 0 {
		t.Errorf("left known: %q", got)
	}
}
