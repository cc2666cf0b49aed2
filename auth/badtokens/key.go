package badtokens

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"math/big"
	"sync"

	"taskapi/identity"
)

// Key signs anything, as somebody with the key can.
type Key struct {
	ID     string
	signer crypto.Signer
}

// NewKey returns a Key. The signer is for Ed25519, such as that of a key ring, for RSA with 2048 bits or more, or for
// ECDSA with P-256, P-384 or P-521.
func NewKey(id string, signer crypto.Signer) Key { return Key{id, signer} }

// Public returns the public key.
func (k Key) Public() crypto.PublicKey { return k.signer.Public() }

// ecdsaAlgorithms are the algorithms of ECDSA (RFC 7518 section 3.4), by the size of the curve in bits.
var ecdsaAlgorithms = map[int]struct {
	alg, curve string
	hash       crypto.Hash
}{
	256: {"ES256", "P-256", crypto.SHA256},
	384: {"ES384", "P-384", crypto.SHA384},
	521: {"ES512", "P-521", crypto.SHA512},
}

// Algorithm returns the alg of good tokens: EdDSA, RS256, ES256, ES384 or ES512.
func (k Key) Algorithm() string {
	switch public := k.Public().(type) {
	case *rsa.PublicKey:
		return "RS256"
	case *ecdsa.PublicKey:
		return ecdsaAlgorithms[public.Params().BitSize].alg
	}
	return "EdDSA"
}

// JWK returns the public key as a JWK, with more members if wanted.
func (k Key) JWK(more string) string { return `{"kid":` + quote(k.ID) + "," + k.members() + more + "}" }

// members returns the members of a JWK that hold the key itself (RFC 7518 section 6, RFC 8037 section 2).
func (k Key) members() string {
	switch public := k.Public().(type) {
	case *rsa.PublicKey:
		return `"kty":"RSA","n":"` + encode(string(public.N.Bytes())) + `","e":"` +
			encode(string(big.NewInt(int64(public.E)).Bytes())) + `"`
	case *ecdsa.PublicKey:
		point := string(must(public.Bytes()))[1:]
		return `"kty":"EC","crv":"` + ecdsaAlgorithms[public.Params().BitSize].curve +
			`","x":"` + encode(point[:len(point)/2]) + `","y":"` + encode(point[len(point)/2:]) + `"`
	}
	return `"kty":"OKP","crv":"Ed25519","x":"` + encode(keyBytes(k)) + `"`
}

// KeySet returns a set with only the public key, for a verifier that trusts it.
func (k Key) KeySet() (*identity.KeySet, error) {
	return identity.ParseJWKS([]byte(`{"keys":[` + k.JWK("") + `]}`))
}

// Sign returns the signature of a text, as the key's algorithm wants it.
func (k Key) Sign(text string) []byte {
	switch public := k.Public().(type) {
	case *rsa.PublicKey:
		return k.signHash(text, crypto.SHA256)
	case *ecdsa.PublicKey:
		size := public.Params().BitSize
		var point struct{ R, S *big.Int }
		must(asn1.Unmarshal(k.signHash(text, ecdsaAlgorithms[size].hash), &point))
		bytes := (size + 7) / 8
		return append(point.R.FillBytes(make([]byte, bytes)), point.S.FillBytes(make([]byte, bytes))...)
	}
	return must(k.signer.Sign(nil, []byte(text), crypto.Hash(0)))
}

// signHash returns the signer's own signature of a text's hash.
func (k Key) signHash(text string, options crypto.SignerOpts) []byte {
	hash := options.HashFunc().New()
	hash.Write([]byte(text))
	return must(k.signer.Sign(rand.Reader, hash.Sum(nil), options))
}

// keyBytes returns the bytes of the public key that everybody can get: those of Ed25519, or else those of the key in
// DER.
func keyBytes(k Key) string {
	if public, ok := k.Public().(ed25519.PublicKey); ok {
		return string(public)
	}
	return string(must(x509.MarshalPKIXPublicKey(k.Public())))
}

// stranger returns a key for the same algorithm that nobody trusts, under the same ID.
func (k Key) stranger() Key {
	switch public := k.Public().(type) {
	case *rsa.PublicKey:
		return NewKey(k.ID, rsaKey())
	case *ecdsa.PublicKey:
		return NewKey(k.ID, must(ecdsa.GenerateKey(public.Curve, rand.Reader)))
	}
	seed := sha256.Sum256([]byte("a key that nobody trusts"))
	return NewKey(k.ID, ed25519.NewKeyFromSeed(seed[:]))
}

// ecdsaKey and rsaKey are keys that nobody trusts, made when they are first needed.
var (
	ecdsaKey = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })
	rsaKey   = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
)

// must returns the result of an operation that fails for no constant and no fresh key.
func must[T any](result T, err error) T {
	if err != nil {
		panic("badtokens: " + err.Error())
	}
	return result
}
