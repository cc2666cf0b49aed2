package auth_test

import (
	"testing"
	"testing/synctest"
	"time"

	"taskapi/auth"
	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/internal/must"
)

// A token says what its allocation is, no matter which key signed it: another job, namespace, group, task or life is
// another allocation's.
func TestClaimsAreTheAllocations(t *testing.T) {
	w := newFixture(t)
	other := identitytest.Keyring(t)
	verifier := must.Get(identity.NewVerifier(
		identity.VerifierConfig{Local: w.ring, Foreign: []identity.Issuer{{Keys: other}}},
	))(t)
	w.verifier.Verifier = verifier
	sub := func(namespace, job, group, task, name string) string {
		return identity.Subject("global", namespace, job, group, task, name)
	}
	for _, test := range []struct {
		name           string
		change         func(*identity.Claims)
		local, foreign auth.Reason
	}{
		{"none", func(*identity.Claims) {}, auth.NotRefused, auth.NotRefused},
		{"another identity of the task",
			func(c *identity.Claims) { c.Subject = sub("default", "demo", "web", "web", "vault") }, auth.NotRefused,
			auth.NotRefused},
		{"namespace", func(c *identity.Claims) { c.Namespace = "rich" }, auth.WrongClaims, auth.WrongClaims},
		{"namespace, also in sub", func(c *identity.Claims) {
			c.Namespace, c.Subject = "rich", sub("rich", "demo", "web", "web", "default")
		}, auth.WrongClaims, auth.WrongClaims},
		{"no namespace", func(c *identity.Claims) { c.Namespace = "" }, auth.WrongClaims, auth.WrongClaims},
		{"job", func(c *identity.Claims) { c.JobID = "other" }, auth.WrongClaims, auth.WrongClaims},
		{"no job", func(c *identity.Claims) { c.JobID = "" }, auth.WrongClaims, auth.WrongClaims},
		{"job in sub", func(c *identity.Claims) { c.Subject = sub("default", "other", "web", "web", "default") },
			auth.WrongClaims, auth.WrongClaims},
		{"group", func(c *identity.Claims) { c.Subject = sub("default", "demo", "db", "web", "default") }, auth.WrongClaims,
			auth.WrongClaims},
		{"task in sub", func(c *identity.Claims) { c.Subject = sub("default", "demo", "web", "db", "default") },
			auth.WrongClaims, auth.WrongClaims},
		{"region", func(c *identity.Claims) { c.Subject = "mars" + c.Subject[len("global"):] }, auth.WrongClaims,
			auth.WrongClaims},
		{"one part too many", func(c *identity.Claims) { c.Subject += ":x" }, auth.WrongClaims, auth.WrongClaims},
		{"one part too few", func(c *identity.Claims) { c.Subject = "global:default:demo:web:web" }, auth.WrongClaims,
			auth.WrongClaims},
		{"an identity without a name", func(c *identity.Claims) { c.Subject = sub("default", "demo", "web", "web", "") },
			auth.WrongClaims, auth.WrongClaims},
		{"no sub", func(c *identity.Claims) { c.Subject = "" }, auth.WrongClaims, auth.NotRefused},
		{"another life", func(c *identity.Claims) { c.Life = "that life" }, auth.EarlierLife, auth.EarlierLife},
		{"no life", func(c *identity.Claims) { c.Life = "" }, auth.EarlierLife, auth.NotRefused},
	} {
		claims := claimsOf(web)
		test.change(&claims)
		local, foreign := identitytest.Sign(t, w.ring, claims), identitytest.Sign(t, other, claims)
		for range 2 { // fresh, and remembered
			w.expect("local, "+test.name, local, web, test.local)
			w.expect("foreign, "+test.name, foreign, web, test.foreign)
		}
	}
	w.expect("of another issuer, for the operator", identitytest.Sign(t, other, claimsOf(operator)), operator,
		auth.WrongRole)
	if stats := w.authenticator.Stats(); stats.Cached.Good != 2+2+1+1 {
		t.Errorf("%d tokens are remembered as good, want those that were let in alone", stats.Cached.Good)
	}
}

