package authtest_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"taskapi/auth/authtest"
	"taskapi/identity"
)

// verifierOf returns a verifier of production on a server's key set, which it reads each time.
func verifierOf(srv *authtest.Server) func(string) error {
	return func(token string) error { return verifyAt(srv.JWKSURL(), token) }
}

// knowsNoAllocation leaves out the kinds of which only an allocation tells that they are bad.
var knowsNoAllocation = authtest.Skip("it knows of no allocation",
	"other-*", "*-missing", "allocation-prefix", "sub-of-another-task", "sub-cut", "sub-longer", "operator")

// TestRunVerifier: a verifier that is right passes.
func TestRunVerifier(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t)
	authtest.RunVerifier(t, srv, verifierOf(srv), authtest.Rotation())
}

// TestRunVerifierStrictly: a verifier as strict as package auth passes, but for the kinds that it can't know.
func TestRunVerifierStrictly(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t)
	authtest.RunVerifier(t, srv, verifierOf(srv), authtest.Strict(), knowsNoAllocation)
}

// golangJWT returns a verifier by golang-jwt with these options.
func golangJWT(srv *authtest.Server, options ...jwt.ParserOption) func(string) error {
	id, key := srv.PublicKey()
	return func(token string) error {
		_, err := jwt.ParseWithClaims(token, new(jwt.RegisteredClaims), func(t *jwt.Token) (any, error) {
			if t.Header["kid"] != id {
				return nil, errors.New("a key that is not trusted")
			}
			return key, nil
		}, options...)
		return err
	}
}

// TestRunVerifierOfALibrary: a verifier by golang-jwt, used well, passes but for what is said.
func TestRunVerifierOfALibrary(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t)
	authtest.RunVerifier(t, srv, golangJWT(srv, good...), leniences...)
}

// TestRunVerifierOfAnIssuer: so does one that knows its issuer, which is then tested, too.
func TestRunVerifierOfAnIssuer(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.OIDC())
	authtest.RunVerifier(t, srv, golangJWT(srv, append(good, jwt.WithIssuer(srv.JWKSServer()))...), leniences...)
}

// leniences are what golang-jwt takes, whatever its options.
var leniences = []authtest.VerifierOption{
	authtest.Skip("it does not look at crit", "crit-*", "b64-false-in-crit"),
	authtest.Skip("its decoder skips line breaks, which no header carries", "line-feed-*", "carriage-return-in-header"),
	authtest.Skip("it takes numbers in quotes", "exp-string", "nbf-string", "iat-string"),
}

// Parts of a good configuration of golang-jwt.
var (
	algorithm = jwt.WithValidMethods([]string{"EdDSA"})
	audience  = jwt.WithAudience(identity.DefaultAudience)
	expiry    = jwt.WithExpirationRequired()
	strictly  = jwt.WithStrictDecoding()
	good      = []jwt.ParserOption{algorithm, audience, expiry, strictly}
)

// broken are verifiers that forget something, and some of the tests that they must fail.
var broken = map[string]struct {
	verify func(srv *authtest.Server) func(string) error
	fails  []string
}{
	"the signature": {
		func(*authtest.Server) func(string) error {
			return func(token string) error { _, err := identity.Check(token); return err }
		},
		[]string{"bad/wrong-key", "bad/tampered", "bad/expired", "bad/wrong-audience", "bad/kid-unknown"},
	},
	"the clock": {
		func(srv *authtest.Server) func(string) error {
			return golangJWT(srv, append(good, jwt.WithTimeFunc(func() time.Time { return time.Now().Add(-2 * time.Hour) }))...)
		},
		[]string{"bad/expired"},
	},
	"exp": {
		func(srv *authtest.Server) func(string) error {
			return golangJWT(srv, algorithm, audience)
		},
		[]string{"bad/exp-missing"},
	},
	"the audience": {
		func(srv *authtest.Server) func(string) error {
			return golangJWT(srv, jwt.WithValidMethods([]string{"EdDSA"}))
		},
		[]string{"bad/wrong-audience", "bad/aud-missing"},
	},
	"the algorithm": {takesAnyAlgorithm, []string{"bad/alg-hs256", "bad/alg-none"}},
	"the issuer": {
		func(srv *authtest.Server) func(string) error { return golangJWT(srv, good...) },
		[]string{"bad/wrong-issuer", "bad/iss-missing", "bad/iss-longer"},
	},
	"that some tokens are good": {
		func(*authtest.Server) func(string) error {
			return func(string) error { return errors.New("no") }
		},
		[]string{"good/token", "good/audiences"},
	},
	"to expect a panic": {
		func(*authtest.Server) func(string) error { return func(token string) error { panic(token) } },
		[]string{"good/token", "bad/expired"},
	},
	"key sets": {nil, []string{"bad/RS256/exp-missing", "bad/ES256/wrong-audience", "set/secret", "set/use-enc"}},
	"new keys": {
		func(srv *authtest.Server) func(string) error {
			return golangJWT(srv, good...)
		},
		[]string{"good/of-a-new-key"},
	},
}

// takesAnyAlgorithm believes the header, as many verifiers did.
func takesAnyAlgorithm(srv *authtest.Server) func(string) error {
	_, key := srv.PublicKey()
	return func(token string) error {
		_, err := jwt.ParseWithClaims(token, new(jwt.RegisteredClaims), func(t *jwt.Token) (any, error) {
			switch t.Method.Alg() {
			case "none":
				return jwt.UnsafeAllowNoneSignatureType, nil
			case "HS256":
				return []byte(key), nil
			}
			return key, nil
		}, audience, expiry)
		return err
	}
}

// TestABrokenVerifier runs in a process of its own, and is to fail.
func TestABrokenVerifier(t *testing.T) {
	forgets := os.Getenv("AUTHTEST_FORGETS")
	if forgets == "" {
		t.Skip("run by TestRunVerifierFails")
	}
	if forgets == "key sets" {
		authtest.RunKeySets(t, []string{"RS256", "ES256"}, careless)
		return
	}
	srv := authtest.NewServer(t, authtest.OIDC())
	authtest.RunVerifier(t, srv, broken[forgets].verify(srv), authtest.Rotation())
}

// TestRunVerifierFails: a verifier that forgets something fails the tests that are about it, by name.
func TestRunVerifierFails(t *testing.T) {
	t.Parallel()
	for forgets, want := range broken {
		t.Run(forgets, func(t *testing.T) {
			t.Parallel()
			command := exec.CommandContext(
				t.Context(),
				os.Args[0],
				"-test.run=^TestABrokenVerifier$",
			) //nolint:gosec // this test itself
			command.Env = append(os.Environ(), "AUTHTEST_FORGETS="+forgets)
			out, err := command.CombinedOutput()
			if err == nil {
				t.Fatalf("it passes: %s", out)
			}
			failed := map[string]bool{}
			for l := range strings.Lines(string(out)) {
				if name, found := strings.CutPrefix(strings.TrimSpace(l), "--- FAIL: TestABrokenVerifier/"); found {
					name, _, _ = strings.Cut(name, " ")
					failed[name] = true
				}
			}
			for _, name := range want.fails {
				if !failed[name] {
					t.Errorf("%s passes: %.3000s", name, out)
				}
			}
		})
	}
}
