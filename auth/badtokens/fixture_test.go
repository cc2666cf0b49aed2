package badtokens_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"log/slog"
	"net/http"
	"regexp"
	"testing"
	"time"

	"taskapi/auth"
	"taskapi/auth/badtokens"
	"taskapi/auth/limitset"
	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/internal/must"
	"taskapi/ratelimit"
)

const (
	allocID = "5fc98185-17ff-26bc-a802-0c74fa471c99"
	issuer  = "https://nomad.example"
)

var (
	owner = auth.Owner{AllocationID: allocID, Task: "web", UID: 1000}
	peer  = auth.Peer{UID: 1000, GID: 1000, PID: 4242}
)

// running is an allocation that runs.
type running struct{}

var alloc = auth.Allocation{Region: "global", Namespace: "default", JobID: "shop", TaskGroup: "group",
	Life: "this life"}

func (running) Lookup(id string) (*auth.Allocation, auth.Liveness) {
	if id != allocID {
		return nil, auth.Unknown
	}
	return &alloc, auth.Live
}

// claims are good at now.
func claims(now time.Time) identity.Claims {
	return identity.Claims{
		ID:      "11111111-2222-4333-8444-555555555555",
		Issuer:  issuer,
		Subject: identity.Subject("global", "default", "shop", "group", "web", identity.DefaultName),
		Audience: []string{
			identity.DefaultAudience,
		},
		IssuedAt:     now.Unix() - 5,
		NotBefore:    now.Unix() - 5,
		ExpiresAt:    now.Unix() + 3600,
		Namespace:    "default",
		JobID:        "shop",
		AllocationID: allocID,
		Task:         "web",
		Life:         "this life",
	}
}

// fixture is an authenticator with a ring of its own and another issuer.
type fixture struct {
	*auth.Authenticator
	verifier     *identity.Verifier
	own, foreign badtokens.Good
}

// good returns the good token that a kind is made of.
func (d fixture) good(k badtokens.Kind) badtokens.Good {
	if k.Foreign {
		return d.foreign
	}
	return d.own
}

// newAuthenticator returns one that has seen no token.
func newAuthenticator(t *testing.T, verifier *identity.Verifier) *auth.Authenticator {
	t.Helper()
	unfelt := ratelimit.Rate{PerSecond: 1e6, Burst: 1e6}
	a := must.Get(auth.NewAuthenticator(auth.Config{
		Verifier: verifier, Allocations: running{}, Logger: slog.New(slog.DiscardHandler),
		Limits: auth.Limits{Set: limitset.Set{FailedLookups: unfelt, AllFailedLookups: unfelt, Refusals: unfelt}},
	}))(t)
	return a
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	ring := identitytest.Keyring(t)
	another := badtokens.NewKey("another", ed25519.NewKeyFromSeed(make([]byte, 32)))
	return newFixtureOf(t, ring, badtokens.NewKey(ring.Signer()), another)
}

// newFixtureOf returns one whose keys are any.
func newFixtureOf(t *testing.T, ring identity.KeySource, own, another badtokens.Key) fixture {
	t.Helper()
	set := must.Get(another.KeySet())(t)
	verifier := must.Get(identity.NewVerifier(identity.VerifierConfig{
		Local: ring, Foreign: []identity.Issuer{{Keys: set, Name: issuer}},
	}))(t)
	now := time.Now()
	return fixture{
		Authenticator: newAuthenticator(t, verifier),
		verifier:      verifier,
		own:           badtokens.Good{Key: own, Now: now, Claims: claims(now), OtherKeyID: another.ID},
		foreign:       badtokens.Good{Key: another, Now: now, Claims: claims(now), OtherKeyID: own.ID},
	}
}

// refusal returns why the authenticator refuses a token.
func (d fixture) refusal(t *testing.T, token string) (auth.Reason, int) {
	t.Helper()
	r := must.Get(http.NewRequest(http.MethodGet, "http://socket/v1/agent/health", nil))(t)
	r.Header["X-Nomad-Token"] = []string{token}
	principal, denial := d.Authenticate(r, owner, peer)
	if denial == nil {
		if principal == nil {
			t.Fatal("neither a principal nor a denial")
		}
		return auth.NotRefused, http.StatusOK
	}
	return denial.Reason, denial.Reason.Status()
}