// What a task may do is decided by its allocation's namespace, whatever its token would like.
func TestPolicyIsTheAllocations(t *testing.T) {
	policy := must.Get(auth.ParsePolicy("p", []byte(`namespace "default" { policy = "deny" }`)))(t)
	w := newFixture(t, func(c *auth.Config) { c.Policy = policy })
	p, denial := w.authenticator.Authenticate(request(w.token(web)), web, peer)
	if denial != nil || p.Capabilities.Has(auth.ReadJob) {
		t.Errorf("got %+v, %v; want a principal without read-job", p, denial)
	}
	rich := w.with(web, func(c *identity.Claims) {
		c.Namespace, c.Subject = "rich", identity.Subject("global", "rich", "demo", "web", "web", "default")
	})
	w.expect("a namespace without a rule", rich, web, auth.WrongClaims)
}

// A token of an earlier life is refused on the next request after the new one began, and that of the new one let in.
func TestEarlierLife(t *testing.T) {
	w := newFixture(t)
	old := w.token(web)
	w.expect("in its life", old, web, auth.NotRefused)
	next := demo
	next.Life = "next"
	early := w.with(web, func(c *identity.Claims) { c.Life = "next" })
	w.expect("before its life", early, web, auth.EarlierLife)
	w.allocs.become(next)
	w.expect("after its life", old, web, auth.EarlierLife)
	w.expect("in the next", early, web, auth.NotRefused)

	ancient := demo
	ancient.Life = ""
	w.allocs.become(ancient)
	w.expect("an allocation from before there were lives", w.with(web, func(c *identity.Claims) { c.Life = "" }), web,
		auth.NotRefused)
	w.expect("the same with another's token", old, web, auth.EarlierLife)
}

// A socket is for processes of its owner, of root and of taskapi, whatever token they have.
func TestPeers(t *testing.T) {
	w := newFixture(t)
	for _, owner := range []auth.Owner{web, operator} {
		token := w.token(owner)
		for uid, want := range map[uint32]auth.Reason{
			owner.UID: auth.NotRefused, 0: auth.NotRefused, owner.UID + 1: auth.WrongPeer, 65534: auth.WrongPeer,
		} {
			if got := w.askAs(token, owner, auth.Peer{UID: uid}); got != want {
				t.Errorf("uid %d on the socket of %v: got %s, want %s", uid, owner, got, want)
			}
		}
	}
	before := w.verifier.checks.Load()
	if got := w.askAs(forge(w.token(web), 1), web, auth.Peer{UID: 7}); got != auth.WrongPeer ||
		w.verifier.checks.Load() != before {
		t.Errorf("a stranger's token was looked at (%s)", got)
	}
	if log := w.audit.lines(); len(log) != 5 {
		t.Errorf("%d refusals are in the audit log, want 5", len(log))
	}
}

// TestRecheck: a request under way is refused for what has changed since it was let in, but not because its allocation
// has ended.
func TestRecheck(t *testing.T) { synctest.Test(t, testRecheck) }

func testRecheck(t *testing.T) {
	w := newFixture(t)
	short := w.with(web, func(c *identity.Claims) { c.ExpiresAt = time.Now().Unix() + 1 })
	enter := func(token string) (again func() auth.Reason) {
		r := request(token)
		p := admitted(w.authenticator.Authenticate(r, web, peer))(t)
		return func() auth.Reason {
			if denial := w.authenticator.Recheck(r, p, web, peer); denial != nil {
				return denial.Reason
			}
			return auth.NotRefused
		}
	}
	check := func(what string, again func() auth.Reason, want auth.Reason) {
		t.Helper()
		if got := again(); got != want {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
	soon, lasting := enter(short), enter(w.token(web))
	check("at once", lasting, auth.NotRefused)
	time.Sleep(time.Second)
	check("expired", soon, auth.Expired)
	w.allocs.set(allocID, auth.Terminal)
	check("ended", lasting, auth.NotRefused)
	w.allocs.set(allocID, auth.Live)
	next := demo
	next.Life = "next"
	w.allocs.become(next)
	check("in another life", lasting, auth.EarlierLife)
	w.allocs.become(demo)
	check("back", lasting, auth.NotRefused)
	old := w.ring.Active().ID
	must.Get(w.ring.Rotate())(t)
	must.OK(t, w.ring.Remove(old))
	check("key removed", lasting, auth.KeyRemoved)
	if denial := w.authenticator.Recheck(request(""), &auth.Principal{Capabilities: auth.All}, web, peer); denial == nil {
		t.Error("a principal that no Authenticator has made is let in")
	}
}
