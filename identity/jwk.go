package identity

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"taskapi/identity/internal/strictjson"
	"taskapi/internal/slice"
)

const (
	// minModulus is the least size of an RSA key in bits: RFC 7518 section 3.3.
	minModulus = 2048
	// maxModulus bounds the work for one signature, which takes four times as long with twice the bits. A larger key is
	// skipped.
	maxModulus = 4096
	// minExponent and maxExponent bound e: FIPS 186-5 appendix A.1.1, and what crypto/rsa takes.
	minExponent, maxExponent = 1<<16 + 1, 1<<31 - 1
)

// curves are the curves of ECDSA keys, by crv, with the one algorithm that each is for (RFC 7518 section 3.4).
var curves = map[string]struct {
	elliptic.Curve
	alg string
}{
	"P-256": {elliptic.P256(), "ES256"},
	"P-384": {elliptic.P384(), "ES384"},
	"P-521": {elliptic.P521(), "ES512"},
}

// privateMembers are the members of a JWK that hold private or secret key material (RFC 7518 sections 6.2.2, 6.3.2 and
// 6.4, RFC 8037 section 2).
var privateMembers = []string{"d", "p", "q", "dp", "dq", "qi", "oth", "k"}

type jwk struct {
	texts      map[string]string // the members of textMembers that it has
	operations []string          // of key_ops; nil without it
	private    bool
}

var textMembers = []string{"kty", "crv", "kid", "use", "alg", "x", "y", "n", "e"}

func readJWK(r *strictjson.Reader) jwk {
	k := jwk{texts: map[string]string{}}
	for r.Object(); r.Next(); {
		switch name := r.Name(); {
		case slices.Contains(textMembers, name):
			k.texts[name] = r.Text()
		case name == "key_ops":
			k.operations = []string{}
			for r.Array(); r.Next(); {
				k.operations = append(k.operations, r.Text())
			}
		default:
			k.private = k.private || slices.Contains(privateMembers, name)
			r.Skip()
		}
	}
	return k
}

// errSkipped means that a key is not for the signatures of tokens, or not for those that are verified here.
var errSkipped = errors.New("not for tokens here")

// public returns the public key. The error is errSkipped, or says what its author did wrong.
func (k *jwk) public() (*publicKey, error) {
	if k.private {
		return nil, errors.New(
			"holds private key material: publish public keys alone, and replace this key, which is now known")
	}
	alg, err := k.algorithm()
	if err != nil {
		return nil, err
	}
	ours := alg == eddsa // the rules for Ed25519 are strict: its sets are made for tokens alone
	use, hasUse := k.texts["use"]
	wrong := ""
	switch {
	case !validKeyID(k.texts["kid"]):
		wrong = "kid is not 1 to 64 letters, digits, '.', '_' and '-'"
	case hasUse && use != keyUse && (ours || use != keyUseSPIFFE):
		wrong = "use is not sig"
	case k.operations != nil && !slices.Equal(k.operations, []string{"verify"}):
		wrong = "key_ops is not verify alone"
	}
	switch {
	case wrong != "" && !ours:
		return nil, errSkipped
	case wrong != "":
		return nil, errors.New(wrong)
	case ours:
		return k.ed25519Key()
	case k.texts["kty"] == "RSA":
		return k.rsaKey(alg)
	}
	return k.ecdsaKey(alg)
}

// algorithm returns the one algorithm that the key is for: that of its alg, or the usual one of its kty and crv.
func (k *jwk) algorithm() (*algorithm, error) {
	alg, hasAlg := k.texts["alg"]
	kind, curve := k.texts["kty"], k.texts["crv"]
	usual, fits := "", func(alg string) bool { return false }
	switch {
	case kind == "":
		return nil, errors.New("has no kty")
	case kind == keyType && curve == keyCurve:
		if hasAlg && alg != eddsa.name {
			return nil, errors.New("alg is not EdDSA, the one that fits the key")
		}
		return eddsa, nil
	case kind == "RSA":
		usual, fits = "RS256", func(alg string) bool { return strings.HasPrefix(alg, "RS") }
	case kind == "EC":
		usual = curves[curve].alg
		fits = func(alg string) bool { return alg == usual }
	}
	if !hasAlg {
		alg = usual
	}
	found := algorithmOf(alg)
	switch {
	case found == nil && strings.HasPrefix(alg, "HS"), found != nil && !fits(alg):
		return nil, fmt.Errorf("alg is %s, which is not for a key of this kty and crv", alg)
	case found == nil:
		return nil, errSkipped
	}
	return found, nil
}

