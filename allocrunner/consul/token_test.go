package consul_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	capi "github.com/hashicorp/consul/api"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/consul"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// acls are those of an agent: of the stand-in, or of a real one where CONSUL_HTTP_TOKEN has every right.
type acls struct {
	*environment
	file string       // with the token of providers
	log  polltest.Log // of providers
}

func newACLs(t *testing.T) *acls {
	t.Helper()
	e := &acls{environment: newEnvironment(t), file: filepath.Join(t.TempDir(), "token")}
	if e.token == "" {
		t.Skip("the agent of CONSUL_HTTP_ADDR has no ACLs, or there is no CONSUL_HTTP_TOKEN that may make tokens")
	}
	return e
}

// issue returns a new token with the rule service "NAME" { policy = "write" } for each name, and no other.
func (e *acls) issue(services ...string) string {
	e.Helper()
	if e.stand != nil {
		return e.stand.Token(services...)
	}
	var rules strings.Builder
	for _, name := range services {
		rules.WriteString(`service "` + name + `" { policy = "write" }` + "\n")
	}
	policy, _, err := e.api.ACL().PolicyCreate(&capi.ACLPolicy{Name: uuid.NewString(), Rules: rules.String()}, nil)
	must.OK(e, err)
	e.Cleanup(func() { _, _ = e.api.ACL().PolicyDelete(policy.ID, nil) })
	token, _, err := e.api.ACL().TokenCreate(&capi.ACLToken{Policies: []*capi.ACLLink{{ID: policy.ID}}}, nil)
	must.OK(e, err)
	e.Cleanup(func() { _, _ = e.api.ACL().TokenDelete(token.AccessorID, nil) })
	return token.SecretID
}

func (e *acls) revoke(token string) {
	e.Helper()
	if e.stand != nil {
		e.stand.Revoke(token)
		return
	}
	self, _, err := e.api.ACL().TokenReadSelf(&capi.QueryOptions{Token: token})
	if err == nil {
		_, err = e.api.ACL().TokenDelete(self.AccessorID, nil)
	}
	must.OK(e, err)
}

// give has providers use a token from now on.
func (e *acls) give(token string) {
	e.Helper()
	must.OK(e, os.WriteFile(e.file, []byte(token+"\n"), 0o600))
}

func (e *acls) run() provider {
	return e.environment.run(func(c *consul.Config) {
		c.Settings.TokenFile, c.Secrets.Token, c.Logger = e.file, "ignored", slog.New(slog.NewTextHandler(&e.log, nil))
	})
}

// published returns the status of a check as all others see it.
func (e *acls) published(service, checkID string) string {
	e.Helper()
	list, _, err := e.api.Health().Checks(service, nil)
	must.OK(e, err)
	for _, c := range list {
		if c.CheckID == checkID {
			return c.Status
		}
	}
	return ""
}

// unique returns a name that no other test has, for tests that ask the catalog of an agent that outlives them.
func unique(name string) string { return name + "-" + uuid.NewString()[:8] }

func (e *acls) says(words string) func() bool {
	return func() bool { return e.log.Has(words) }
}

// TestToken: the provider uses the present token of the file. Without a token nothing seems to be registered, and the
// log says why.
func TestToken(t *testing.T) {
	t.Parallel()
	e := newACLs(t)
	name := unique("s")
	good := e.issue(name)
	e.give(uuid.NewString())
	p := e.run()
	in := instance(p, name, nil)
	must.OK(t, p.Register(t.Context(), []*interfaces.ServiceInstance{in}))
	e.until("unknown", e.says("the token is unknown to Consul"))
	e.give("")
	e.until("empty", e.says("must have one line, which is a token"))
	e.give(good)
	e.until("taken", func() bool { return e.service(in.ID) != nil })
	given := e.environment.run(func(c *consul.Config) { c.Secrets.Token = good })
	e.register(given, instance(given, name, nil))
}

