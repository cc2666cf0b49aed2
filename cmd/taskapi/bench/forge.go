package main

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// hostileEach is how many different requests there are of each kind, so that no cache can know them all by heart at
// first.
const hostileEach = 1000

// issuerKID names the key that taskapi trusts for the attack.
const issuerKID = "bench-issuer"

// An issuer signs the attack's tokens: with a key that taskapi trusts, and with one that it doesn't.
type issuer struct{ trusted, forger ed25519.PrivateKey }

func newIssuer() (i issuer) {
	_, i.trusted, _ = ed25519.GenerateKey(nil) // never fails with the system's random numbers
	_, i.forger, _ = ed25519.GenerateKey(nil)
	return i
}

// jwks returns the trusted key as a JWK set (RFC 7517, RFC 8037).
func (i issuer) jwks() []byte {
	x := base64.RawURLEncoding.EncodeToString(i.trusted.Public().(ed25519.PublicKey))
	return fmt.Appendf(nil, `{"keys":[{"kty":"OKP","crv":"Ed25519","use":"sig","alg":"EdDSA","kid":%q,"x":%q}]}`,
		issuerKID, x)
}

// hostile makes the requests of an attack from a good token: garbage, forged signatures under the good token's key
// ID, key IDs that nobody knows, and good signatures for allocations that nobody knows.
func (i issuer) hostile(good, path string) ([][]byte, error) {
	header, claims, err := parse(good)
	if err != nil {
		return nil, err
	}
	claims["exp"] = time.Now().Add(time.Hour).Unix()
	var requests [][]byte
	for n := range hostileEach {
		own := with(claims, "jti", fmt.Sprintf("bench-%d", n))
		stranger := with(own, "nomad_allocation_id", fmt.Sprintf("00000000-0000-4000-8000-%012d", n))
		requests = append(requests,
			get(path, fmt.Sprintf("garbage-%d.%s", n, strings.Repeat("x", 300))),
			get(path, sign(i.forger, header, own)),
			get(path, sign(i.forger, with(header, "kid", fmt.Sprintf("nobody-%d", n)), own)),
			get(path, sign(i.trusted, with(header, "kid", issuerKID), stranger)),
		)
	}
	return requests, nil
}

// parse reads a token that nobody has verified.
func parse(token string) (header, claims map[string]any, err error) {
	parser := jwt.NewParser(jwt.WithJSONNumber()) // an integer must not come back as 1.79e+09
	read, _, err := parser.ParseUnverified(strings.TrimSpace(token), jwt.MapClaims{})
	if err != nil {
		return nil, nil, fmt.Errorf("read the task's token: %w", err)
	}
	return read.Header, read.Claims.(jwt.MapClaims), nil
}

func with(members map[string]any, key string, value any) map[string]any {
	changed := maps.Clone(members)
	changed[key] = value
	return changed
}

func sign(key ed25519.PrivateKey, header, claims map[string]any) string {
	token := jwt.Token{Method: jwt.SigningMethodEdDSA, Header: header, Claims: jwt.MapClaims(claims)}
	text, err := token.SignedString(key)
	if err != nil {
		panic(err) // maps of strings and numbers, and a key that fits the method
	}
	return text
}
