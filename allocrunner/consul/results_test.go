package consul_test

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/consul"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// TestResults: the agent makes HTTP, TCP and gRPC checks, and what it finds is what Result returns.
func TestResults(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	p := e.run(nil)
	var bad atomic.Bool
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if bad.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer web.Close()
	health := newHealth(t)
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	in := instance(p, "web", func(in *interfaces.ServiceInstance) {
		of := func(kind string) api.ServiceCheck {
			return api.ServiceCheck{Name: kind, Type: kind, Path: "/", GRPCService: "svc", Interval: time.Second,
				Timeout: time.Second}
		}
		in.Service.Checks = []api.ServiceCheck{of("http"), of("tcp"), of("grpc")}
		in.CheckAddresses = []string{strings.TrimPrefix(web.URL, "http://"), listener.Addr().String(),
			strings.TrimPrefix(health.URL, "http://")}
	})
	e.register(p, in)
	for n, c := range in.Service.Checks {
		e.until(c.Name+" passes", func() bool {
			got, ok := p.Result(in.ID, n)
			return ok && got.Status == interfaces.CheckSuccess
		})
	}
	bad.Store(true)
	listener.Close()
	health.serving.Store(false)
	for n, c := range in.Service.Checks {
		e.until(c.Name+" fails", func() bool {
			got, ok := p.Result(in.ID, n)
			return ok && got.Status == interfaces.CheckFailure && got.Output != ""
		})
	}
	if _, ok := p.Result(in.ID, 3); ok {
		t.Error("a check that there is not has a result")
	}

	// A registration of its own has results of its own.
	must.OK(t, p.Deregister(t.Context(), []string{in.ID}))
	if got, ok := p.Result(in.ID, 0); ok {
		t.Errorf("deregistered, and yet %v", got)
	}
	bad.Store(false)
	must.OK(t, p.Register(t.Context(), []*interfaces.ServiceInstance{in}))
	if got, ok := p.Result(in.ID, 0); ok && got.Status == interfaces.CheckFailure {
		t.Error("what was known before it was deregistered is its result")
	}
	e.register(p, in)
	e.until("passes again", func() bool {
		got, ok := p.Result(in.ID, 0)
		if ok && got.Status == interfaces.CheckFailure {
			t.Fatal("the result of the registration before is shown")
		}
		return ok && got.Status == interfaces.CheckSuccess
	})

	// While the agent is away nobody knows.
	e.proxy.Away()
	e.until("unknown", func() bool { _, ok := p.Result(in.ID, 0); return !ok })
	e.proxy.Back()
	e.until("known again", func() bool { _, ok := p.Result(in.ID, 0); return ok })
}

// TestScripts: what scripts find is fed, also when it could not be sent as it was found.
func TestScripts(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	p := e.run(nil)
	in := instance(p, "s", nil)
	id := consul.CheckID(in.ID, in.Service.Checks[0])
	has := func(status, output string) func() bool {
		return func() bool { c := e.check(id); return c != nil && c.Status == status && c.Output == output }
	}
	e.register(p, in)
	e.until("critical before its first run", func() bool { c := e.check(id); return c != nil && c.Status == "critical" })
	feed := func(s interfaces.CheckStatus, output string) {
		p.Feed(in.ID, 0, interfaces.CheckResult{Status: s, Output: output})
		if got, ok := p.Result(in.ID, 0); !ok || got.Status != s {
			t.Errorf("known of what was fed: %v, %v", got, ok)
		}
	}
	feed(interfaces.CheckSuccess, "fine")
	e.until("passing", has("passing", "fine"))
	feed(interfaces.CheckWarning, "hm")
	e.until("warning", has("warning", "hm"))
	feed(interfaces.CheckFailure, strings.Repeat("x", 5000))
	e.until("critical, cut", has("critical", strings.Repeat("x", 4096)))

	e.proxy.Away()
	feed(interfaces.CheckSuccess, "later")
	e.rounds(1)
	if has("passing", "later")() {
		t.Fatal("it was not away")
	}
	e.proxy.Back()
	e.until("sent when the agent is back", has("passing", "later"))

	must.OK(t, e.api.Agent().ServiceDeregister(in.ID))
	e.until("sent again for the service that came back", has("passing", "later"))
	p.Feed("_nomad-task-none", 0, interfaces.CheckResult{})
	p.Feed(in.ID, 7, interfaces.CheckResult{})
}

// TestResultOfAFormerScript: what was found by a script that the job has no more, and could not be sent, is forgotten.
func TestResultOfAFormerScript(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	var log polltest.Log
	p := e.run(func(c *consul.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	in := instance(p, "s", nil)
	e.register(p, in)
	e.proxy.Away()
	p.Feed(in.ID, 0, interfaces.CheckResult{Status: interfaces.CheckSuccess, Output: "former"})
	other := instance(p, "s", func(in *interfaces.ServiceInstance) { in.Service.Checks[0].Command = "y" })
	must.OK(t, p.Register(t.Context(), []*interfaces.ServiceInstance{other}))
	e.until("a round fails", func() bool { return log.Has("does not accept the services") })
	e.proxy.Back()
	id := consul.CheckID(other.ID, other.Service.Checks[0])
	e.until("the other check", func() bool { return e.check(id) != nil })
	p.Feed(in.ID, 0, interfaces.CheckResult{Status: interfaces.CheckSuccess, Output: "present"})
	e.until("its result", func() bool { c := e.check(id); return c != nil && c.Output == "present" })
	e.until("no round fails for long", func() bool { return log.Has("accepts the services again") })
}

// TestResultsWhileScriptsRun: results of the agent's checks are taken also while scripts are fed more often than the
// agent is asked.
func TestResultsWhileScriptsRun(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	if e.stand == nil {
		t.Skip("a real agent does not tell what it was asked for")
	}
	e.unhurried = true
	p := e.run(nil)
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	in := instance(p, "s", func(in *interfaces.ServiceInstance) {
		in.Service.Checks = append(in.Service.Checks, api.ServiceCheck{Name: "t", Type: "tcp", Interval: time.Second,
			Timeout: time.Second})
		in.CheckAddresses = append(in.CheckAddresses, listener.Addr().String())
	})
	e.register(p, in)
	e.stand.Requests() // which were the environment's, too
	rounds, looks := 0, 0
	e.until("asked between two rounds", func() bool {
		p.Feed(in.ID, 0, interfaces.CheckResult{Status: interfaces.CheckSuccess})
		for _, r := range e.stand.Requests() {
			switch r {
			case "GET /v1/agent/services":
				rounds++
			case "GET /v1/agent/checks":
				looks++
			}
		}
		return looks > rounds
	})
}
