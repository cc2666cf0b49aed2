package consul_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	capi "github.com/hashicorp/consul/api"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/consul"
	"taskapi/allocrunner/consul/consultest"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/same"
)

// TestRegistration has all that Nomad's has, and a mark.
func TestRegistration(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	e.patient = true
	p := e.run(nil)
	in := instance(p, "web", func(in *interfaces.ServiceInstance) {
		in.Service.Weights = &api.ServiceWeights{Passing: 3, Warning: 2}
		in.Service.TaggedAddresses = map[string]string{"wan": "192.0.2.1", "v6": "[2001:db8::1]:99"}
		in.Service.Checks = append(in.Service.Checks,
			api.ServiceCheck{Name: "h", Type: "http", Path: "/x?y=1", Method: "POST", Header: map[string][]string{"A": {"b"}},
				Body: "z", Interval: time.Minute, Timeout: time.Second, InitialStatus: "passing", SuccessBeforePassing: 2},
			api.ServiceCheck{Name: "t", Type: "tcp", Interval: time.Minute, Timeout: time.Second, InitialStatus: "warning"},
			api.ServiceCheck{Name: "g", Type: "grpc", GRPCService: "svc", Interval: time.Minute, Timeout: time.Second})
		in.CheckAddresses = append(in.CheckAddresses, "127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1")
	})
	e.register(p, in)
	is := e.service(in.ID)
	if is.Service != "web" || !slices.Equal(is.Tags, []string{"a", "b"}) || is.Address != "127.0.0.1" ||
		is.Port != 20530 || is.Weights != (capi.AgentWeights{Passing: 3, Warning: 2}) {
		t.Errorf("%+v", is)
	}
	if is.TaggedAddresses["wan"] != (capi.ServiceAddress{Address: "192.0.2.1", Port: 20530}) ||
		is.TaggedAddresses["v6"] != (capi.ServiceAddress{Address: "2001:db8::1", Port: 99}) {
		t.Errorf("tagged addresses: %v", is.TaggedAddresses)
	}
	if is.Meta["k"] != "v" || is.Meta["external-source"] != "nomad" || is.Meta["taskapi_owner"] != e.owner {
		t.Errorf("meta: %v", is.Meta)
	}
	for n, c := range in.Service.Checks {
		e.until("check "+c.Name, func() bool { return e.check(consul.CheckID(in.ID, c)) != nil })
		if got := e.check(consul.CheckID(in.ID, c)); got.Name != c.Name || got.ServiceID != in.ID {
			t.Errorf("check %d: %+v", n, got)
		}
	}
	same.As(t, []string{in.ID}, must.Get(p.Registered(t.Context(), p.alloc))(t), "registered")
	must.OK(t, p.Deregister(t.Context(), []string{in.ID, "_nomad-task-none"}))
	if e.service(in.ID) != nil {
		t.Error("it is there when Deregister has returned")
	}
}

