package auth

import (
	"sync/atomic"
	"time"
)

// Stats holds the counters of an Authenticator since it was made.
type Stats struct {
	Hits         uint64                  // good tokens found in the cache, whatever was decided then
	Misses       uint64                  // tokens found in neither cache
	NegativeHits uint64                  // bad tokens found in the cache
	Shared       uint64                  // requests that waited for the verification of another instead of their own
	Verified     uint64                  // verifications, good or bad
	VerifyTime   time.Duration           // what they took, in all
	Delayed      uint64                  // refusals that were delayed
	Refused      [reasons]uint64         // refusals by Reason; index 0 is not used
	Cached       struct{ Good, Bad int } // entries in the caches now
}

// Reasons returns the reasons for a refusal, in the order of Stats.Refused: all but NotRefused.
func Reasons() []Reason {
	all := make([]Reason, 0, reasons-1)
	for r := NotRefused + 1; r < reasons; r++ {
		all = append(all, r)
	}
	return all
}

// counters are the live form of Stats. Every request writes the first, so it has a cache line of its own.
type counters struct {
	hits         atomic.Uint64
	_            [56]byte
	misses       atomic.Uint64
	negativeHits atomic.Uint64
	shared       atomic.Uint64
	verified     atomic.Uint64
	verifyNanos  atomic.Int64
	delayed      atomic.Uint64
	refused      [reasons]atomic.Uint64
}

// Stats returns the current counters. They are read one after the other, so they may differ by some requests.
func (a *Authenticator) Stats() Stats {
	c := &a.counters
	s := Stats{
		Hits: c.hits.Load(), Misses: c.misses.Load(), NegativeHits: c.negativeHits.Load(), Shared: c.shared.Load(),
		Verified: c.verified.Load(), VerifyTime: time.Duration(c.verifyNanos.Load()),
		Delayed: c.delayed.Load(),
	}
	for r := range c.refused {
		s.Refused[r] = c.refused[r].Load()
	}
	s.Cached.Good, s.Cached.Bad = a.cache.good.Len(), a.cache.bad.Len()
	return s
}
