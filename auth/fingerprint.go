package auth

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"hash"
	"sync"
	"unsafe"

	"golang.org/x/crypto/blake2b"
)

// tag is a quick fingerprint of a token, digest a slow one. Neither tells anything of the token to who has not the keys, and
// the keys are of this process alone.
type (
	tag    [16]byte
	digest [blake2b.Size256]byte
)

// fingerprints computes the names under which tokens are remembered.
//
// digest is keyed BLAKE2b-256 (RFC 7693): 0.8 µs for a token of 560 bytes. tag is there because that alone is more than a
// cached request may cost: GMAC under a fixed nonce, that is GHASH, a universal hash (NIST SP 800-38D, section 6.4), masked by
// a constant; 0.13 µs. A fixed nonce would be fatal for a tag that anybody sees; these never leave the process. To an attacker
// who knows neither key nor tags, two different texts of n blocks agree with a probability of at most n/2^128, n ≤ 257 here. And who
// could make a text that agrees with a good token would have to know that token, and gain nothing but what it gives anyway.
type fingerprints struct {
	gmac    cipher.AEAD
	scratch sync.Pool // of *scratch
}

// scratch is what a computation writes to; on the stack it would escape through the interfaces of the standard library.
type scratch struct {
	nonce [12]byte // zero
	tag   tag
	mac   hash.Hash // keyed, and reset after each use: a digest keeps the end of its input
	sum   digest
}

// newFingerprints draws the keys.
func newFingerprints() (*fingerprints, error) {
	var key [16]byte
	var macKey [blake2b.Size256]byte
	_, _ = rand.Read(key[:]) // never fails: it ends the process instead
	_, _ = rand.Read(macKey[:])
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	gmac, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	if _, err := blake2b.New256(macKey[:]); err != nil {
		return nil, err
	}
	return &fingerprints{gmac: gmac, scratch: sync.Pool{New: func() any {
		mac, _ := blake2b.New256(macKey[:]) // the key's length is right: it has been tried
		return &scratch{mac: mac}
	}}}, nil
}

// tag is the quick fingerprint.
func (f *fingerprints) tag(token string) tag {
	s := f.scratch.Get().(*scratch)
	f.gmac.Seal(s.tag[:0], s.nonce[:], nil, bytesOf(token))
	t := s.tag
	f.scratch.Put(s)
	return t
}

// digest is the slow one.
func (f *fingerprints) digest(token string) digest {
	s := f.scratch.Get().(*scratch)
	_, _ = s.mac.Write(bytesOf(token)) // never fails: see hash.Hash
	s.mac.Sum(s.sum[:0])
	s.mac.Reset()
	d := s.sum
	f.scratch.Put(s)
	return d
}

// bytesOf is the string's bytes, to be read only. A copy would cost time and leave a token lying in memory.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
