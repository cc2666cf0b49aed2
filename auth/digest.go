package auth

import (
	"crypto/rand"
	"hash"
	"hash/maphash"
	"sync"
	"unsafe"

	"golang.org/x/crypto/blake2b"
)

// digest is the name under which a token is remembered: keyed BLAKE2b-256 (RFC 7693), with a key of this process alone. Whoever
// reads it in memory learns nothing of the token.
type digest [blake2b.Size256]byte

// tag is the quick name, 128 bits: maphash under two seeds of this process.
//
// A digest takes 0.8 µs for a token of 560 bytes, more than a cached request may cost in all; a tag takes 0.08 µs. It is no
// cryptographic hash, and need not be one: to be taken for a good token, a text must agree with it in 128 bits that depend on every
// bit of the token's 512-bit signature and on seeds that nobody sees. Who does not know the signature can only guess; and who
// knows it, and so the token, gains nothing by a text that is taken for it.
type tag [2]uint64

// tokenDigests computes both.
type tokenDigests struct {
	seeds   [2]maphash.Seed
	digests sync.Pool // of *digester
}

// digester is what a computation writes to; on the stack it would escape through hash.Hash.
type digester struct {
	mac hash.Hash // keyed, and reset after each use: it holds the end of its input until then
	sum digest
}

// newTokenDigests draws the keys.
func newTokenDigests() (*tokenDigests, error) {
	var key [blake2b.Size256]byte
	_, _ = rand.Read(key[:]) // never fails: it ends the process instead
	if _, err := blake2b.New256(key[:]); err != nil {
		return nil, err
	}
	return &tokenDigests{
		seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		digests: sync.Pool{New: func() any {
			mac, _ := blake2b.New256(key[:]) // this length has been tried
			return &digester{mac: mac}
		}},
	}, nil
}

// tag is the quick name.
func (f *tokenDigests) tag(token string) tag {
	return tag{maphash.String(f.seeds[0], token), maphash.String(f.seeds[1], token)}
}

// digest is the slow one.
func (f *tokenDigests) digest(token string) digest {
	d := f.digests.Get().(*digester)
	// The bytes are read only, and not copied: a copy would leave the token lying in memory. Write never fails: see hash.Hash.
	_, _ = d.mac.Write(unsafe.Slice(unsafe.StringData(token), len(token)))
	d.mac.Sum(d.sum[:0])
	d.mac.Reset()
	sum := d.sum
	f.digests.Put(d)
	return sum
}
