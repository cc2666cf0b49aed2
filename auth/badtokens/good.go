package badtokens

import (
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"taskapi/identity"
)

// Key signs whatever it is given, as somebody could who got hold of it.
type Key struct {
	ID     string
	signer crypto.Signer
}

// NewKey returns a Key. The signer is one of Ed25519: an ed25519.PrivateKey, or that of a key ring.
func NewKey(id string, signer crypto.Signer) Key { return Key{id, signer} }

// Public returns the public key.
func (k Key) Public() ed25519.PublicKey { return k.signer.Public().(ed25519.PublicKey) }

// KeySet returns a set with the public key alone, for a verifier that is to trust it.
func (k Key) KeySet() (*identity.KeySet, error) {
	const set = `{"keys":[{"kty":"OKP","crv":"Ed25519","kid":%s,"x":%s}]}`
	return identity.ParseJWKS(fmt.Appendf(nil, set, quote(k.ID), quote(encode(string(k.Public())))))
}

// Sign returns the signature of a text.
func (k Key) Sign(text string) []byte {
	signature, err := k.signer.Sign(nil, []byte(text), crypto.Hash(0))
	if err != nil {
		panic("badtokens: sign with Ed25519: " + err.Error()) // needs no randomness and takes every text
	}
	return signature
}

// stranger returns a key that nobody trusts, under an ID.
func stranger(id string) Key {
	seed := sha256.Sum256([]byte("a key that nobody trusts"))
	return NewKey(id, ed25519.NewKeyFromSeed(seed[:]))
}

// Good says what a good token is, at a time. All fields but OtherKeyID and Extra are required.
type Good struct {
	Key    Key
	Now    time.Time       // the verifier's
	Claims identity.Claims // good at Now
	Extra  map[string]any  // more claims, which take the place of those of the same name

	OtherKeyID string // of another key that the verifier trusts
}

// Token returns the good token.
func (g Good) Token() string {
	b := base{g}
	return b.token(b.header(""), b.claims().String())
}

// base makes tokens that are nearly good.
type base struct{ Good }

// header returns the good header, with more members if wanted.
func (b base) header(more string) string { return headerOf("EdDSA", b.Key.ID, more) }

func headerOf(alg, kid, more string) string {
	return `{"alg":` + quote(alg) + `,"kid":` + quote(kid) + `,"typ":"JWT"` + more + `}`
}

// token signs header and claims as they are.
func (b base) token(header, claims string) string {
	return b.sign(encode(header) + "." + encode(claims))
}

// sign adds a good signature to what may not be base64url at all.
func (b base) sign(signed string) string { return signed + "." + encode(string(b.Key.Sign(signed))) }

// withHeader returns the good token under another header.
func (b base) withHeader(header string) string { return b.token(header, b.claims().String()) }

// withClaims returns the good token with other claims.
func (b base) withClaims(claims string) string { return b.token(b.header(""), claims) }

// unsigned returns what is signed of a token with that header and the good claims.
func (b base) unsigned(header string) string {
	return encode(header) + "." + encode(b.claims().String())
}

// encode returns a segment.
func encode(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// quote returns s as a JSON string.
func quote(s string) string {
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always can be
	return strings.TrimSuffix(text.String(), "\n")
}

// document is an object of JSON, whose values are texts of JSON and whose names may be there twice.
type document []pair

type pair struct{ name, value string }

// claims returns the good claims, under the names of RFC 7519, Nomad's, and ours.
func (b base) claims() document {
	c := &b.Claims
	audience := quoteAll(c.Audience)
	if len(c.Audience) == 1 {
		audience = quote(c.Audience[0])
	}
	d := document{{"aud", audience}}
	for _, t := range []struct {
		name string
		at   int64
	}{{"exp", c.ExpiresAt}, {"iat", c.IssuedAt}, {"nbf", c.NotBefore}} {
		if t.at != 0 {
			d = append(d, pair{t.name, fmt.Sprint(t.at)})
		}
	}
	for _, t := range []pair{
		{"iss", c.Issuer}, {"jti", c.ID}, {"sub", c.Subject},
		{"nomad_namespace", c.Namespace}, {"nomad_job_id", c.JobID},
		{"nomad_allocation_id", c.AllocationID}, {"nomad_task", c.Task},
		{"taskapi_role", string(c.Role)}, {"taskapi_allocation_life", c.Life},
	} {
		if t.value != "" {
			d = append(d, pair{t.name, quote(t.value)})
		}
	}
	for name, value := range b.Extra {
		d = d.with(name, encodeJSON(value))
	}
	return d
}

// operators returns the good claims as the operator's of the same allocation.
func (b base) operators() document {
	subject := b.Claims.Subject
	if parts := strings.Split(subject, ":"); len(parts) == 6 {
		subject = strings.Join(append(parts[:4], "", string(identity.RoleOperator)), ":")
	}
	role := quote(string(identity.RoleOperator))
	return b.claims().without("nomad_task").with("sub", quote(subject)).with("taskapi_role", role)
}

func quoteAll(texts []string) string {
	quoted := make([]string, len(texts))
	for i, t := range texts {
		quoted[i] = quote(t)
	}
	return "[" + strings.Join(quoted, ",") + "]"
}

// encodeJSON returns a claim's value. One that JSON can't express is its text.
func encodeJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return quote(fmt.Sprint(value))
	}
	return string(text)
}

// with returns the document with a member in the place of that of the same name, or at its end.
func (d document) with(name, value string) document {
	d = append(document(nil), d...)
	for i := range d {
		if d[i].name == name {
			d[i].value = value
			return d
		}
	}
	return append(d, pair{name, value})
}

// without returns the document without a member.
func (d document) without(name string) document {
	var rest document
	for _, m := range d {
		if m.name != name {
			rest = append(rest, m)
		}
	}
	return rest
}

// value returns a member's value.
func (d document) value(name string) string {
	for _, m := range d {
		if m.name == name {
			return m.value
		}
	}
	return "null"
}

// String returns the document's text.
func (d document) String() string {
	var b strings.Builder
	for i, m := range d {
		b.WriteString(map[bool]string{true: "{", false: ","}[i == 0])
		b.WriteString(quote(m.name) + ":" + m.value)
	}
	return b.String() + "}"
}
