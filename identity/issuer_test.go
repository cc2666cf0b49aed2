package identity_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"taskapi/identity"
	"taskapi/internal/must"
)

// tokenIssuer is an issuer of tokens, or an attacker with its key, who signs anything.
type tokenIssuer struct {
	ID  string
	key ed25519.PrivateKey
}

// newIssuer returns an issuer with a key of its own for each seed.
func newIssuer(id string, seed byte) tokenIssuer {
	return tokenIssuer{id, ed25519.NewKeyFromSeed([]byte(strings.Repeat(string(rune(seed)), ed25519.SeedSize)))}
}

func (f tokenIssuer) Public() ed25519.PublicKey { return f.key.Public().(ed25519.PublicKey) }

// Key returns the issuer's private key.
func (f tokenIssuer) Key() ed25519.PrivateKey { return f.key }

// JWK returns the issuer's public key, with more members if wanted.
func (f tokenIssuer) JWK(more string) string {
	return fmt.Sprintf(`{"kty":"OKP","crv":"Ed25519","kid":%q,"x":%q%s}`, f.ID, base64URL(string(f.Public())), more)
}

// KeySet returns the set of the issuer's key.
func (f tokenIssuer) KeySet(tb testing.TB) *identity.KeySet {
	tb.Helper()
	return must.Get(identity.ParseJWKS([]byte(`{"keys":[` + f.JWK("") + `]}`)))(tb)
}

// Header returns a good header with the issuer's kid, and more members if wanted.
func (f tokenIssuer) Header(more string) string {
	return fmt.Sprintf(`{"alg":"EdDSA","kid":%q,"typ":"JWT"%s}`, f.ID, more)
}

// Token signs header and claims as they are.
func (f tokenIssuer) Token(header, claims string) string {
	return f.Sign(base64URL(header) + "." + base64URL(claims))
}

// Sign adds a good signature to any text.
func (f tokenIssuer) Sign(signed string) string {
	return signed + "." + base64URL(string(ed25519.Sign(f.key, []byte(signed))))
}

// base64URL returns s in the encoding of a segment of a token.
func base64URL(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// goodClaims returns claims that are valid at now; more members may follow.
func goodClaims(now time.Time, more string) string {
	return fmt.Sprintf(`{"aud":"nomadproject.io","iat":%d,"nbf":%[1]d,"exp":%d,"jti":"j","sub":"s"%s}`,
		now.Unix(), now.Unix()+3600, more)
}

// withExp returns good claims except for exp, a JSON value.
func withExp(exp string) string { return `{"aud":"nomadproject.io","exp":` + exp + `}` }

// withAud returns good claims except for aud, a JSON value.
func withAud(now time.Time, aud string) string {
	return fmt.Sprintf(`{"aud":%s,"exp":%d}`, aud, now.Unix()+3600)
}

// manyNames returns n more members for goodClaims.
func manyNames(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"n%d":0`, i)
	}
	return b.String()
}
