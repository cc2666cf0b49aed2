// Package ratelimit has token buckets for keys, bounded in number, with an exact Retry-After.
//
// A Limiter has a bucket for each key and one for all keys together. An allowed call takes a token from both, a refused
// one from neither. The table of keys is bounded: a key that replaces the least recently used one takes over its bucket
// with the tokens in it. So however many keys a caller makes up, together they spend at most MaxKeys bursts, then what
// those buckets refill, and never more than the bucket for all keys gives. The price is that a new key may find an
// empty bucket during such a flood.
//
// A Tarpit delays refused callers, a bounded number at a time.
//
// The package starts no goroutine and has no clock: the time is a parameter. Names and signatures stay as they are
// within a major version.
package ratelimit

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"
)

// ErrConfig means that the parameters of a Limiter or a Tarpit can't work.
var ErrConfig = errors.New("invalid limit")

// minPerSecond is about one token a day; less than that is a ban, not a rate.
const minPerSecond = 1e-5

// Rate is how fast a bucket fills, and its size. A bucket starts full.
type Rate struct {
	PerSecond float64 // tokens a second, at least 0.00001
	Burst     int     // tokens it holds, at least 1
}

// Config configures a Limiter. All fields but RetryAfterUnit are required.
type Config struct {
	Key     Rate // of each key
	Global  Rate // of all keys together
	MaxKeys int  // keys remembered, at least 1
	// RetryAfterUnit lengthens the refusal of a key to a whole number of units; 0 lengthens none. HTTP's Retry-After
	// counts in seconds, so a unit of a second makes it exact. A key keeps its average rate if its Burst is at least its
	// rate per unit. Refusals by the global bucket are never lengthened, since one caller could shut out all others for a
	// unit.
	RetryAfterUnit time.Duration
}

// Scope is the bucket that refused.
type Scope string

// The scopes of a refusal.
const (
	ScopeKey    Scope = "key"
	ScopeGlobal Scope = "global"
)

// Decision is the result of one call. After a refusal, the same call succeeds after RetryAfter unless another caller
// was quicker. It does not succeed after half of RetryAfter unless a reservation was cancelled. Scope is the bucket
// that takes longer.
type Decision struct {
	OK         bool
	RetryAfter time.Duration // 0 if OK
	Scope      Scope         // "" if OK
}

// Limiter is safe for use by many goroutines. Their times may be in any order: the Limiter's time never goes back.
type Limiter[K comparable] struct {
	cfg Config

	mu     sync.Mutex // guards the fields below, and the content of buckets
	latest time.Time
	global *rate.Limiter
	keys   *simplelru.LRU[K, *bucket]
}

type bucket struct {
	tokens *rate.Limiter
	closed time.Time // no token is given before
}

// New returns a Limiter whose buckets are full, or ErrConfig.
func New[K comparable](cfg Config) (*Limiter[K], error) {
	if err := errors.Join(cfg.Key.check("key"), cfg.Global.check("global")); err != nil {
		return nil, err
	}
	if cfg.RetryAfterUnit < 0 {
		return nil, fmt.Errorf("%w: RetryAfterUnit is %v, which is negative", ErrConfig, cfg.RetryAfterUnit)
	}
	keys, err := simplelru.NewLRU[K, *bucket](cfg.MaxKeys, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: a table of %d keys: %w", ErrConfig, cfg.MaxKeys, err)
	}
	return &Limiter[K]{cfg: cfg, global: cfg.Global.limiter(), keys: keys}, nil
}

func (r Rate) check(name string) error {
	if !(r.PerSecond >= minPerSecond) || math.IsInf(r.PerSecond, 0) || r.Burst < 1 {
		return fmt.Errorf("%w: the %s rate is %v a second, burst %d; at least %v and 1",
			ErrConfig, name, r.PerSecond, r.Burst, minPerSecond)
	}
	return nil
}

func (r Rate) limiter() *rate.Limiter { return rate.NewLimiter(rate.Limit(r.PerSecond), r.Burst) }

// Allow spends a token of the key's bucket and one of the global bucket, or refuses and spends none.
func (l *Limiter[K]) Allow(now time.Time, key K) Decision {
	_, d := l.spend(now, key)
	return d
}

