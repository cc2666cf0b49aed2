package badtokens

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"io"
	"math/big"
	"strings"
	"time"

	"taskapi/identity"
)

// Set is a JWK set with which something is wrong, and a token whose signature the set seems to vouch for. A verifier
// must refuse the token: because of the token, of the key, or of the whole set.
type Set struct {
	Name     string // in small letters with dashes, never changed
	Wrong    string // what is wrong with the set
	Document string // the JWK set
	Token    string

	// Strict sets are those that a verifier may use by RFC 7517, or that well-known libraries take.
	Strict bool
}

// Sets returns bad JWK sets. The claims of their tokens are good at now.
func Sets(now time.Time, claims identity.Claims) []Set {
	good := func(k Key) string { return Good{Key: k, Now: now, Claims: claims}.Token() }
	set := func(keys ...string) string { return `{"keys":[` + strings.Join(keys, ",") + `]}` }
	p256 := NewKey("k", must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)))
	p384 := NewKey("k", must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader)))
	rsa2048 := NewKey("k", must(rsa.GenerateKey(rand.Reader, 2048)))
	rsa1024 := NewKey("k", must(rsa.GenerateKey(rand.Reader, 1024)))
	_, private, _ := ed25519.GenerateKey(nil) // crypto/rand never fails
	own, exponent1 := NewKey("k", private), NewKey("k", raising{rsa2048.Public().(*rsa.PublicKey).N})
	neutral := "\x01" + strings.Repeat("\x00", 31)
	small := base{Good{Key: own, Now: now, Claims: claims}}
	secret := strings.Repeat("s", 32)
	unsigned := small.unsigned(headerOf("HS256", "k", ""))
	mac := hmac.New(sha256.New, []byte(secret))
	io.WriteString(mac, unsigned) //nolint:errcheck // a hash takes everything
	return []Set{
		{Name: "rsa-1024", Wrong: "an RSA key of 1024 bits", Document: set(rsa1024.JWK("")), Token: good(rsa1024)},
		{Name: "rsa-exponent-1", Wrong: "an RSA key with e 1, for which everybody can sign",
			Document: set(exponent1.JWK("")), Token: good(exponent1)},
		{Name: "small-order", Wrong: "an Ed25519 key of small order, for which one signature is that of every text",
			Document: set(`{"kid":"k","kty":"OKP","crv":"Ed25519","x":"` + encode(neutral) + `"}`),
			Token:    small.unsigned(small.header("")) + "." + encode(neutral+strings.Repeat("\x00", 32))},
		{Name: "off-the-curve", Wrong: "a P-256 key that is no point of the curve",
			Document: set(swapped(p256.JWK(""))), Token: good(p256)},
		{Name: "secret", Wrong: "a secret for HS256, which everybody can read",
			Document: set(`{"kid":"k","kty":"oct","alg":"HS256","k":"` + encode(secret) + `"}`),
			Token:    unsigned + "." + encode(string(mac.Sum(nil)))},
		{Name: "alg-of-another-key", Wrong: "a key whose alg is not for its kty",
			Document: set(rsa2048.JWK(`,"alg":"ES256"`)), Token: good(rsa2048)},
		{Name: "alg-of-another-hash", Wrong: "an RSA key for RS512, and a token with RS256",
			Document: set(rsa2048.JWK(`,"alg":"RS512"`)), Token: good(rsa2048)},
		{Name: "use-enc", Wrong: "a key for encryption alone", Document: set(p256.JWK(`,"use":"enc"`)), Token: good(p256)},
		{Name: "key-ops-encrypt", Wrong: "a key whose operation is encrypt",
			Document: set(rsa2048.JWK(`,"key_ops":["encrypt"]`)), Token: good(rsa2048), Strict: true},
		{Name: "curve-of-another-size", Wrong: "a P-384 key called P-256",
			Document: set(strings.Replace(p384.JWK(""), "P-384", "P-256", 1)), Token: good(p384)},
		{Name: "kid-twice", Wrong: "two keys with one kid, the second of which has signed",
			Document: set(own.JWK(""), p256.JWK("")), Token: good(p256), Strict: true},
		{Name: "private", Wrong: "a key with its private part, which everybody can read",
			Document: set(strings.TrimSuffix(own.JWK(""), "}") + `,"d":"` + encode(string(private.Seed())) + `"}`),
			Token:    good(own), Strict: true},
		{Name: "huge", Wrong: "a set of 16 MiB", Document: set(own.JWK("")) + strings.Repeat(" ", 16<<20),
			Token: good(own), Strict: true},
		{Name: "member-twice", Wrong: `"keys" twice, of which one reader takes the first and another the last`,
			Document: `{"keys":[],"keys":[` + own.JWK("") + `]}`, Token: good(own), Strict: true},
		{Name: "cut", Wrong: "a set without its end", Document: strings.TrimSuffix(set(own.JWK("")), "}"), Token: good(own)},
		{Name: "empty", Wrong: "no keys", Document: set(), Token: good(own)},
	}
}

// swapped returns a JWK of ECDSA with x in the place of y.
func swapped(jwk string) string {
	_, after, _ := strings.Cut(jwk, `"x":"`)
	x, rest, _ := strings.Cut(after, `"`)
	_, y, _ := strings.Cut(rest, `"y":"`)
	return strings.Replace(jwk, strings.TrimSuffix(y, `"}`), x, 1)
}

// raising is a signer for RSA with e 1: a signature is what it signs, padded.
type raising struct{ modulus *big.Int }

func (r raising) Public() crypto.PublicKey { return &rsa.PublicKey{N: r.modulus, E: 1} }

// Sign returns the padded hash by RFC 8017 section 9.2, with the prefix for SHA-256.
func (r raising) Sign(_ io.Reader, hash []byte, _ crypto.SignerOpts) ([]byte, error) {
	prefix := "\x30\x31\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x01\x05\x00\x04\x20" + string(hash)
	size := (r.modulus.BitLen() + 7) / 8
	return []byte("\x00\x01" + strings.Repeat("\xff", size-3-len(prefix)) + "\x00" + prefix), nil
}