// TestCheckID is Nomad's: the digests come from `printf TEXT | sha256sum`.
func TestCheckID(t *testing.T) {
	t.Parallel()
	c := api.ServiceCheck{Name: "n", Type: "http", Path: "/p", PortLabel: "l", Interval: 10 * time.Second,
		Timeout: 2 * time.Second, Method: "GET", OnUpdate: "require_healthy"}
	// s n http /p l 10s 2s GET require_healthy
	same.As(t, "_nomad-check-2fd4e6ef5f263ca00d543d6dbf5b8ec53bf8fc9c489899433482811a61600c6c",
		consul.CheckID("s", c))
	c.Header = map[string][]string{"B": {"2"}, "A": {"1", "0"}}
	c.TLSSkipVerify, c.TLSServerName, c.AddressMode, c.FailuresBeforeCritical = true, "tls", "host", 3
	// s n http /p l 10s 2s GET require_healthy true tls A10 B2 host failures:3
	same.As(t, "_nomad-check-d281fdd45ffd679428a3c8216972c20b6d417cff98cb698ea8836ffdcdf9771c",
		consul.CheckID("s", c))
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
		"type":       func(in *interfaces.ServiceInstance) { in.Service.Checks[0].Type = "ping" },
		"no address": func(in *interfaces.ServiceInstance) { in.Service.Checks[0].Type = "tcp" },
		"path": func(in *interfaces.ServiceInstance) {
			in.Service.Checks[0].Type, in.Service.Checks[0].Path, in.CheckAddresses[0] = "http", "%zz", "x:1"
		},
	} {
		if err := p.Register(t.Context(), []*interfaces.ServiceInstance{instance(p, "good", nil),
			instance(p, "bad", change)}); err == nil || !strings.Contains(err.Error(), `service "bad"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := e.services(p.alloc); len(got) > 0 {
		t.Errorf("registered: %v", got)
	}
}

// TestAntiEntropy: what somebody removes or changes comes back.
func TestAntiEntropy(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	p := e.run(nil)
	in := instance(p, "s", nil)
	id := consul.CheckID(in.ID, in.Service.Checks[0])
	e.register(p, in)
	e.until("the check", func() bool { return e.check(id) != nil })
	must.OK(t, e.api.Agent().ServiceDeregister(in.ID))
	e.until("the service is back", func() bool { return e.service(in.ID) != nil })
	e.until("its check, too", func() bool { return e.check(id) != nil })
	must.OK(t, e.api.Agent().CheckDeregister(id))
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
		reg := &capi.AgentServiceRegistration{
			ID: in.ID, Name: in.ServiceName, Tags: in.Tags, Address: in.Address, Port: in.Port,
			Meta: before.Meta}
		change(reg)
		must.OK(t, e.api.Agent().ServiceRegister(reg))
		e.until(what+" is back", func() bool { return cmp.Equal(e.service(in.ID), before) })
	}
	// A check that the job does not have goes.
	must.OK(t, e.api.Agent().CheckRegister(&capi.AgentCheckRegistration{ID: "_nomad-check-old", Name: "old",
		ServiceID: in.ID, AgentServiceCheck: capi.AgentServiceCheck{TTL: "1h"}}))
	e.until("the check that is nobody's goes", func() bool { return e.check("_nomad-check-old") == nil })
}

// TestTagsOfOthers: where the job allows it, tags that somebody has changed stay, also when another process goes on
// with the service, until the job is another.
func TestTagsOfOthers(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	p := e.run(nil)
	override := func(in *interfaces.ServiceInstance) { in.Service.EnableTagOverride = true }
	in := instance(p, "s", override)
	e.register(p, in)
	self, err := e.api.Agent().Self()
	must.OK(t, err)
	node := self["Config"]["NodeName"].(string)
	_, err = e.api.Catalog().Register(&capi.CatalogRegistration{Node: node, Address: "127.0.0.1", SkipNodeUpdate: true,
		Service: &capi.AgentService{
			ID: in.ID, Service: in.ServiceName, Tags: []string{"theirs"}, Address: in.Address, Port: in.Port,
			EnableTagOverride: true,
			Meta:              e.service(in.ID).Meta,
		}}, nil)
	must.OK(t, err)
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
	ofDead, ofAway, ofStranger := instance(dead, "dead", nil), instance(away, "away", nil), instance(stranger, "stranger",
		nil)
	e.lives.Store(&map[string]bool{dead.alloc: true, away.alloc: true, stranger.alloc: true})
	e.register(dead, ofDead)
	e.register(away, ofAway)
	e.register(stranger, ofStranger)
	nomads := "_nomad-task-" + uuid.NewString() + "-group-g-nomad-http"
	for _, id := range []string{nomads, "plain-" + e.owner} {
		must.OK(t, e.api.Agent().ServiceRegister(&capi.AgentServiceRegistration{ID: id, Name: "other"}))
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

// always returns a handler with one answer.
func always(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// longest is more than an answer of these tests has, in bytes: one of the length that is refused outside tests would
// take a busy machine longer to send than a request may take.
const longest = 64 << 10

// TestAgentIsAway: nothing waits for it, and everything catches up.
func TestAgentIsAway(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]func(*consultest.Proxy){
		"away": (*consultest.Proxy).Away,
		"500":  func(p *consultest.Proxy) { p.Instead(always(500, "no leader")) },
		"long": func(p *consultest.Proxy) { p.Instead(always(200, `{"a":"`+strings.Repeat("x", longest))) },
		"text": func(p *consultest.Proxy) { p.Instead(always(200, "<html>")) },
		"move": func(p *consultest.Proxy) { p.Instead(always(301, "")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnvironment(t)
			e.longest = longest
			trouble(e.proxy)
			p := e.run(nil)
			in, other := instance(p, "s", nil), instance(p, "t", nil)
			must.OK(t, p.Register(t.Context(), []*interfaces.ServiceInstance{in, other}))
			must.OK(t, p.Deregister(t.Context(), []string{other.ID}))
			if got := e.services(p.alloc); len(got) > 0 {
				t.Fatalf("registered: %v", got)
			}
			e.proxy.Back()
			e.until("registered", func() bool { return e.service(in.ID) != nil })
			trouble(e.proxy)
			must.OK(t, p.Deregister(t.Context(), []string{in.ID}))
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
	for name, test := range map[string]struct {
		longest int64
		answer  string
	}{
		"bytes":    {longest, `{"a":{"ID":"` + strings.Repeat("x", longest) + `"}}`},
		"elements": {0, `{"a":{"Tags":[` + strings.Repeat(`"",`, 300_000) + `""]}}`}, // 900 kB
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testLongAnswer(t, test.longest, test.answer)
		})
	}
}

func testLongAnswer(t *testing.T, longest int64, answer string) {
	e := newEnvironment(t)
	e.longest = longest
	e.proxy.Instead(always(200, answer))
	var log polltest.Log
	p := e.run(func(c *consul.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	must.OK(t, p.Register(t.Context(), []*interfaces.ServiceInstance{instance(p, "s", nil)}))
	e.until("too long", func() bool { return log.Has("too long") })
}

// TestAgentHangs: a stop waits a bounded time.
func TestAgentHangs(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	p := e.run(nil)
	in := instance(p, "s", nil)
	e.register(p, in)
	e.proxy.Instead(func(_ http.ResponseWriter, r *http.Request) { // no answer, until the client gives up
		io.Copy(io.Discard, r.Body) // the server looks for the client's end only behind the body
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.Deregister(context.Background(), []string{in.ID})
		p.end()
	}()
	select {
	case <-done:
	case <-time.After(polltest.Deadline()):
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
	must.OK(t, p.Deregister(t.Context(), []string{in.ID}))
	e.proxy.Back()
	p.end()
	if e.service(in.ID) != nil {
		t.Error("it is still registered")
	}
}
