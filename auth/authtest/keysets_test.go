package authtest_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"

	"taskapi/auth/authtest"
	"taskapi/identity"
)

// fetch returns the JWK set at a URL, and gives up after a while.
func fetch(jwksURL string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, jwksURL, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(io.LimitReader(response.Body, 2<<20))
}

// verifyAt is the verifier of production, by a key set that it fetches each time.
func verifyAt(jwksURL, token string) error {
	document, err := fetch(jwksURL)
	if err != nil {
		return err
	}
	set, err := identity.ParseJWKS(document)
	if err != nil {
		return err
	}
	verifier, err := identity.NewVerifier(identity.VerifierConfig{Local: set})
	if err != nil {
		return err
	}
	_, err = verifier.Verify(token, time.Now())
	return err
}

// TestRunKeySets: the verifier of production passes, as strictly as possible.
func TestRunKeySets(t *testing.T) {
	t.Parallel()
	algorithms := []string{"EdDSA", "RS256", "ES256", "ES384", "ES512"}
	authtest.RunKeySets(t, algorithms, verifyAt, authtest.Strict(), knowsNoAllocation)
}

// TestRunKeySetsSkips: kinds of one algorithm alone can be skipped, too.
func TestRunKeySetsSkips(t *testing.T) {
	t.Parallel()
	authtest.RunKeySets(t, []string{"ES256"}, verifyAt, authtest.Skip("the library takes both forms", "signature-der"))
}

// careless takes any key of the kid, for whatever the token's alg says, and looks at no audience.
func careless(jwksURL, token string) error {
	document, err := fetch(jwksURL)
	if err != nil {
		return err
	}
	_, err = jwt.ParseWithClaims(token, new(jwt.RegisteredClaims), func(t *jwt.Token) (any, error) {
		var keys jose.JSONWebKeySet
		if err := json.Unmarshal(document, &keys); err != nil {
			return nil, err
		}
		kid, _ := t.Header["kid"].(string)
		for _, key := range keys.Key(kid) {
			return key.Key, nil
		}
		return nil, nil
	})
	return err
}
