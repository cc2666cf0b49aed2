package consul_test

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	capi "github.com/hashicorp/consul/api"
	"github.com/hashicorp/nomad/api"
	"go.uber.org/goleak"

	"taskapi/allocrunner/consul"
	"taskapi/allocrunner/consul/consultest"
	"taskapi/allocrunner/interfaces"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what has to happen. It is no promise. A real agent looks once a minute or two at what others have
// changed.
const patience = 4 * time.Minute

// environment is an agent, one of its own for each test or the one of CONSUL_HTTP_ADDR, behind a proxy that can take it away.
type environment struct {
	testing.TB
	stand *consultest.Agent // nil for a real agent
	proxy *consultest.Proxy
	api   *capi.Client // past the proxy
	owner string
	lives atomic.Pointer[map[string]bool]
}

func newEnvironment(t *testing.T) *environment {
	t.Helper()
	e := &environment{TB: t, owner: strings.ReplaceAll(uuid.NewString(), "-", "")}
	e.lives.Store(&map[string]bool{})
	address := os.Getenv("CONSUL_HTTP_ADDR")
	if address == "" {
		e.stand = consultest.New(t)
		address = e.stand.URL
	} else if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	e.proxy = consultest.NewProxy(t, address)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	var err error
	if e.api, err = capi.NewClient(&capi.Config{Address: address, HttpClient: &http.Client{Transport: transport}}); err != nil {
		t.Fatal(err)
	}
	return e
}

// provider is a running Provider of an allocation.
type provider struct {
	*consul.Provider
	alloc string
	end   func()
}

func (e *environment) run(change func(*consul.Config)) provider {
	e.Helper()
	cfg := consul.Config{
		Settings: consul.Settings{Address: e.proxy.URL}, AllocID: uuid.NewString(), Owner: e.owner,
		Lives: func(id string) bool { return (*e.lives.Load())[id] }, Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	p, err := consul.New(cfg)
	if err != nil {
		e.Fatal(err)
	}
	p.Hasten()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Run(ctx)
	}()
	end := func() { cancel(); <-done }
	e.Cleanup(func() {
		end()
		for id := range e.services(cfg.AllocID) {
			_ = e.api.Agent().ServiceDeregister(id) // a real agent outlives the test
		}
	})
	return provider{p, cfg.AllocID, end}
}

// services returns those of an allocation.
func (e *environment) services(alloc string) map[string]*capi.AgentService {
	e.Helper()
	all, err := e.api.Agent().Services()
	if err != nil {
		e.Fatal(err)
	}
	maps.DeleteFunc(all, func(id string, _ *capi.AgentService) bool { return !strings.Contains(id, alloc) })
	return all
}

func (e *environment) service(id string) *capi.AgentService {
	e.Helper()
	all, err := e.api.Agent().Services()
	if err != nil {
		e.Fatal(err)
	}
	return all[id]
}

func (e *environment) check(id string) *capi.AgentCheck {
	e.Helper()
	all, err := e.api.Agent().Checks()
	if err != nil {
		e.Fatal(err)
	}
	return all[id]
}

// until waits for what has to happen.
func (e *environment) until(what string, f func() bool) {
	e.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.Fatalf("in vain: %s", what)
		}
	}
}

// instance returns a service with a check that is fed.
func instance(p provider, name string, change func(*interfaces.ServiceInstance)) *interfaces.ServiceInstance {
	in := &interfaces.ServiceInstance{
		ID: "_nomad-task-" + p.alloc + "-group-g-" + name + "-http", Name: name, Tags: []string{"a", "b"}, Meta: map[string]string{"k": "v"},
		Address: "127.0.0.1", Port: 20530, AllocID: p.alloc,
		Checks: []api.ServiceCheck{{Name: "script", Type: "script", Command: "x", Interval: 10 * time.Second, Timeout: time.Second}}, CheckAddresses: []string{""},
		Service: &api.Service{Provider: "consul", PortLabel: "http"},
	}
	if change != nil {
		change(in)
	}
	return in
}

