package identity

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

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

// keyUseSPIFFE is the use of a key of a SPIFFE bundle that signs JWT-SVIDs (SPIFFE Trust Domain and Bundle section
// 4.2.2).
const keyUseSPIFFE = "jwt-svid"

// ParseJWKS reads a JWK set (RFC 7517 section 5): keys for EdDSA with Ed25519, RS256, RS384, RS512, ES256, ES384 and
// ES512. Each key is for one algorithm: that of its alg, or else the usual one of its kty and crv, RS256 for RSA. Keys
// for other purposes and algorithms, and RSA and EC keys without a valid kid, are skipped; KeySet.Skipped names them.
//
// Some keys have the whole set refused, since their author made a mistake that must not be guessed at: a key that holds
// private material, one with the kid of another, one whose alg does not fit it, a weak key (RSA below 2048 bits or with
// an e below 65537, a public key that is no point of its curve, or of small order), and an Ed25519 key without a valid
// kid, or with another use. The error wraps ErrKeySet and names the key.
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

// add adds one key to the set, or skips it.
func (s *KeySet) add(k *jwk) error {
	id := k.texts["kid"]
	key, err := k.public()
	switch {
	case errors.Is(err, errSkipped):
		s.skipped = append(s.skipped, SkippedKey{ID: id, Type: k.kind()})
		return nil
	case err == nil:
		s.keys[id] = key
	}
	return err
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
		set.Keys = append(set.Keys, key{Type: keyType, Curve: keyCurve, Use: keyUse, Alg: eddsa.name, ID: info.ID, X: x})
	}
	return mustEncode(set)
}

// OpenIDConfiguration returns the document of /.well-known/openid-configuration, with the members that OpenID Connect
// Discovery 1.0 section 3 requires and Nomad answers, and the names of the claims. issuer is the iss of the tokens, and
// jwksURI the URL of the JWK set.
func OpenIDConfiguration(issuer, jwksURI string) []byte {
	return mustEncode(struct {
		Issuer        string   `json:"issuer"`
		JWKSURI       string   `json:"jwks_uri"`
		Algorithms    []string `json:"id_token_signing_alg_values_supported"`
		ResponseTypes []string `json:"response_types_supported"`
		SubjectTypes  []string `json:"subject_types_supported"`
		Claims        []string `json:"claims_supported"`
	}{issuer, jwksURI, []string{eddsa.name}, []string{"code"}, []string{"public"}, claimNames()})
}

// mustEncode encodes a structure of strings, which can't fail.
func mustEncode(v any) []byte {
	document, err := json.Marshal(v)
	if err != nil {
		panic("identity: encode strings: " + err.Error())
	}
	return document
}