// Peek returns what Allow would return, and changes nothing. Other callers may spend the tokens before Allow is called;
// use Reserve where that matters.
func (l *Limiter[K]) Peek(now time.Time, key K) Decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.keys.Peek(key)
	if !ok && l.keys.Len() >= l.cfg.MaxKeys {
		_, b, _ = l.keys.GetOldest()
	}
	at := l.notBefore(now)
	return l.decideLocked(b, at).later(at.Sub(now))
}

// Reserve decides as Allow does, for work that costs a token only if it fails: call Reserve, work, and call Cancel on
// success. At most a burst of callers works at a time. The Reservation of a refusal is nil.
func (l *Limiter[K]) Reserve(now time.Time, key K) (*Reservation, Decision) {
	b, d := l.spend(now, key)
	if !d.OK {
		return nil, d
	}
	return &Reservation{giveBack: func() { l.giveBack(b) }}, d
}

// Reservation is a pair of spent tokens that can be given back.
type Reservation struct {
	once     sync.Once
	giveBack func()
}

// Cancel gives the tokens back, and ends a refusal of the key. It may be called more than once, and on nil.
func (r *Reservation) Cancel() {
	if r != nil {
		r.once.Do(r.giveBack)
	}
}

func (l *Limiter[K]) spend(now time.Time, key K) (*bucket, Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Callers read the clock before they get the lock. A rate.Limiter that goes back in time would count that time twice.
	l.latest = l.notBefore(now)
	b := l.bucketLocked(key)
	d := l.decideLocked(b, l.latest)
	if d.OK {
		// Tokens are spent only here, so both calls succeed.
		b.tokens.AllowN(l.latest, 1)
		l.global.AllowN(l.latest, 1)
	} else if d.Scope == ScopeKey {
		b.closed = l.latest.Add(d.RetryAfter)
	}
	return b, d.later(l.latest.Sub(now))
}

// giveBack returns a token to both buckets, by spending -1. The Cancel of x/time/rate gives nothing back after the time
// of the reservation.
func (l *Limiter[K]) giveBack(b *bucket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.tokens.AllowN(l.latest, -1)
	l.global.AllowN(l.latest, -1)
	b.closed = time.Time{}
}

// bucketLocked returns the bucket of a key. A new key gets a full one, or that of the least recently used key if the
// table is full.
func (l *Limiter[K]) bucketLocked(key K) *bucket {
	if b, ok := l.keys.Get(key); ok {
		return b
	}
	var b *bucket
	if l.keys.Len() < l.cfg.MaxKeys {
		b = &bucket{tokens: l.cfg.Key.limiter()}
	} else {
		_, b, _ = l.keys.RemoveOldest()
	}
	l.keys.Add(key, b)
	return b
}

// decideLocked returns the decision and changes nothing; a nil bucket is a full one.
func (l *Limiter[K]) decideLocked(b *bucket, now time.Time) Decision {
	var key time.Duration
	switch {
	case b == nil:
	case now.Before(b.closed):
		key = b.closed.Sub(now)
	default:
		key = wait(b.tokens, now)
		if unit := l.cfg.RetryAfterUnit; unit > 0 && key > 0 {
			key = (key + unit - 1).Truncate(unit)
		}
	}
	global := wait(l.global, now)
	switch {
	case key == 0 && global == 0:
		return Decision{OK: true}
	case key >= global:
		return Decision{RetryAfter: key, Scope: ScopeKey}
	}
	return Decision{RetryAfter: global, Scope: ScopeGlobal}
}

// wait returns how long a bucket takes to hold a token, rounded to a nanosecond. rate.Limiter gives a token when less
// than a nanosecond's worth is missing; a truncated wait would sometimes be a nanosecond too short.
func wait(lim *rate.Limiter, now time.Time) time.Duration {
	missing := 1 - lim.TokensAt(now)
	return max(0, time.Duration(math.Round(missing/float64(lim.Limit())*float64(time.Second))))
}

func (l *Limiter[K]) notBefore(now time.Time) time.Time {
	if now.Before(l.latest) {
		return l.latest
	}
	return now
}

// later returns the decision for a caller whose clock is behind.
func (d Decision) later(behind time.Duration) Decision {
	if !d.OK {
		d.RetryAfter += behind
	}
	return d
}