func (e *environment) register(p provider, list ...*interfaces.ServiceInstance) {
	e.Helper()
	if err := p.Register(e.Context(), list); err != nil {
		e.Fatal(err)
	}
	for _, in := range list {
		e.until("registered "+in.ID, func() bool { return e.service(in.ID) != nil })
	}
}

// TestRegistration has all that Nomad's has, and a mark.
func TestRegistration(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	p := e.run(nil)
	in := instance(p, "web", func(in *interfaces.ServiceInstance) {
		in.Service.Weights = &api.ServiceWeights{Passing: 3, Warning: 2}
		in.Service.TaggedAddresses = map[string]string{"wan": "192.0.2.1", "v6": "[2001:db8::1]:99"}
		in.Checks = append(in.Checks,
			api.ServiceCheck{Name: "h", Type: "http", Path: "/x?y=1", Method: "POST", Header: map[string][]string{"A": {"b"}}, Body: "z", Interval: time.Minute, Timeout: time.Second, InitialStatus: "passing", SuccessBeforePassing: 2},
			api.ServiceCheck{Name: "t", Type: "tcp", Interval: time.Minute, Timeout: time.Second, InitialStatus: "warning"},
			api.ServiceCheck{Name: "g", Type: "grpc", GRPCService: "svc", Interval: time.Minute, Timeout: time.Second})
		in.CheckAddresses = append(in.CheckAddresses, "127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1")
	})
	e.register(p, in)
	is := e.service(in.ID)
	if is.Service != "web" || !slices.Equal(is.Tags, []string{"a", "b"}) || is.Address != "127.0.0.1" || is.Port != 20530 || is.Weights != (capi.AgentWeights{Passing: 3, Warning: 2}) {
		t.Errorf("%+v", is)
	}
	if is.TaggedAddresses["wan"] != (capi.ServiceAddress{Address: "192.0.2.1", Port: 20530}) || is.TaggedAddresses["v6"] != (capi.ServiceAddress{Address: "2001:db8::1", Port: 99}) {
		t.Errorf("tagged addresses: %v", is.TaggedAddresses)
	}
	if is.Meta["k"] != "v" || is.Meta["external-source"] != "nomad" || is.Meta["taskapi_owner"] != e.owner {
		t.Errorf("meta: %v", is.Meta)
	}
	for n, c := range in.Checks {
		e.until("check "+c.Name, func() bool { return e.check(consul.CheckID(in.ID, c)) != nil })
		if got := e.check(consul.CheckID(in.ID, c)); got.Name != c.Name || got.ServiceID != in.ID {
			t.Errorf("check %d: %+v", n, got)
		}
	}
	if got, err := p.Registered(t.Context(), p.alloc); err != nil || !slices.Equal(got, []string{in.ID}) {
		t.Errorf("registered: %v, %v", got, err)
	}
	if err := p.Deregister(t.Context(), []string{in.ID, "_nomad-task-none"}); err != nil {
		t.Fatal(err)
	}
	if e.service(in.ID) != nil {
		t.Error("it is there when Deregister has returned")
	}
}