// kind names the kind of a key that is skipped: kty, with what else decides it.
func (k *jwk) kind() string {
	words := []string{k.texts["kty"], k.texts["crv"], k.texts["alg"]}
	if use := k.texts["use"]; use != keyUse && use != keyUseSPIFFE {
		words = append(words, use)
	}
	words = slices.DeleteFunc(words, func(word string) bool { return word == "" })
	return strings.Join(slice.Map(words, func(word string) string { return fmt.Sprintf("%.16s", word) }), " ")
}

func (k *jwk) ed25519Key() (*publicKey, error) {
	raw, err := k.octets("x", ed25519.PublicKeySize)
	if err != nil {
		return nil, err
	}
	if err := checkPoint(raw); err != nil {
		return nil, fmt.Errorf("x %w", err)
	}
	return newPublicKey(raw), nil
}

// rsaKey reads a key by RFC 7518 section 6.3.1. A leading zero octet, which that section forbids and some issuers
// write, changes nothing.
func (k *jwk) rsaKey(alg *algorithm) (*publicKey, error) {
	modulus, ok := k.integer("n")
	switch {
	case !ok:
		return nil, errors.New("n is not a number in canonical base64url")
	case modulus.BitLen() > maxModulus:
		return nil, errSkipped
	case modulus.BitLen() < minModulus:
		return nil, fmt.Errorf("n has %d bits, less than %d: replace this weak key", modulus.BitLen(), minModulus)
	case modulus.Bit(0) == 0:
		return nil, errors.New("n is even, and so the product of no two large primes")
	}
	exponent, ok := k.integer("e")
	if !ok || exponent.Bit(0) == 0 || exponent.Cmp(big.NewInt(minExponent)) < 0 ||
		exponent.Cmp(big.NewInt(maxExponent)) > 0 {
		return nil, fmt.Errorf("e is not an odd number from %d to %d: replace this weak key", minExponent, maxExponent)
	}
	key := &rsa.PublicKey{N: modulus, E: int(exponent.Int64())}
	return otherPublicKey(alg, key, modulus.Bytes(), exponent.Bytes()), nil
}

// ecdsaKey reads a key by RFC 7518 section 6.2.1.
func (k *jwk) ecdsaKey(alg *algorithm) (*publicKey, error) {
	curve := curves[k.texts["crv"]].Curve
	size := (curve.Params().BitSize + 7) / 8
	x, err := k.octets("x", size)
	if err != nil {
		return nil, err
	}
	y, err := k.octets("y", size)
	if err != nil {
		return nil, err
	}
	point := slices.Concat([]byte{4}, x, y) // SEC 1 section 2.3.3
	key, err := ecdsa.ParseUncompressedPublicKey(curve, point)
	if err != nil {
		return nil, errors.New("x and y are no point of the curve")
	}
	return otherPublicKey(alg, key, point), nil
}

// octets returns the member's bytes, of which there must be size.
func (k *jwk) octets(member string, size int) ([]byte, error) {
	text := k.texts[member]
	raw := make([]byte, base64.RawURLEncoding.DecodedLen(len(text)))
	if len(text) != base64.RawURLEncoding.EncodedLen(size) {
		return nil, fmt.Errorf("%s is not %d bytes in base64url", member, size)
	}
	if n, ok := decodeSegment(raw, text); !ok || n != size {
		return nil, fmt.Errorf("%s is not %d bytes in canonical base64url", member, size)
	}
	return raw, nil
}

// integer returns the member's number (RFC 7518 section 2, Base64urlUInt), and whether it is one.
func (k *jwk) integer(member string) (*big.Int, bool) {
	text := k.texts[member]
	if text == "" || len(text) > MaxTokenLength { // which decodeSegment takes
		return nil, false
	}
	raw := make([]byte, base64.RawURLEncoding.DecodedLen(len(text)))
	_, ok := decodeSegment(raw, text)
	return new(big.Int).SetBytes(raw), ok
}

// otherPublicKey returns a key of another kind than ours. Its parts are its bytes, in one form alone.
func otherPublicKey(alg *algorithm, key any, parts ...[]byte) *publicKey {
	hash := sha256.New()
	for _, part := range append([][]byte{[]byte(alg.name)}, parts...) {
		fmt.Fprintf(hash, "%d:", len(part)) // a hash takes everything
		hash.Write(part)
	}
	return &publicKey{alg: alg, bytes: [sha256.Size]byte(hash.Sum(nil)), verifier: key}
}
