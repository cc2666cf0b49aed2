package auth_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/auth"
	"taskapi/auth/badtokens"
	"taskapi/auth/limitset"
	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/internal/must"
)

// nomadAllocation is the allocation whose tokens are in testdata/nomad, with the keys of the agent that issued them:
// Nomad 2.0.6 in its mode for development, on 26 November 2026.
const nomadAllocation = "cb9e308c-d737-04d9-b780-5f1c5465b5eb"

var (
	nomadIssuedAt = time.Unix(1795713863, 0)
	shop          = auth.Allocation{Region: "global", Namespace: "default", JobID: "shop", TaskGroup: "app", Life: "l"}
)

func recorded(t *testing.T, name string) string {
	t.Helper()
	text := must.Read(t, "testdata/nomad/"+name)
	return strings.TrimSpace(string(text))
}

// trusting returns a fixture that trusts another issuer, too.
func trusting(t *testing.T, is identity.Issuer, at *time.Time) *fixture {
	t.Helper()
	w := newFixture(t, func(c *auth.Config) {
		c.Now = func() time.Time { return *at }
	})
	verifier := must.Get(identity.NewVerifier(identity.VerifierConfig{
		Local: identitytest.Keyring(t), Foreign: []identity.Issuer{is}}))(t)
	w.verifier.Verifier = verifier
	return w
}

// TestNomadsIdentities: what a Nomad agent issued is good for its own task alone, and without exp only if that is
// allowed.
func TestNomadsIdentities(t *testing.T) {
	keys := must.Get(identity.ParseJWKS([]byte(recorded(t, "jwks.json"))))(t)
	now := nomadIssuedAt.Add(time.Minute)
	w := trusting(t, identity.Issuer{Keys: keys, NoExpiry: true}, &now)
	w.allocs.set(nomadAllocation, auth.Live)
	w.allocs.become(shop)
	own := auth.Owner{AllocationID: nomadAllocation, Task: "web", UID: 1000}
	token := recorded(t, "nomad_token")

	w.expect("the default identity", token, own, auth.NotRefused)
	w.expect("on another task's socket", token, auth.Owner{AllocationID: nomadAllocation, Task: "db", UID: 1000},
		auth.WrongSocket)
	w.expect("on the operator's", token, auth.Owner{AllocationID: nomadAllocation, UID: 1000}, auth.WrongSocket)
	w.expect("another audience", recorded(t, "nomad_other.jwt"), own, auth.WrongAudience)

	checks := w.verifier.checks.Load()
	now = now.Add(59 * time.Second)
	w.expect("within a minute", token, own, auth.NotRefused)
	if again := w.verifier.checks.Load(); again != checks {
		t.Errorf("verified %d times more within a minute", again-checks)
	}
	now = now.Add(time.Second)
	w.expect("after a minute", token, own, auth.NotRefused)
	w.expect("once more", token, own, auth.NotRefused)
	if again := w.verifier.checks.Load(); again != checks+1 {
		t.Errorf("verified %d times more after a minute, want 1", again-checks)
	}
	w.allocs.set(nomadAllocation, auth.Terminal)
	w.expect("after the end", token, own, auth.TerminalAllocation)

	strict := trusting(t, identity.Issuer{Keys: keys}, &now)
	strict.allocs.set(nomadAllocation, auth.Live)
	strict.expect("without leave", token, own, auth.BadClaims)
	other := trusting(t, identity.Issuer{Keys: keys, Audiences: []string{"taskapi"}}, &now)
	other.allocs.set(nomadAllocation, auth.Live)
	other.allocs.become(shop)
	other.expect("the other identity", recorded(t, "nomad_other.jwt"), own, auth.NotRefused)
}

// TestMappedIssuer: a token that names no allocation is good on the socket of the task that it names, and as the
// allocation's own.
func TestMappedIssuer(t *testing.T) {
	signer := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	key := badtokens.NewKey("spire", signer)
	keys := must.Get(key.KeySet())(t)
	m := new(identity.Mapping)
	must.OK(t, m.Add("sub", "spiffe://example.org/ns/{namespace}/task/{task}"))
	now := time.Now()
	w := trusting(t, identity.Issuer{Keys: keys, Mapping: m}, &now)
	svid := func(sub string) string {
		return badtokens.Good{Key: key, Now: now, Claims: identity.Claims{
			Subject: sub, Audience: []string{identity.DefaultAudience}, ExpiresAt: now.Unix() + 300,
		}}.Token()
	}
	good := svid("spiffe://example.org/ns/default/task/web")
	w.expect("the task", good, web, auth.NotRefused)
	w.expect("another task's socket", good, db, auth.WrongSocket)
	w.expect("another task", svid("spiffe://example.org/ns/default/task/db"), web, auth.WrongSocket)
	w.expect("the operator's socket", good, operator, auth.WrongSocket)
	w.expect("another namespace", svid("spiffe://example.org/ns/prod/task/web"), web, auth.WrongClaims)
	w.expect("another trust domain", svid("spiffe://example.com/ns/default/task/web"), web, auth.BadClaims)
	principal, denial := w.authenticator.Authenticate(request(good), web, peer)
	if denial != nil || principal.Claims.AllocationID != allocID || principal.Claims.JobID != demo.JobID ||
		principal.Claims.Task != "web" {
		t.Errorf("principal %+v, %v", principal, denial)
	}
	now = now.Add(5 * time.Minute)
	w.expect("after its exp", good, web, auth.Expired)
}

// TestABadClaimCostsALookUp: a token whose claims turn out bad after its signature was verified counts as a failed
// look-up, so that a flood of them is slowed like any other.
func TestABadClaimCostsALookUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // limited callers are delayed
		now := nomadIssuedAt.Add(time.Minute)
		keys := must.Get(identity.ParseJWKS([]byte(recorded(t, "jwks.json"))))(t)
		w := newFixture(t, func(c *auth.Config) {
			c.Now = func() time.Time { return now }
			c.Limits = auth.Limits{Set: limitset.Set{AllFailedLookups: limitset.Off}}
		})
		verifier := must.Get(identity.NewVerifier(identity.VerifierConfig{
			Local: identitytest.Keyring(t), Foreign: []identity.Issuer{{Keys: keys}}}))(t)
		w.verifier.Verifier = verifier
		limited := 0
		for range 100 {
			if w.ask(recorded(t, "nomad_token"), web) == auth.CallerLimited {
				limited++
			}
		}
		if limited < 50 || w.verifier.checks.Load() > 1 {
			t.Errorf("%d of 100 were limited, and %d verified", limited, w.verifier.checks.Load())
		}
	})
}

// TestNoAllocation: a token that names no allocation is nobody's, unless a mapping allows that; no verdict lets it in.
func TestNoAllocation(t *testing.T) {
	w := newFixture(t)
	w.expect("of our own", w.with(web, func(c *identity.Claims) { c.AllocationID = "" }), web, auth.UnknownAllocation)
	if cached := w.authenticator.Stats().Cached; cached.Good != 0 || cached.Bad != 1 {
		t.Errorf("cached: %+v", cached)
	}
}
