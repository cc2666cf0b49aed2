package identity

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"taskapi/identity/internal/strictjson"
)

// ErrKeySet means that a whole JWK set is refused.
var ErrKeySet = errors.New("key set refused")

// keySetLimit bounds a JWK set: thousands of keys. A Nomad cluster has a handful.
const keySetLimit = 1 << 20

// keySetLimits bound the set's JSON: a set holds keys, which hold lists.
var keySetLimits = strictjson.Limits{Depth: 4, Names: 1 << 15}

// Names of RFC 7517 and RFC 8037 that are written as well as read.
const (
	keyType  = "OKP"
	keyCurve = "Ed25519"
	keyUse   = "sig"
)

// privateMembers are the members of a JWK that hold private or secret key material (RFC 7518 sections 6.2.2, 6.3.2 and
// 6.4, RFC 8037 section 2).
var privateMembers = []string{"d", "p", "q", "dp", "dq", "qi", "oth", "k"}

// ParseJWKS reads a JWK set (RFC 7517 section 5). Keys that are not Ed25519 are skipped; KeySet.Skipped names them.
// Some keys have the whole set refused, since their author made a mistake that must not be guessed at: a key that holds
// private material, one with the kid of another, and an Ed25519 key without a valid kid, with a use or an algorithm
// other than its own, or whose public key is no point of the curve or one of small order. The error wraps ErrKeySet and
// names the key.
func ParseJWKS(document []byte) (*KeySet, error) {
	if len(document) > keySetLimit {
		return nil, fmt.Errorf("%w: longer than %d bytes", ErrKeySet, keySetLimit)
	}
	keys, err := readJWKs(string(document))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKeySet, err)
	}
	set := &KeySet{keys: make(map[string]*publicKey, len(keys))}
	seen := make(map[string]bool, len(keys))
	for i := range keys {
		k := &keys[i]
		id, named := k.texts["kid"]
		if named && seen[id] {
			err = errors.New("another key has the same kid")
		} else {
			err = set.add(k)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: key %d, kid %.64q: %w", ErrKeySet, i+1, id, err)
		}
		seen[id] = true
	}
	return set, nil
}

// jwk is a key as it stands in a set.
type jwk struct {
	texts      map[string]string // the members of textMembers that it has
	operations []string          // of key_ops; nil without it
	private    bool
}

var textMembers = []string{"kty", "crv", "kid", "use", "alg", "x"}

func readJWKs(document string) ([]jwk, error) {
	var r strictjson.Reader
	r.Reset(document, keySetLimits)
	var keys []jwk
	found := false
	for r.Object(); r.Next(); {
		if r.Name() != "keys" {
			r.Skip()
			continue
		}
		found = true
		for r.Array(); r.Next(); {
			keys = append(keys, readJWK(&r))
		}
	}
	if err := r.End(); err != nil {
		return nil, err
	}
	if !found {
		return nil, errors.New(`has no "keys"`)
	}
	return keys, nil
}

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

// add adds one key to the set, or skips it.
func (s *KeySet) add(k *jwk) error {
	kind, curve, id, x := k.texts["kty"], k.texts["crv"], k.texts["kid"], k.texts["x"]
	alg, hasAlg := k.texts["alg"]
	use, hasUse := k.texts["use"]
	ed25519Key := kind == keyType && curve == keyCurve
	switch {
	case k.private:
		return errors.New("holds private key material: publish public keys alone, and replace this key, which is now known")
	case kind == "":
		return errors.New("has no kty")
	case !ed25519Key && alg == algorithm:
		return errors.New("alg is EdDSA, which is not for a key of this kty and crv")
	case !ed25519Key:
		named := fmt.Sprintf("%.16s", kind)
		if kind == keyType {
			named += fmt.Sprintf(" %.16s", curve)
		}
		s.skipped = append(s.skipped, SkippedKey{ID: id, Type: named})
		return nil
	case !validKeyID(id):
		return errors.New("kid is not 1 to 64 letters, digits, '.', '_' and '-'")
	case hasAlg && alg != algorithm:
		return errors.New("alg is not EdDSA, the one that fits the key")
	case hasUse && use != keyUse:
		return errors.New("use is not sig")
	case k.operations != nil && !slices.Equal(k.operations, []string{"verify"}):
		return errors.New("key_ops is not verify alone")
	}
	var raw [ed25519.PublicKeySize]byte
	if len(x) != base64.RawURLEncoding.EncodedLen(len(raw)) {
		return errors.New("x is not 32 bytes in base64url")
	}
	if n, ok := decodeSegment(raw[:], x); !ok || n != len(raw) {
		return errors.New("x is not 32 bytes in canonical base64url")
	}
	if err := checkPoint(raw[:]); err != nil {
		return fmt.Errorf("x %w", err)
	}
	s.keys[id] = newPublicKey(raw[:])
	return nil
}

// JWKS returns the ring's public keys as a JWK set, the active key first.
func (k *Keyring) JWKS() []byte {
	type key struct {
		Type  string `json:"kty"`
		Curve string `json:"crv"`
		Use   string `json:"use"`
		Alg   string `json:"alg"`
		ID    string `json:"kid"`
		X     string `json:"x"`
	}
	var set struct {
		Keys []key `json:"keys"`
	}
	ring := k.current.Load()
	for _, info := range ring.infos {
		x := base64.RawURLEncoding.EncodeToString(ring.keys.keys[info.ID].bytes[:])
		set.Keys = append(set.Keys, key{Type: keyType, Curve: keyCurve, Use: keyUse, Alg: algorithm, ID: info.ID, X: x})
	}
	return mustEncode(set)
}

// OpenIDConfiguration returns the document of /.well-known/openid-configuration, with the members that OpenID Connect
// Discovery 1.0 section 3 requires and Nomad answers. issuer is the iss of the tokens, and jwksURI the URL of the JWK
// set.
func OpenIDConfiguration(issuer, jwksURI string) []byte {
	return mustEncode(struct {
		Issuer        string   `json:"issuer"`
		JWKSURI       string   `json:"jwks_uri"`
		Algorithms    []string `json:"id_token_signing_alg_values_supported"`
		ResponseTypes []string `json:"response_types_supported"`
		SubjectTypes  []string `json:"subject_types_supported"`
	}{issuer, jwksURI, []string{algorithm}, []string{"code"}, []string{"public"}})
}

// mustEncode encodes a structure of strings, which can't fail.
func mustEncode(v any) []byte {
	document, err := json.Marshal(v)
	if err != nil {
		panic("identity: encode strings: " + err.Error())
	}
	return document
}