// TestLogOfAnAgentThatIsAway names the agent and the reason, and not the address of each request, which is long.
func TestLogOfAnAgentThatIsAway(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	e.proxy.Away()
	var log polltest.Log
	p := e.run(func(c *consul.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	must.OK(t, p.Register(t.Context(), []*interfaces.ServiceInstance{instance(p, "s", nil)}))
	e.until("it fails", func() bool { return log.Has("does not accept the services") })
	if text := log.String(); !strings.Contains(text, "agent="+e.proxy.URL) || !strings.Contains(text, "EOF") ||
		strings.Contains(text, "filter=") {
		t.Error(text)
	}
}

// TestTokenIsReplaced: the agent uses a service's own token, so all services get the new token, and the results of
// their checks stay visible.
func TestTokenIsReplaced(t *testing.T) {
	t.Parallel()
	e := newACLs(t)
	name := unique("s")
	old := e.issue(name)
	e.give(old)
	p := e.run()
	in := instance(p, name, nil)
	id := consul.CheckID(in.ID, in.Service.Checks[0])
	seen := func(status string) func() bool { return func() bool { return e.published(name, id) == status } }
	e.register(p, in)
	p.Feed(in.ID, 0, interfaces.CheckResult{Status: interfaces.CheckSuccess, Output: "fine"})
	e.until("passing", seen("passing"))
	e.give(e.issue(name))
	e.revoke(old)
	p.Feed(in.ID, 0, interfaces.CheckResult{Status: interfaces.CheckFailure, Output: "bad"})
	e.until("critical for all", seen("critical"))

	// Another process does not know which token the one before had.
	p.end()
	old, next := e.issue(name), e.issue(name)
	e.give(old)
	first := e.environment.run(func(c *consul.Config) { c.AllocID, c.Settings.TokenFile = p.alloc, e.file })
	e.register(first, in)
	first.Feed(in.ID, 0, interfaces.CheckResult{Status: interfaces.CheckSuccess, Output: "fine"})
	e.until("passing again", seen("passing"))
	first.end()
	e.give(next)
	e.revoke(old)
	second := e.environment.run(func(c *consul.Config) { c.AllocID, c.Settings.TokenFile = p.alloc, e.file })
	e.register(second, in)
	second.Feed(in.ID, 0, interfaces.CheckResult{Status: interfaces.CheckFailure, Output: "bad"})
	e.until("critical again", seen("critical"))
}

// TestRefusedService: the log says once which rule is missing, and the other services lose nothing by it: their checks,
// their scripts, and that what somebody removes comes back.
func TestRefusedService(t *testing.T) {
	t.Parallel()
	e := newACLs(t)
	good, bad := unique("s"), unique("r")
	e.give(e.issue(good))
	p := e.run()
	in, refused := instance(p, good, func(in *interfaces.ServiceInstance) {
		in.Service.Checks = append(in.Service.Checks, api.ServiceCheck{Name: "t", Type: "tcp", Interval: time.Second,
			Timeout: time.Second})
		in.CheckAddresses = append(in.CheckAddresses, "127.0.0.1:1")
	}), instance(p, bad, nil)
	must.OK(t, p.Register(t.Context(), []*interfaces.ServiceInstance{refused, in}))
	e.until("the log says which rule is missing",
		e.says(`the token needs the rule service \"`+bad+`\" { policy = \"write\" }`))
	e.until("the other is registered", func() bool { return e.service(in.ID) != nil })
	e.until("its check has a result", func() bool {
		got, ok := p.Result(in.ID, 1)
		return ok && got.Status == interfaces.CheckFailure
	})
	for n, output := range []string{"one", "two"} {
		p.Feed(refused.ID, 0, interfaces.CheckResult{Status: interfaces.CheckSuccess, Output: output})
		p.Feed(in.ID, 0, interfaces.CheckResult{Status: interfaces.CheckSuccess, Output: output})
		e.until("its script's result is sent", func() bool {
			c := e.check(consul.CheckID(in.ID, in.Service.Checks[0]))
			return c != nil && c.Output == output
		})
		if _, ok := p.Result(in.ID, 1); !ok {
			t.Errorf("round %d: its check has no result any more", n)
		}
	}
	must.OK(t, e.api.Agent().ServiceDeregister(in.ID))
	e.until("it is back", func() bool { return e.service(in.ID) != nil })
	if text := e.log.String(); strings.Count(text, "\n") > 1 || strings.Contains(text, "does not exist") {
		t.Errorf("the log says more than what is missing, or says it again:\n%s", text)
	}
	e.give(e.issue(good, bad))
	e.until("registered when the token has the rule", func() bool { return e.service(refused.ID) != nil })
	e.until("with its script's result", func() bool {
		c := e.check(consul.CheckID(refused.ID, refused.Service.Checks[0]))
		return c != nil && c.Output == "two"
	})
}

// TestRefusedDeregistration: a service that the agent no longer shows, as the token has lost its rule, is not taken for
// one that has gone.
func TestRefusedDeregistration(t *testing.T) {
	t.Parallel()
	e := newACLs(t)
	name := unique("s")
	good := e.issue(name)
	e.give(good)
	p := e.run()
	first, second := instance(p, name, nil), instance(p, name, func(in *interfaces.ServiceInstance) { in.ID += "2" })
	e.register(p, first, second)
	e.give(e.issue(unique("other")))
	must.OK(t, p.Deregister(t.Context(), []string{first.ID}))
	if e.service(first.ID) == nil {
		t.Fatal("a token without a rule has deregistered a service")
	}
	e.give(good)
	e.until("deregistered when the token has the rule", func() bool { return e.service(first.ID) == nil })
	e.give(e.issue(unique("other")))
	must.OK(t, p.Deregister(t.Context(), []string{second.ID}))
	p.end()
	if e.service(second.ID) == nil || !e.says("services may stay in Consul")() {
		t.Errorf("the log does not say that a service stays:\n%s", e.log.String())
	}
}