// TestAuthenticatorRefuses has every kind refused by the real authenticator for its own reason, the second time as well
// as the first, and lets in the good tokens that the bad ones are made of.
func TestAuthenticatorRefuses(t *testing.T) {
	d := newFixture(t)
	for _, good := range []badtokens.Good{d.own, d.foreign} {
		if why, _ := d.refusal(t, good.Token()); why != auth.NotRefused {
			t.Fatalf("the good token of key %s: %s", good.Key.ID, why)
		}
	}
	for _, k := range badtokens.All() {
		t.Run(k.Name, func(t *testing.T) {
			token := must.Get(k.Token(d.good(k)))(t)
			for _, when := range []string{"first", "second"} {
				if why, status := d.refusal(t, token); why != k.Reason || status != k.Status() || status < 400 {
					t.Errorf("the %s time: %d %s, want %d %s", when, status, why, k.Status(), k.Reason)
				}
			}
			if k.Foreign {
				token, err := k.Token(d.own)
				if why, _ := d.refusal(t, token); err != nil || why == k.Reason {
					t.Errorf("with a key of the authenticator's own: %s, %v; then it is not Foreign", why, err)
				}
			}
		})
	}
}

// TestOtherAlgorithms has every kind refused for the same reason when the keys are for another algorithm.
func TestOtherAlgorithms(t *testing.T) {
	for name, generate := range map[string]func() crypto.Signer{
		"rsa-2048": func() crypto.Signer { return generated(rsa.GenerateKey(rand.Reader, 2048)) },
		"rsa-3072": func() crypto.Signer { return generated(rsa.GenerateKey(rand.Reader, 3072)) },
		"p-256":    func() crypto.Signer { return generated(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) },
		"p-384":    func() crypto.Signer { return generated(ecdsa.GenerateKey(elliptic.P384(), rand.Reader)) },
		"p-521":    func() crypto.Signer { return generated(ecdsa.GenerateKey(elliptic.P521(), rand.Reader)) },
	} {
		t.Run(name, func(t *testing.T) {
			own := badtokens.NewKey("own", generate())
			set := must.Get(own.KeySet())(t)
			d := newFixtureOf(t, set, own, badtokens.NewKey("another", generate()))
			if why, _ := d.refusal(t, d.own.Token()); why != auth.NotRefused {
				t.Fatalf("the good token: %s", why)
			}
			kinds := badtokens.For(own.Algorithm())
			if len(kinds) < 200 {
				t.Fatalf("%d kinds, want 200 at least", len(kinds))
			}
			for _, k := range kinds {
				token, err := k.Token(d.good(k))
				if errors.Is(err, badtokens.ErrNotApplicable) && k.Name == "trailing-bits-in-signature" {
					continue // whose length is a multiple of three bytes
				}
				if err != nil {
					t.Errorf("%s: %v", k.Name, err)
				} else if why, status := d.refusal(t, token); why != k.Reason || status != k.Status() {
					t.Errorf("%s: %d %s, want %d %s", k.Name, status, why, k.Status(), k.Reason)
				}
			}
		})
	}
}

// generated returns a fresh key.
func generated[K any](key K, err error) K {
	if err != nil {
		panic(err)
	}
	return key
}

// TestCatalogue holds what others rely on: names that stay, and words for each.
func TestCatalogue(t *testing.T) {
	all := badtokens.All()
	if len(all) < 100 {
		t.Fatalf("%d kinds, want 100 at least", len(all))
	}
	names, words, met := map[string]bool{}, map[string]string{}, map[auth.Reason]bool{}
	name := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	for _, k := range all {
		if !name.MatchString(k.Name) || names[k.Name] {
			t.Errorf("%q is no name, or is there twice", k.Name)
		}
		if before := words[k.Wrong]; k.Wrong == "" || before != "" {
			t.Errorf("%s: %q is said of %q, too", k.Name, k.Wrong, before)
		}
		names[k.Name], words[k.Wrong], met[k.Reason] = true, k.Name, true
		if k.Class == "" || k.Status() < 400 || k.Status() >= 500 {
			t.Errorf("%s: class %q, status %d", k.Name, k.Class, k.Status())
		}
		if found, ok := badtokens.Find(k.Name); !ok || found.Wrong != k.Wrong {
			t.Errorf("Find(%q): %+v, %t", k.Name, found, ok)
		}
	}
	if _, ok := badtokens.Find("good"); ok {
		t.Error("Find found a kind that does not exist")
	}
	// Reasons that a token alone can cause.
	for _, why := range auth.Reasons() {
		token := why == auth.NoToken || why >= auth.TooLong && why <= auth.WrongSocket &&
			why != auth.KeyRemoved && why != auth.Revoked && why != auth.TerminalAllocation
		if token != met[why] {
			t.Errorf("reason %s has a kind: %t, want %t", why, met[why], token)
		}
	}
}

// TestInHeader: what a header carries is what arrives.
func TestInHeader(t *testing.T) {
	d := newFixture(t)
	for token, want := range map[string]bool{
		d.own.Token(): true, "": false, " a": false, "a ": false, "a\n": false, "a\x00b": false, "a b": true,
		"Bearer a": true,
	} {
		if got := badtokens.InHeader(token); got != want {
			t.Errorf("InHeader(%q): %t", token, got)
		}
	}
}
