package authtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"taskapi/auth/badtokens"
	"taskapi/identity"
)

// slowest is how long a verifier may wait for an issuer that does not answer.
const slowest = time.Minute

// RunKeySets tests a program's own verifier with the keys of other issuers: verify fetches the JWK set at the URL and
// returns why it refuses the token. The tokens have Nomad's audience and claims, and no issuer.
//
// The verifier must accept a good token of each of the algorithms, and refuse the bad ones, in subtests such as
// "bad/RS256/expired". It must refuse the token of each bad set ("set/rsa-1024"), and may wait for a minute at most for
// an issuer that does not answer ("set/slow"). The options Strict and Skip are as for RunVerifier; Skip names kinds of
// tokens alone. It is called from one goroutine.
func RunKeySets(
	t *testing.T, algorithms []string, verify func(jwksURL, token string) error, options ...VerifierOption,
) {
	t.Helper()
	d := demands{skipped: map[string]string{}}
	for _, o := range options {
		o(&d)
	}
	var kinds []badtokens.Kind
	for _, alg := range algorithms {
		kinds = append(kinds, badtokens.For(alg)...)
	}
	if err := d.check(kinds); err != nil {
		t.Fatalf("authtest: %v", err)
	}
	for _, alg := range algorithms {
		good, url := goodOf(t, alg)
		t.Run("good/"+alg, func(t *testing.T) {
			if err := guarded(t, verifierAt(url, verify), good.Token()); err != nil {
				t.Errorf("a good token is refused: %v\n%s", err, good.Token())
			}
		})
		for _, kind := range badtokens.For(alg) {
			if kind.Strict && !d.strict || kind.Foreign {
				continue
			}
			t.Run("bad/"+alg+"/"+kind.Name, func(t *testing.T) { runBad(t, kind, good, verifierAt(url, verify), &d) })
		}
	}
	for _, set := range badtokens.Sets(time.Now(), foreignClaims()) {
		if set.Strict && !d.strict {
			continue
		}
		t.Run("set/"+set.Name, func(t *testing.T) {
			if guarded(t, verifierAt(serve(t, set.Document), verify), set.Token) == nil {
				t.Errorf("the token of a bad key set is accepted: %s\n%.2000s", set.Wrong, set.Document)
			}
		})
	}
	t.Run("set/slow", func(t *testing.T) { runSlow(t, verify) })
}

// goodOf returns what makes good tokens with the algorithm, and the URL of a set with its key and another.
func goodOf(t *testing.T, alg string) (badtokens.Good, string) {
	t.Helper()
	var keys [2]badtokens.Key
	for i, id := range []string{"the-key", "another-key"} {
		signer, err := newSigner(alg)
		if err != nil {
			t.Fatalf("authtest: %v", err)
		}
		keys[i] = badtokens.NewKey(id, signer)
	}
	url := serve(t, `{"keys":[`+keys[0].JWK(`,"alg":"`+alg+`"`)+`,`+keys[1].JWK("")+`]}`)
	return badtokens.Good{Key: keys[0], Now: time.Now(), Claims: foreignClaims(), OtherKeyID: keys[1].ID}, url
}

// runSlow has a good token verified whose issuer takes the request and does not answer.
func runSlow(t *testing.T, verify func(jwksURL, token string) error) {
	t.Helper()
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-ended:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(ended)
	verdict := make(chan error, 1)
	go func() { verdict <- verify(server.URL+jwksPath, "a.b.c") }()
	select {
	case err := <-verdict:
		if err == nil {
			t.Error("a token is accepted without a key")
		}
	case <-time.After(slowest):
		t.Errorf("the verifier waits for more than %v for an issuer that does not answer", slowest)
	}
}

// verifierAt returns a verifier by the keys at one URL.
func verifierAt(jwksURL string, verify func(jwksURL, token string) error) func(token string) error {
	return func(token string) error { return verify(jwksURL, token) }
}

// serve serves a key set until the test ends, and returns its URL.
func serve(t *testing.T, document string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, document) // the client may have read enough
	}))
	t.Cleanup(server.Close)
	return server.URL + jwksPath
}

// foreignClaims are those of a task of Nomad's.
func foreignClaims() identity.Claims {
	now := time.Now().Unix()
	return identity.Claims{
		ID: "0a1b2c3d-0000-4000-8000-000000000001", Audience: []string{identity.DefaultAudience},
		Subject:  identity.Subject("global", "default", "test", "group", "web", identity.DefaultName),
		IssuedAt: now, NotBefore: now, ExpiresAt: now + 3600,
		Namespace: "default", JobID: "test", AllocationID: "5d2b1f0e-0000-4000-8000-000000000002", Task: "web",
	}
}

func newSigner(alg string) (crypto.Signer, error) {
	switch alg {
	case "EdDSA":
		_, key, err := ed25519.GenerateKey(nil)
		return key, err
	case "RS256":
		return rsa.GenerateKey(rand.Reader, 2048)
	case "ES256":
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ES384":
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ES512":
		return ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	}
	return nil, errors.New(alg + " is no algorithm for RunKeySets: write EdDSA, RS256, ES256, ES384 or ES512")
}
