package auth

import (
	"slices"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"taskapi/identity"
)

const (
	// goodTokens is how many good tokens are cached. A group of 100 tasks with four identities each has 800, renewed ones
	// included.
	goodTokens = 1024
	// quickSlots is the size of the quick table, a power of two: 8 KiB of pointers.
	quickSlots = 1024
	// badTokens is how many bad ones are cached, about 1 MiB.
	badTokens = 4096
	// badFor is how long a verdict on a bad token is cached. A change of a key set drops it at once.
	badFor = 5 * time.Second
)

// entry is the verdict on a good token: a trusted key signed it, and its claims are those of its allocation. It holds
// only what does not change with time, and is never changed.
type entry struct {
	tag       tag
	token     *identity.Verified
	alloc     *Allocation // whose claims the token has
	principal Principal
}

// refusal is the verdict on a bad token.
type refusal struct {
	why   Reason
	until time.Time
	keys  []*identity.KeySet // that the verdict was found with
	token *identity.Verified // nil unless a trusted key signed it
}

// cache holds verdicts on good and on bad tokens, bounded and separate from each other.
//
// Verdicts on good tokens are in two tables. The quick table is indexed by the tag and read without a lock. Only good
// tokens enter it, so bad ones can't displace anything, and two good tokens that share a slot only make each other
// slower. Behind it is an LRU table by digest. An entry that the LRU drops may stay in the quick table, since the
// verdict still holds.
type cache struct {
	quick [quickSlots]atomic.Pointer[entry]
	good  *lru.Cache[digest, *entry]
	bad   *lru.Cache[digest, refusal]
}

func newCache() *cache {
	good, _ := lru.New[digest, *entry](goodTokens) // the size is above 0
	bad, _ := lru.New[digest, refusal](badTokens)
	return &cache{good: good, bad: bad}
}

// slot returns a tag's place in the quick table.
func (c *cache) slot(t tag) *atomic.Pointer[entry] {
	return &c.quick[t[0]%quickSlots]
}

// hit returns the good token with the tag, or nil.
func (c *cache) hit(t tag, now time.Time) *entry {
	if e := c.slot(t).Load(); e != nil && e.tag == t && !e.token.Stale(now) {
		return e
	}
	return nil
}

// slowHit returns the good token with the digest, or nil, and puts it back into the table.
func (c *cache) slowHit(d digest, now time.Time) *entry {
	e, ok := c.good.Get(d)
	if !ok || e.token.Stale(now) {
		return nil
	}
	c.slot(e.tag).Store(e)
	return e
}

func (c *cache) keep(d digest, e *entry) {
	c.good.Add(d, e)
	c.bad.Remove(d)
	c.slot(e.tag).Store(e)
}

// refused returns the cached verdict on a bad token, if it still holds at the time and with these sets of keys.
func (c *cache) refused(d digest, now time.Time, keys []*identity.KeySet) (refusal, bool) {
	r, ok := c.bad.Get(d)
	if !ok {
		return refusal{}, false
	}
	// A refusal from the future is dropped, so that it does not last when the clock was set back.
	if left := r.until.Sub(now); left <= 0 || left > badFor || !slices.Equal(r.keys, keys) {
		c.bad.Remove(d)
		return refusal{}, false
	}
	return r, true
}