// TestCheckID is Nomad's: the digests come from `printf TEXT | sha256sum`.
func TestCheckID(t *testing.T) {
	t.Parallel()
	c := api.ServiceCheck{Name: "n", Type: "http", Path: "/p", PortLabel: "l", Interval: 10 * time.Second, Timeout: 2 * time.Second, Method: "GET", OnUpdate: "require_healthy"}
	// s n http /p l 10s 2s GET require_healthy
	if got, want := consul.CheckID("s", c), "_nomad-check-2fd4e6ef5f263ca00d543d6dbf5b8ec53bf8fc9c489899433482811a61600c6c"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	c.Header = map[string][]string{"B": {"2"}, "A": {"1", "0"}}
	c.TLSSkipVerify, c.TLSServerName, c.AddressMode, c.FailuresBeforeCritical = true, "tls", "host", 3
	// s n http /p l 10s 2s GET require_healthy true tls A10 B2 host failures:3
	if got, want := consul.CheckID("s", c), "_nomad-check-d281fdd45ffd679428a3c8216972c20b6d417cff98cb698ea8836ffdcdf9771c"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestInvalidServices are refused at once, and the others of the call with them.
func TestInvalidServices(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	p := e.run(nil)
	for name, change := range map[string]func(*interfaces.ServiceInstance){
		"tagged address": func(in *interfaces.ServiceInstance) {
			in.Service.TaggedAddresses = map[string]string{"x": "example.com"}
		},
		"type":       func(in *interfaces.ServiceInstance) { in.Checks[0].Type = "ping" },
		"no address": func(in *interfaces.ServiceInstance) { in.Checks[0].Type = "tcp" },
		"path": func(in *interfaces.ServiceInstance) {
			in.Checks[0].Type, in.Checks[0].Path, in.CheckAddresses[0] = "http", "%zz", "x:1"
		},
	} {
		if err := p.Register(t.Context(), []*interfaces.ServiceInstance{instance(p, "good", nil), instance(p, "bad", change)}); err == nil || !strings.Contains(err.Error(), `service "bad"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := e.services(p.alloc); len(got) > 0 {
		t.Errorf("registered: %v", got)
	}
}

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
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	in := instance(p, "web", func(in *interfaces.ServiceInstance) {
		of := func(kind string) api.ServiceCheck {
			return api.ServiceCheck{Name: kind, Type: kind, Path: "/", GRPCService: "svc", Interval: time.Second, Timeout: time.Second}
		}
		in.Checks = []api.ServiceCheck{of("http"), of("tcp"), of("grpc")}
		in.CheckAddresses = []string{strings.TrimPrefix(web.URL, "http://"), listener.Addr().String(), strings.TrimPrefix(health.URL, "http://")}
	})
	e.register(p, in)
	for n, c := range in.Checks {
		e.until(c.Name+" passes", func() bool {
			got, ok := p.Result(in.ID, n)
			return ok && got.Status == interfaces.CheckSuccess
		})
	}
	bad.Store(true)
	listener.Close()
	health.serving.Store(false)
	for n, c := range in.Checks {
		e.until(c.Name+" fails", func() bool {
			got, ok := p.Result(in.ID, n)
			return ok && got.Status == interfaces.CheckFailure && got.Output != ""
		})
	}
	if _, ok := p.Result(in.ID, 3); ok {
		t.Error("a check that there is not has a result")
	}

	// A registration of its own has results of its own.
	if err := p.Deregister(t.Context(), []string{in.ID}); err != nil {
		t.Fatal(err)
	}
	if got, ok := p.Result(in.ID, 0); ok {
		t.Errorf("deregistered, and yet %v", got)
	}
	bad.Store(false)
	if err := p.Register(t.Context(), []*interfaces.ServiceInstance{in}); err != nil {
		t.Fatal(err)
	}
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
	id := consul.CheckID(in.ID, in.Checks[0])
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

	if err := e.api.Agent().ServiceDeregister(in.ID); err != nil {
		t.Fatal(err)
	}
	e.until("sent again for the service that came back", has("passing", "later"))
	p.Feed("_nomad-task-none", 0, interfaces.CheckResult{})
	p.Feed(in.ID, 7, interfaces.CheckResult{})
}

// TestAntiEntropy: what somebody removes or changes comes back.
func TestAntiEntropy(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	p := e.run(nil)
	in := instance(p, "s", nil)
	id := consul.CheckID(in.ID, in.Checks[0])
	e.register(p, in)
	e.until("the check", func() bool { return e.check(id) != nil })
	if err := e.api.Agent().ServiceDeregister(in.ID); err != nil {
		t.Fatal(err)
	}
	e.until("the service is back", func() bool { return e.service(in.ID) != nil })
	e.until("its check, too", func() bool { return e.check(id) != nil })
	if err := e.api.Agent().CheckDeregister(id); err != nil {
		t.Fatal(err)
	}
	e.until("the check is back", func() bool { return e.check(id) != nil })
	for what, change := range map[string]func(*capi.AgentServiceRegistration){
		"port":    func(r *capi.AgentServiceRegistration) { r.Port = 1 },
		"tags":    func(r *capi.AgentServiceRegistration) { r.Tags = []string{"z"} },
		"meta":    func(r *capi.AgentServiceRegistration) { r.Meta = map[string]string{} },
		"address": func(r *capi.AgentServiceRegistration) { r.Address = "192.0.2.9" },
		"weights": func(r *capi.AgentServiceRegistration) { r.Weights = &capi.AgentWeights{Passing: 9, Warning: 9} },
		"tagged": func(r *capi.AgentServiceRegistration) {
			r.TaggedAddresses = map[string]capi.ServiceAddress{"x": {Address: "192.0.2.9", Port: 1}}
		},
	} {
		before := e.service(in.ID)
		reg := &capi.AgentServiceRegistration{ID: in.ID, Name: in.Name, Tags: in.Tags, Address: in.Address, Port: in.Port, Meta: before.Meta}
		change(reg)
		if err := e.api.Agent().ServiceRegister(reg); err != nil {
			t.Fatal(err)
		}
		e.until(what+" is back", func() bool { return cmp.Equal(e.service(in.ID), before) })
	}
	// A check that the job does not have goes.
	if err := e.api.Agent().CheckRegister(&capi.AgentCheckRegistration{ID: "_nomad-check-old", Name: "old", ServiceID: in.ID, AgentServiceCheck: capi.AgentServiceCheck{TTL: "1h"}}); err != nil {
		t.Fatal(err)
	}
	e.until("the check that is nobody's goes", func() bool { return e.check("_nomad-check-old") == nil })
}

// TestTagsOfOthers: where the job allows it, tags that somebody has changed stay, also when another process goes on with the service, until the
// job is another.
func TestTagsOfOthers(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	p := e.run(nil)
	override := func(in *interfaces.ServiceInstance) { in.Service.EnableTagOverride = true }
	in := instance(p, "s", override)
	e.register(p, in)
	self, err := e.api.Agent().Self()
	if err != nil {
		t.Fatal(err)
	}
	node := self["Config"]["NodeName"].(string)
	_, err = e.api.Catalog().Register(&capi.CatalogRegistration{Node: node, Address: "127.0.0.1", SkipNodeUpdate: true, Service: &capi.AgentService{
		ID: in.ID, Service: in.Name, Tags: []string{"theirs"}, Address: in.Address, Port: in.Port, EnableTagOverride: true, Meta: e.service(in.ID).Meta,
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	theirs := func() bool { return slices.Equal(e.service(in.ID).Tags, []string{"theirs"}) }
	e.until("the agent has them", theirs)
	for range 3 {
		e.rounds(2)
		if !theirs() {
			t.Fatalf("tags are %v", e.service(in.ID).Tags)
		}
	}
	p.end()
	again := e.run(func(c *consul.Config) { c.AllocID = p.alloc })
	e.register(again, instance(again, "s", override))
	e.rounds(2)
	if !theirs() {
		t.Errorf("after another process has gone on: %v", e.service(in.ID).Tags)
	}
	e.register(again, instance(again, "s", func(in *interfaces.ServiceInstance) {
		override(in)
		in.Tags = []string{"new"}
	}))
	e.until("the job's", func() bool { return slices.Equal(e.service(in.ID).Tags, []string{"new"}) })
}

// rounds waits for so many more rounds of a provider, of at least one request each.
func (e *environment) rounds(n int) {
	e.Helper()
	begin := e.proxy.Count()
	e.until("rounds", func() bool { return e.proxy.Count() >= begin+2*n })
}

// TestLeftovers of a crash go, and nothing else does.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	dead, away := e.run(nil), e.run(nil)
	stranger := e.run(func(c *consul.Config) { c.Owner = "f00d" })
	ofDead, ofAway, ofStranger := instance(dead, "dead", nil), instance(away, "away", nil), instance(stranger, "stranger", nil)
	e.lives.Store(&map[string]bool{dead.alloc: true, away.alloc: true, stranger.alloc: true})
	e.register(dead, ofDead)
	e.register(away, ofAway)
	e.register(stranger, ofStranger)
	nomads := "_nomad-task-" + uuid.NewString() + "-group-g-nomad-http"
	for _, id := range []string{nomads, "plain-" + e.owner} {
		if err := e.api.Agent().ServiceRegister(&capi.AgentServiceRegistration{ID: id, Name: "other"}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.api.Agent().ServiceDeregister(id) }) // a real agent outlives the test
	}
	dead.end()
	away.end()
	stranger.end()
	if e.service(ofDead.ID) == nil {
		t.Fatal("the end of a process has deregistered what nobody said was to go")
	}
	e.lives.Store(&map[string]bool{away.alloc: true})
	p := e.run(nil)
	e.register(p, instance(p, "mine", nil))
	e.until("what the crash has left goes", func() bool { return e.service(ofDead.ID) == nil })
	e.rounds(3)
	for _, id := range []string{ofAway.ID, ofStranger.ID, nomads, "plain-" + e.owner} {
		if e.service(id) == nil {
			t.Errorf("%s is gone", id)
		}
	}
}

// TestAgentIsAway: nothing waits for it, and everything catches up.
func TestAgentIsAway(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]func(*consultest.Proxy){
		"away": (*consultest.Proxy).Away,
		"500":  func(p *consultest.Proxy) { p.Answer(500, "no leader") },
		"429":  func(p *consultest.Proxy) { p.Answer(429, "slow down") },
		"long": func(p *consultest.Proxy) { p.Answer(200, `{"a":"`+strings.Repeat("x", consul.MaxAnswer)) },
		"text": func(p *consultest.Proxy) { p.Answer(200, "<html>") },
		"move": func(p *consultest.Proxy) { p.Answer(301, "") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnvironment(t)
			trouble(e.proxy)
			p := e.run(nil)
			in, other := instance(p, "s", nil), instance(p, "t", nil)
			if err := p.Register(t.Context(), []*interfaces.ServiceInstance{in, other}); err != nil {
				t.Fatal(err)
			}
			if err := p.Deregister(t.Context(), []string{other.ID}); err != nil {
				t.Fatal(err)
			}
			if got := e.services(p.alloc); len(got) > 0 {
				t.Fatalf("registered: %v", got)
			}
			e.proxy.Back()
			e.until("registered", func() bool { return e.service(in.ID) != nil })
			trouble(e.proxy)
			if err := p.Deregister(t.Context(), []string{in.ID}); err != nil {
				t.Fatal(err)
			}
			e.proxy.Back()
			e.until("deregistered", func() bool { return e.service(in.ID) == nil })
			if e.service(other.ID) != nil {
				t.Error("what left while the agent was away is registered")
			}
		})
	}
}

// TestLongAnswers are not read to their end, whatever they are.
func TestLongAnswers(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	e.proxy.Answer(200, `{"a":{"ID":"`+strings.Repeat("x", consul.MaxAnswer)+`"}}`)
	var log logged
	p := e.run(func(c *consul.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	if err := p.Register(t.Context(), []*interfaces.ServiceInstance{instance(p, "s", nil)}); err != nil {
		t.Fatal(err)
	}
	e.until("too long", func() bool { return strings.Contains(log.String(), "too long") })
}

// logged is a log that a test reads.
type logged struct {
	mu   sync.Mutex // guards the field below
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestAgentHangs: a stop waits a bounded time.
func TestAgentHangs(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	p := e.run(nil)
	in := instance(p, "s", nil)
	e.register(p, in)
	e.proxy.Hang()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.Deregister(context.Background(), []string{in.ID})
		p.end()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("a stop waits for an agent that does not answer")
	}
	e.proxy.Back()
	again := e.run(nil)
	e.register(again, instance(again, "t", nil))
	e.until("another allocation removes it", func() bool { return e.service(in.ID) == nil })
	again.end()
}

// TestEnd: what is still to be deregistered when Run ends is.
func TestEnd(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	p := e.run(nil)
	in := instance(p, "s", nil)
	e.register(p, in)
	e.proxy.Away()
	if err := p.Deregister(t.Context(), []string{in.ID}); err != nil {
		t.Fatal(err)
	}
	e.proxy.Back()
	p.end()
	if e.service(in.ID) != nil {
		t.Error("it is still registered")
	}
}

// TestToken: the one of the file, as it is now.
func TestToken(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	if e.stand == nil {
		t.Skip("the agent of CONSUL_HTTP_ADDR takes any token")
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e.stand.RequireToken("new")
	p := e.run(func(c *consul.Config) { c.Settings.TokenFile = file; c.Secrets.Token = "ignored" })
	if err := p.Register(t.Context(), []*interfaces.ServiceInstance{instance(p, "s", nil)}); err != nil {
		t.Fatal(err)
	}
	e.until("refused", func() bool { return len(e.stand.Requests()) > 0 })
	if err := os.WriteFile(file, []byte("new\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e.until("taken", func() bool {
		e.stand.RequireToken("")
		n := len(e.services(p.alloc))
		e.stand.RequireToken("new")
		return n == 1
	})
	given := e.run(func(c *consul.Config) { c.Secrets.Token = "new" })
	if err := given.Register(t.Context(), []*interfaces.ServiceInstance{instance(given, "s", nil)}); err != nil {
		t.Fatal(err)
	}
	e.until("taken, too", func() bool {
		e.stand.RequireToken("")
		n := len(e.services(given.alloc))
		e.stand.RequireToken("new")
		return n == 1
	})
	e.stand.RequireToken("")
}

// TestWait: waits grow up to a bound, and no two clients wait alike.
func TestWait(t *testing.T) {
	t.Parallel()
	most := func(failures int) (longest time.Duration, different bool) {
		first := consul.Wait(failures, 30*time.Second)
		for range 200 {
			d := consul.Wait(failures, 30*time.Second)
			longest, different = max(longest, d), different || d != first
		}
		return longest, different
	}
	before := time.Duration(0)
	for failures := 1; failures < 100; failures++ {
		longest, different := most(failures)
		if longest > 30*time.Second || longest < before*3/4 || !different {
			t.Errorf("after %d failures: %v, different: %t", failures, longest, different)
		}
		before = longest
	}
	if first, _ := most(1); first > time.Second {
		t.Errorf("the first wait is %v", first)
	}
}

// health is a server of the gRPC health protocol.
type health struct {
	*httptest.Server
	serving atomic.Bool
}

func newHealth(tb testing.TB) *health {
	h := &health{}
	h.serving.Store(true)
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := make([]byte, 64)
		n, _ := r.Body.Read(body)
		status := byte(2) // NOT_SERVING
		if h.serving.Load() && r.URL.Path == "/grpc.health.v1.Health/Check" && strings.HasSuffix(string(body[:n]), "\x03svc") {
			status = 1
		}
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = w.Write([]byte{0, 0, 0, 0, 2, 0x08, status})
		w.Header().Set("Grpc-Status", "0")
	}))
	h.Config.Protocols = new(http.Protocols)
	h.Config.Protocols.SetUnencryptedHTTP2(true)
	h.Start()
	tb.Cleanup(h.Close)
	return h
}
