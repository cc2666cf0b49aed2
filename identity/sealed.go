package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
)

// The ring's file is one line that names the format, a nonce, and the ring as JSON, sealed with XChaCha20-Poly1305
// (draft-irtf-cfrg-xchacha). The line is authenticated as well. Keys, their IDs and the choice of the active key are
// sealed together, so no single one can be exchanged, brought back or removed.
const (
	sealedFormat = "taskapi keyring 1\n"
	// sealedFamily begins the format line of every version.
	sealedFamily = "taskapi keyring "
	// sealedLimit bounds the file: room for thousands of keys.
	sealedLimit = 1 << 20
)

var (
	errSealKeySize = errors.New("is not 32 bytes long")
	errNewerFormat = errors.New("was written by a newer taskapi")
	errNotOpened   = errors.New("does not open with the seal key: one of the two was changed, or is another ring's")
)

// storedRing is the ring as it is sealed. It holds the seed of the active key only, so a key that was rotated out can
// verify and never sign.
type storedRing struct {
	Keys []storedKey `json:"keys"` // oldest first, the last one active
	Seed []byte      `json:"seed"` // of the active key, 32 bytes (RFC 8032 section 5.1.5)
}

type storedKey struct {
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"created_at"`
	Public    []byte    `json:"public"`
}

func (s *storedRing) seal(sealKey []byte) ([]byte, error) {
	aead, err := chacha20poly1305.NewX(sealKey)
	if err != nil {
		return nil, err
	}
	document, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, aead.NonceSize())
	rand.Read(nonce) // never fails (crypto/rand)
	file := append([]byte(sealedFormat), nonce...)
	return aead.Seal(file, nonce, document, []byte(sealedFormat)), nil
}

func unseal(file, sealKey []byte) (*storedRing, error) {
	aead, err := chacha20poly1305.NewX(sealKey)
	if err != nil {
		return nil, err
	}
	box, ok := bytes.CutPrefix(file, []byte(sealedFormat))
	switch {
	case !ok && bytes.HasPrefix(file, []byte(sealedFamily)):
		return nil, errNewerFormat
	case !ok || len(box) < aead.NonceSize():
		return nil, errNotOpened
	}
	document, err := aead.Open(nil, box[:aead.NonceSize()], box[aead.NonceSize():], []byte(sealedFormat))
	if err != nil {
		return nil, errNotOpened
	}
	s := new(storedRing)
	if err := json.Unmarshal(document, s); err != nil {
		return nil, fmt.Errorf("holds what no taskapi writes: %w", err)
	}
	return s, s.check()
}

// check checks the ring's shape. An authentic ring was written by taskapi, so this only keeps a mistake of ours from
// becoming a panic.
func (s *storedRing) check() error {
	if len(s.Keys) == 0 || len(s.Seed) != ed25519.SeedSize {
		return errors.New("holds no active key")
	}
	for _, k := range s.Keys {
		if len(k.Public) != ed25519.PublicKeySize || !validKeyID(k.ID) {
			return errors.New("holds a key of a wrong shape")
		}
	}
	active := ed25519.NewKeyFromSeed(s.Seed).Public().(ed25519.PublicKey)
	if !active.Equal(ed25519.PublicKey(s.Keys[len(s.Keys)-1].Public)) {
		return errors.New("holds a seed that is not the active key's")
	}
	return nil
}
