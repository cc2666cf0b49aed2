package auth

import (
	"crypto/rand"
	"hash"
	"hash/maphash"
	"sync"
	"unsafe"

	"golang.org/x/crypto/blake2b"
)

// digest is the key of a token in the caches: keyed BLAKE2b-256 (RFC 7693), with a key of this process only. A reader
// of this process's memory can't compute the token from it.
type digest [blake2b.Size256]byte

// tag is the quick key, 128 bits: maphash under two seeds of this process.
//
// A digest takes 0.8 µs for a token of 560 bytes, more than a whole cached request may cost; a tag takes 0.08 µs. A tag
// need not be a cryptographic hash. To pass for a good token, a text must agree with it in 128 bits that depend on
// every bit of the token's 512-bit signature and on secret seeds. A caller who does not know the signature can only
// guess, and one who knows it has the token anyway.
type tag [2]uint64

type tokenDigests struct {
	seeds   [2]maphash.Seed
	digests sync.Pool // of *digester
}

// digester is the state of one computation. It is pooled because it would escape through hash.Hash.
type digester struct {
	mac hash.Hash // keyed; reset after each use, because it holds the end of its input until then
	sum digest
}

func newTokenDigests() *tokenDigests {
	var key [blake2b.Size256]byte
	_, _ = rand.Read(key[:]) // never fails: it ends the process instead
	return &tokenDigests{
		seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		digests: sync.Pool{New: func() any {
			mac, _ := blake2b.New256(key[:]) // fails for a key that is longer than 64 bytes
			return &digester{mac: mac}
		}},
	}
}

func (t *tokenDigests) tag(token string) tag {
	return tag{maphash.String(t.seeds[0], token), maphash.String(t.seeds[1], token)}
}

func (t *tokenDigests) digest(token string) digest {
	d := t.digests.Get().(*digester)
	// The bytes are only read. A copy would leave the token in memory. Write never fails: see hash.Hash.
	_, _ = d.mac.Write(unsafe.Slice(unsafe.StringData(token), len(token)))
	d.mac.Sum(d.sum[:0])
	d.mac.Reset()
	sum := d.sum
	t.digests.Put(d)
	return sum
}
