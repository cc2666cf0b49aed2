package identity_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"taskapi/identity"
)

// forger is another issuer, or an attacker who got hold of its key: it signs whatever it is given.
type forger struct {
	id  string
	key ed25519.PrivateKey
}

func newForger(id string, seed byte) forger {
	return forger{id, ed25519.NewKeyFromSeed([]byte(strings.Repeat(string(rune(seed)), ed25519.SeedSize)))}
}

func (f forger) public() ed25519.PublicKey { return f.key.Public().(ed25519.PublicKey) }

// jwk is the forger's public key, with more members if wanted.
func (f forger) jwk(more string) string {
	return fmt.Sprintf(`{"kty":"OKP","crv":"Ed25519","kid":%q,"x":%q%s}`, f.id, b64(string(f.public())), more)
}

// keySet returns the set of the forger's key.
func (f forger) keySet(tb testing.TB) *identity.KeySet {
	tb.Helper()
	set, err := identity.ParseJWKS([]byte(`{"keys":[` + f.jwk("") + `]}`))
	if err != nil {
		tb.Fatal(err)
	}
	return set
}

// header is a good header with the forger's kid, and more members if wanted.
func (f forger) header(more string) string {
	return fmt.Sprintf(`{"alg":"EdDSA","kid":%q,"typ":"JWT"%s}`, f.id, more)
}

// token signs header and claims as they are.
func (f forger) token(header, claims string) string { return f.sign(b64(header) + "." + b64(claims)) }

// sign adds a good signature to what may not be base64url at all.
func (f forger) sign(signed string) string {
	return signed + "." + b64(string(ed25519.Sign(f.key, []byte(signed))))
}

func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// goodClaims are valid at epoch; more members may follow.
func goodClaims(more string) string {
	return fmt.Sprintf(`{"aud":"nomadproject.io","iat":%d,"nbf":%[1]d,"exp":%d,"jti":"j","sub":"s"%s}`,
		epoch.Unix(), epoch.Unix()+3600, more)
}

// withExp are good claims but for exp, a JSON value.
func withExp(exp string) string { return `{"aud":"nomadproject.io","exp":` + exp + `}` }

// withAud are good claims but for aud, a JSON value.
func withAud(aud string) string {
	return fmt.Sprintf(`{"aud":%s,"exp":%d}`, aud, epoch.Unix()+3600)
}
