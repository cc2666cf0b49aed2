package handlers_test

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/handlers"
	"taskapi/handlers/internal/route"
	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/internal/must"
	"taskapi/ratelimit"
)

// live says that the recorded allocation lives.
type live struct{}

func (live) Lookup(id string) (*auth.Allocation, auth.Liveness) {
	if id == allocID {
		return &demo, auth.Live
	}
	return nil, auth.Unknown
}

// demo is what the tokens of that allocation say.
var demo = auth.Allocation{Region: "global", Namespace: "default", JobID: "demo", TaskGroup: "web", Life: "this life"}

// boundless is more than a test can send.
var boundless = ratelimit.Rate{PerSecond: 1e6, Burst: 1e6}

// realAuthenticator returns an authenticator with a key ring, on which tasks have what the policy gives, and a signer
// of tokens for it.
func realAuthenticator(
	t *testing.T,
) (authenticator *auth.Authenticator, sign func(change func(*identity.Claims)) string) {
	t.Helper()
	authenticator, _, sign = realAuthenticatorWith(t, live{})
	return authenticator, sign
}

// realAuthenticatorWith is realAuthenticator for an allocation that changes, with its key ring. The allocations may be
// auth.Revocations, too.
func realAuthenticatorWith(
	t *testing.T, allocations auth.Allocations,
) (authenticator *auth.Authenticator, ring *identity.Keyring, sign func(change func(*identity.Claims)) string) {
	t.Helper()
	ring = identitytest.Keyring(t)
	authenticator = authenticatorOf(t, ring, allocations)
	sign = func(change func(*identity.Claims)) string {
		t.Helper()
		now := time.Now().Unix()
		claims := identity.Claims{
			Subject:  identity.Subject("global", "default", "demo", "web", "server", "default"),
			Audience: []string{identity.DefaultAudience},
			IssuedAt: now, NotBefore: now, ExpiresAt: now + 3600,
			Namespace: "default", JobID: "demo", AllocationID: allocID, Task: "server", Life: demo.Life,
		}
		change(&claims)
		return identitytest.Sign(t, ring, claims)
	}
	return authenticator, ring, sign
}

// authenticatorOf returns an authenticator with a key ring, for allocations.
func authenticatorOf(t *testing.T, ring *identity.Keyring, allocations auth.Allocations) *auth.Authenticator {
	t.Helper()
	verifier := must.Get(identity.NewVerifier(identity.VerifierConfig{Local: ring}))(t)
	policy := must.Get(auth.ParsePolicy("policy.hcl", []byte(`task "poor" { policy = "deny" }`)))(t)
	revocations, _ := allocations.(auth.Revocations)
	authenticator, err := auth.NewAuthenticator(auth.Config{
		Verifier: verifier, Allocations: allocations, Revocations: revocations, Policy: policy,
		Keys: []identity.KeySource{ring}, Logger: slog.New(slog.DiscardHandler),
		// this is about the verdicts, not their number
		Limits: auth.Limits{Set: limitset.Set{FailedLookups: boundless, AllFailedLookups: boundless, Refusals: boundless}},
	})
	must.OK(t, err)
	return authenticator
}

