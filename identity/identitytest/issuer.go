// Package identitytest makes key rings and tokens for tests of this module. Package auth/badtokens makes bad tokens.
package identitytest

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"taskapi/identity"
)

// Issuer is an issuer of tokens, or an attacker with its key, who signs anything.
type Issuer struct {
	ID  string
	key ed25519.PrivateKey
}

func NewIssuer(id string, seed byte) Issuer {
	return Issuer{id, ed25519.NewKeyFromSeed([]byte(strings.Repeat(string(rune(seed)), ed25519.SeedSize)))}
}

func (f Issuer) Public() ed25519.PublicKey { return f.key.Public().(ed25519.PublicKey) }

// Key returns the issuer's private key.
func (f Issuer) Key() ed25519.PrivateKey { return f.key }

// JWK returns the issuer's public key, with more members if wanted.
func (f Issuer) JWK(more string) string {
	return fmt.Sprintf(`{"kty":"OKP","crv":"Ed25519","kid":%q,"x":%q%s}`, f.ID, Base64(string(f.Public())), more)
}

// KeySet returns the set of the issuer's key.
func (f Issuer) KeySet(tb testing.TB) *identity.KeySet {
	tb.Helper()
	set, err := identity.ParseJWKS([]byte(`{"keys":[` + f.JWK("") + `]}`))
	if err != nil {
		tb.Fatal(err)
	}
	return set
}

// Header returns a good header with the issuer's kid, and more members if wanted.
func (f Issuer) Header(more string) string {
	return fmt.Sprintf(`{"alg":"EdDSA","kid":%q,"typ":"JWT"%s}`, f.ID, more)
}

// Token signs header and claims as they are.
func (f Issuer) Token(header, claims string) string {
	return f.Sign(Base64(header) + "." + Base64(claims))
}

// Sign adds a good signature to any text.
func (f Issuer) Sign(signed string) string {
	return signed + "." + Base64(string(ed25519.Sign(f.key, []byte(signed))))
}

// Base64 returns s in the encoding of a segment of a token.
func Base64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// GoodClaims returns claims that are valid at now; more members may follow.
func GoodClaims(now time.Time, more string) string {
	return fmt.Sprintf(`{"aud":"nomadproject.io","iat":%d,"nbf":%[1]d,"exp":%d,"jti":"j","sub":"s"%s}`,
		now.Unix(), now.Unix()+3600, more)
}

// WithExp returns good claims except for exp, a JSON value.
func WithExp(exp string) string { return `{"aud":"nomadproject.io","exp":` + exp + `}` }

// WithAud returns good claims except for aud, a JSON value.
func WithAud(now time.Time, aud string) string {
	return fmt.Sprintf(`{"aud":%s,"exp":%d}`, aud, now.Unix()+3600)
}

// ManyNames returns n more members for GoodClaims.
func ManyNames(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"n%d":0`, i)
	}
	return b.String()
}

// Keyring returns a new key ring.
func Keyring(tb testing.TB) *identity.Keyring {
	tb.Helper()
	ring, err := identity.OpenKeyring(identity.KeyringConfig{Dir: filepath.Join(tb.TempDir(), "keyring")})
	if err != nil {
		tb.Fatal(err)
	}
	return ring
}

// Sign returns a token that the ring has signed.
func Sign(tb testing.TB, ring *identity.Keyring, c identity.Claims) string {
	tb.Helper()
	token, err := ring.Sign(c)
	if err != nil {
		tb.Fatal(err)
	}
	return token
}

// Rotate makes another key of the ring active, and returns the ID of the one before.
func Rotate(tb testing.TB, ring *identity.Keyring) string {
	tb.Helper()
	before := ring.Active().ID
	if _, err := ring.Rotate(); err != nil {
		tb.Fatal(err)
	}
	return before
}
