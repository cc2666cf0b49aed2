package identity

import (
	"bytes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"
)

var (
	// ErrForeignSeal means that a value was sealed with another key.
	ErrForeignSeal = errors.New("it was sealed with another key ring's seal key")
	// ErrBadSeal means that a sealed value was changed, or was sealed for another place.
	ErrBadSeal = errors.New("it is damaged, or was sealed for another place")
)

// Sealer seals values for their places with XChaCha20-Poly1305, by a key that is derived from the ring's seal key. So a
// rotation or the removal of signing keys affects no sealed value. Its methods may be called concurrently.
type Sealer struct {
	aead    cipher.AEAD
	purpose string
	id      []byte // of the key
}

const sealerIDSize = 8

// Sealer returns a sealer for one purpose, such as "variables". A value that was sealed for one purpose does not open
// for another.
func (k *Keyring) Sealer(purpose string) (*Sealer, error) {
	sealKey, err := k.readSealKey()
	if err != nil {
		return nil, fmt.Errorf("open key ring %s: %w", k.config.Dir, err)
	}
	return NewSealer(sealKey, purpose)
}

// NewSealer returns the sealer of a seal key for one purpose.
func NewSealer(sealKey []byte, purpose string) (*Sealer, error) {
	key, err := hkdf.Key(sha256.New, sealKey, nil, "taskapi seal "+purpose+" 1", chacha20poly1305.KeySize)
	if err != nil {
		return nil, err
	}
	id, err := hkdf.Key(sha256.New, sealKey, nil, "taskapi seal key ID", sealerIDSize)
	if err != nil {
		return nil, err
	}
	aead, err := chacha20poly1305.NewX(key)
	return &Sealer{aead, purpose, id}, err
}

// Seal seals a value for a place: the key's ID, a nonce, and the box.
func (s *Sealer) Seal(value []byte, place string) ([]byte, error) {
	sealed := make([]byte, sealerIDSize+s.aead.NonceSize(), sealerIDSize+s.aead.NonceSize()+len(value)+s.aead.Overhead())
	copy(sealed, s.id)
	nonce := sealed[sealerIDSize:]
	rand.Read(nonce) // never fails (crypto/rand)
	return s.aead.Seal(sealed, nonce, value, s.bound(place)), nil
}

// Open returns the value that was sealed for the place. Errors: ErrForeignSeal, ErrBadSeal.
func (s *Sealer) Open(sealed []byte, place string) ([]byte, error) {
	nonce := s.aead.NonceSize()
	if len(sealed) < sealerIDSize+nonce {
		return nil, ErrBadSeal
	}
	box, ours := bytes.CutPrefix(sealed, s.id)
	if !ours {
		return nil, ErrForeignSeal
	}
	value, err := s.aead.Open(nil, box[:nonce], box[nonce:], s.bound(place))
	if err != nil {
		return nil, ErrBadSeal
	}
	return value, nil
}

// bound returns the text that is authenticated with a value.
func (s *Sealer) bound(place string) []byte {
	return []byte("taskapi sealed 1\n" + s.purpose + "\n" + place)
}
