package identity

import (
	"crypto/ed25519"
	"maps"
	"slices"
)

// KeySource is where a verifier finds keys. Keys returns the current set at once, without a lock or any I/O; a source
// learns of changes elsewhere and swaps the set. A nil set is an empty one.
type KeySource interface {
	Keys() *KeySet
}

// KeySet is a set of public keys by key ID. It never changes.
type KeySet struct {
	keys    map[string]*publicKey
	skipped []SkippedKey
}

// SkippedKey is a key of a JWK set that is not for tokens here.
type SkippedKey struct {
	ID   string // kid, maybe empty
	Type string // kty, with the curve, algorithm and use where they decide: "OKP X25519", "RSA PS256", "RSA enc"
}

// publicKey is one key in the two forms that are compared and used.
type publicKey struct {
	alg *algorithm
	// bytes are those of an Ed25519 key, and a hash of another key and its algorithm.
	bytes [ed25519.PublicKeySize]byte
	// verifier holds an ed25519.PublicKey, a *rsa.PublicKey or an *ecdsa.PublicKey, as alg wants. It is an interface value
	// so that a verification need not allocate one.
	verifier any
}

func newPublicKey(key ed25519.PublicKey) *publicKey {
	p := &publicKey{alg: eddsa, bytes: [ed25519.PublicKeySize]byte(key)}
	p.verifier = ed25519.PublicKey(p.bytes[:])
	return p
}

// lookup returns the key with the ID, or nil.
func (s *KeySet) lookup(id string) *publicKey {
	if s == nil {
		return nil
	}
	return s.keys[id]
}

// Keys makes a set that never changes a KeySource.
func (s *KeySet) Keys() *KeySet { return s }

// Len returns how many keys the set has.
func (s *KeySet) Len() int { return len(s.IDs()) }

// Has reports whether the set has a key with the ID.
func (s *KeySet) Has(id string) bool { return s.lookup(id) != nil }

// IDs returns the IDs of the set's keys, sorted.
func (s *KeySet) IDs() []string {
	if s == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(s.keys))
}

// Skipped returns the keys of the JWK set that can't be used here.
func (s *KeySet) Skipped() []SkippedKey {
	if s == nil {
		return nil
	}
	return slices.Clone(s.skipped)
}