// TestEveryRouteIsAuthenticated walks every route and every method with every kind of credential, through the
// authenticator that production has: nothing but a good token of the socket's owner learns even whether a path exists.
func TestEveryRouteIsAuthenticated(t *testing.T) {
	authenticator, sign := realAuthenticator(t)
	behind := func(c *handlers.Config) { c.Authenticator = authenticator }
	s := newServer(t, quietAlloc(t), everyRoute, behind)
	ofOperator := newServerOf(t, auth.Owner{AllocationID: allocID, UID: peer.UID}, quietAlloc(t), everyRoute, behind)
	ofPoor := newServerOf(t, auth.Owner{AllocationID: allocID, Task: "poor", UID: peer.UID}, quietAlloc(t),
		everyRoute, behind)
	task := sign(func(*identity.Claims) {})
	asOperator := sign(func(c *identity.Claims) {
		c.Task, c.Role, c.Subject = "", identity.RoleOperator, identity.Subject("global", "default", "demo", "web",
			"", "operator")
	})
	poor := sign(func(c *identity.Claims) {
		c.Task, c.Subject = "poor", identity.Subject("global", "default", "demo", "web", "poor", "default")
	})
	_, stranger := realAuthenticator(t)
	past := time.Now().Unix() - 60
	refused := map[string]struct {
		token  string
		status int
		body   string
	}{
		"no token": {"", 401, "Unauthorized"},
		"garbage":  {"garbage", 403, "Forbidden"},
		"tampered": {tampered(task), 403, "Forbidden"},
		"expired": {sign(func(c *identity.Claims) {
			c.IssuedAt, c.NotBefore, c.ExpiresAt = past-60, past-60, past
		}), 403, "Forbidden"},
		"another task":       {sign(func(c *identity.Claims) { c.Task = "init" }), 403, "Forbidden"},
		"another allocation": {sign(func(c *identity.Claims) { c.AllocationID = otherID }), 403, "Forbidden"},
		"the operator":       {asOperator, 403, "Forbidden: this operator's token is for another socket"},

		"a task on the operator's socket": {task, 403, "Forbidden"},

		"an earlier life":  {sign(func(c *identity.Claims) { c.Life = "earlier" }), 403, "Forbidden"},
		"an unknown key":   {stranger(func(*identity.Claims) {}), 403, "Forbidden"},
		"another audience": {sign(func(c *identity.Claims) { c.Audience = []string{"vault.io"} }), 403, "Forbidden"},
	}
	taskHas := auth.DefaultTask

	paths := []string{"/v1/nothing"}
	for _, entry := range handlers.AllRoutes() {
		if entry.Answer != route.Absent { // one, below, stands for those
			paths = append(paths, target(entry, allocID))
		}
	}
	paths = append(paths, "/v1/acl/tokens")
	for _, path := range paths {
		for _, method := range methods {
			if method == http.MethodConnect {
				continue // see TestBeforeRouting
			}
			for name, bad := range refused {
				on := s
				if name == "a task on the operator's socket" {
					on = ofOperator
				}
				got := on.once(t, method, head(method, path, bad.token, anyBody))
				if got.Status != bad.status || (method != http.MethodHead && got.Body != bad.body) {
					t.Fatalf("%s: %s %s = %d %q, want %d %q", name, method, path, got.Status, got.Body, bad.status, bad.body)
				}
			}
		}
	}
	for _, entry := range handlers.AllRoutes() {
		for _, method := range entry.Methods {
			for name, c := range map[string]struct {
				s     *server
				token string
				has   auth.CapabilitySet
			}{
				"the task":      {s, task, taskHas},
				"the operator":  {ofOperator, asOperator, ^auth.CapabilitySet(0)},
				"no capability": {ofPoor, poor, auth.CapabilitySet(auth.Authenticated)},
			} {
				want := reply{Status: success(entry)}
				if c.has&entry.AnyOf == 0 {
					want = reply{Status: 403, Body: "Permission denied"}
				}
				if method == http.MethodHead {
					want.Body = ""
				}
				got := c.s.once(t, method, head(method, target(entry, allocID), c.token, anyBody))
				if got.Status != want.Status || (want.Body != "" && got.Body != want.Body) {
					t.Errorf("%s: %s %s = %d %q, want %d %q", name, method, entry.Pattern, got.Status, got.Body,
						want.Status, want.Body)
				}
				if !strings.Contains(entry.Pattern, "{alloc}") || want.Status == 403 || entry.Answer == route.Absent {
					continue
				}
				got = c.s.once(t, method, head(method, target(entry, otherID), c.token, anyBody))
				if got.Status != http.StatusNotFound {
					t.Errorf("%s: %s %s of another allocation = %d %q, want 404", name, method, entry.Pattern, got.Status, got.Body)
				}
			}
		}
	}
}

// tampered returns the token with another first byte of its signature.
func tampered(token string) string {
	dot := strings.LastIndexByte(token, '.') + 1
	swapped := byte('A')
	if token[dot] == swapped {
		swapped = 'B'
	}
	return token[:dot] + string(swapped) + token[dot+1:]
}
