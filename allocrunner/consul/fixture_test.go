package consul_test

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	capi "github.com/hashicorp/consul/api"
	"github.com/hashicorp/nomad/api"
	"go.uber.org/goleak"

	"taskapi/allocrunner/consul"
	"taskapi/allocrunner/consul/consultest"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// environment is an agent, one of its own for each test or the one of CONSUL_HTTP_ADDR, behind a proxy that can take it
// away.
type environment struct {
	testing.TB
	stand *consultest.Agent // nil for a real agent
	proxy *consultest.Proxy
	api   *capi.Client // past the proxy
	owner string
	token string // of providers and of this test: one with every right where the agent has ACLs
	lives atomic.Pointer[map[string]bool]

	unhurried bool  // providers wait between rounds as they do outside tests
	patient   bool  // providers wait for an answer, however busy the machine is
	longest   int64 // answer that providers take, in bytes; 0 for what they do outside tests
}

func newEnvironment(t *testing.T) *environment {
	t.Helper()
	e := &environment{TB: t, owner: strings.ReplaceAll(uuid.NewString(), "-", "")}
	e.lives.Store(&map[string]bool{})
	address, token := os.Getenv("CONSUL_HTTP_ADDR"), os.Getenv("CONSUL_HTTP_TOKEN")
	if address == "" {
		e.stand = consultest.New(t)
		address, token = e.stand.URL, consultest.Management
	} else if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	e.token = token
	e.proxy = consultest.NewProxy(t, address)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	var err error
	if e.api, err = capi.NewClient(&capi.Config{Address: address, Token: token,
		HttpClient: &http.Client{Transport: transport}}); err != nil {
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
		Settings: consul.Settings{Address: e.proxy.URL}, Secrets: consul.Secrets{Token: e.token},
		AllocID: uuid.NewString(), Owner: e.owner,
		Lives: func(id string) bool { return (*e.lives.Load())[id] }, Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	p := must.Get(consul.New(cfg))(e)
	if !e.unhurried {
		p.Hasten()
	}
	if e.patient {
		p.Patient()
	}
	if e.longest > 0 {
		p.BoundAnswers(e.longest)
	}
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
	all := must.Get(e.api.Agent().Services())(e)
	maps.DeleteFunc(all, func(id string, _ *capi.AgentService) bool { return !strings.Contains(id, alloc) })
	return all
}

func (e *environment) service(id string) *capi.AgentService {
	e.Helper()
	all := must.Get(e.api.Agent().Services())(e)
	return all[id]
}

func (e *environment) check(id string) *capi.AgentCheck {
	e.Helper()
	all := must.Get(e.api.Agent().Checks())(e)
	return all[id]
}

// until waits for what has to happen.
func (e *environment) until(what string, f func() bool) {
	e.Helper()
	if !polltest.Until(f) {
		e.Fatalf("in vain: %s", what)
	}
}

// instance returns a service with a check that is fed.
func instance(p provider, name string, change func(*interfaces.ServiceInstance)) *interfaces.ServiceInstance {
	in := &interfaces.ServiceInstance{
		ServiceRegistration: api.ServiceRegistration{
			ID: "_nomad-task-" + p.alloc + "-group-g-" + name + "-http", ServiceName: name, Tags: []string{"a", "b"},
			Address: "127.0.0.1", Port: 20530, AllocID: p.alloc,
		},
		CheckAddresses: []string{""},
		Service: &api.Service{
			Provider: "consul", PortLabel: "http", Meta: map[string]string{"k": "v"},
			Checks: []api.ServiceCheck{{Name: "script", Type: "script", Command: "x", Interval: 10 * time.Second,
				Timeout: time.Second}},
		},
	}
	if change != nil {
		change(in)
	}
	return in
}

func (e *environment) register(p provider, list ...*interfaces.ServiceInstance) {
	e.Helper()
	must.OK(e, p.Register(e.Context(), list))
	for _, in := range list {
		e.until("registered "+in.ID, func() bool { return e.service(in.ID) != nil })
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
		if h.serving.Load() && r.URL.Path == "/grpc.health.v1.Health/Check" &&
			strings.HasSuffix(string(body[:n]), "\x03svc") {
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
