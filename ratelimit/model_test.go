package ratelimit_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"taskapi/internal/must"
	"taskapi/ratelimit"
)

// A modelBucket is a token bucket in whole nanoseconds: a token is as much time as it takes to earn one.
type modelBucket struct {
	perToken, full, credit, closed time.Duration
}

func newModelBucket(r ratelimit.Rate) *modelBucket {
	perToken := time.Duration(float64(time.Second) / r.PerSecond)
	full := perToken * time.Duration(r.Burst)
	return &modelBucket{perToken: perToken, full: full, credit: full}
}

func (b *modelBucket) earn(d time.Duration) { b.credit = min(b.full, b.credit+d) }

func (b *modelBucket) wait() time.Duration { return max(0, b.perToken-b.credit) }

type modelReservation struct {
	key  string
	real *ratelimit.Reservation
}

// model is a Limiter that never forgets a key, and says for every call what has to come out.
type model struct {
	cfg     ratelimit.Config
	real    *ratelimit.Limiter[string]
	elapsed time.Duration
	global  *modelBucket
	keys    map[string]*modelBucket
	pending []modelReservation
}

func (m *model) now() time.Time { return start.Add(m.elapsed) }

func (m *model) bucket(key string) *modelBucket {
	if m.keys[key] == nil {
		m.keys[key] = newModelBucket(m.cfg.Key)
	}
	return m.keys[key]
}

func (m *model) want(key string) ratelimit.Decision {
	b := m.bucket(key)
	wait := b.wait()
	if g := m.cfg.RetryAfterUnit; g > 0 && wait > 0 {
		wait = (wait + g - 1).Truncate(g)
	}
	if b.closed > m.elapsed {
		wait = b.closed - m.elapsed
	}
	switch global := m.global.wait(); {
	case wait == 0 && global == 0:
		return ratelimit.Decision{OK: true}
	case wait >= global:
		return ratelimit.Decision{RetryAfter: wait, Scope: ratelimit.ScopeKey}
	default:
		return ratelimit.Decision{RetryAfter: global, Scope: ratelimit.ScopeGlobal}
	}
}

// settle does to the model what a call with this answer does.
func (m *model) settle(key string, d ratelimit.Decision) {
	b := m.bucket(key)
	if d.OK {
		b.credit -= b.perToken
		m.global.credit -= m.global.perToken
	} else if d.Scope == ratelimit.ScopeKey {
		b.closed = m.elapsed + d.RetryAfter
	}
}

// same allows for the rounding of a float64 in the wait.
func same(got, want ratelimit.Decision) bool {
	const tolerance = time.Microsecond
	return got.OK == want.OK && got.Scope == want.Scope && (got.RetryAfter-want.RetryAfter).Abs() <= tolerance
}

// checkHonest holds a refusal against its own promise.
func (m *model) checkHonest(t *rapid.T, key string, d ratelimit.Decision) {
	if d.OK {
		return
	}
	if d.RetryAfter <= 0 {
		t.Fatalf("refused with a wait of %v", d.RetryAfter)
	}
	if later := m.real.Peek(m.now().Add(d.RetryAfter), key); !later.OK {
		t.Fatalf("must wait %v, and then %+v", d.RetryAfter, later)
	}
	if early := m.real.Peek(m.now().Add(d.RetryAfter/2), key); early.OK {
		t.Fatalf("must wait %v, and half of it would do", d.RetryAfter)
	}
}

func TestLimiterIsTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		key := rapid.SampledFrom([]string{"a", "b", "c"})
		check := func(t *rapid.T, key string, got ratelimit.Decision) {
			if want := m.want(key); !same(got, want) {
				t.Fatalf("at %v %q got %+v, want %+v", m.elapsed, key, got, want)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"allow": func(t *rapid.T) {
				k := key.Draw(t, "key")
				got := m.real.Allow(m.now(), k)
				check(t, k, got)
				m.settle(k, m.want(k))
				m.checkHonest(t, k, got)
			},
			"peek": func(t *rapid.T) {
				k := key.Draw(t, "key")
				check(t, k, m.real.Peek(m.now(), k))
			},
			"reserve": func(t *rapid.T) {
				k := key.Draw(t, "key")
				r, got := m.real.Reserve(m.now(), k)
				check(t, k, got)
				m.settle(k, m.want(k))
				m.checkHonest(t, k, got)
				if got.OK {
					m.pending = append(m.pending, modelReservation{k, r})
				}
			},
			"cancel": func(t *rapid.T) {
				if len(m.pending) == 0 {
					t.Skip("nothing is reserved")
				}
				r := m.pending[0]
				m.pending = m.pending[1:]
				r.real.Cancel()
				r.real.Cancel() // which gives nothing more
				b := m.bucket(r.key)
				b.earn(b.perToken)
				b.closed = 0
				m.global.earn(m.global.perToken)
			},
			"wait": func(t *rapid.T) {
				d := time.Duration(rapid.IntRange(0, 1500).Draw(t, "ms")) * time.Millisecond
				m.elapsed += d
				m.global.earn(d)
				for _, b := range m.keys {
					b.earn(d)
				}
			},
		})
	})
}

func newModel(t *rapid.T) *model {
	cfg := ratelimit.Config{
		Key: ratelimit.Rate{
			PerSecond: rapid.SampledFrom([]float64{1, 4, 10, 50}).Draw(t, "key rate"),
			Burst:     rapid.IntRange(1, 5).Draw(t, "key burst"),
		},
		Global: ratelimit.Rate{
			PerSecond: rapid.SampledFrom([]float64{2, 20, 200}).Draw(t, "global rate"),
			Burst:     rapid.IntRange(1, 8).Draw(t, "global burst"),
		},
		MaxKeys:        3,
		RetryAfterUnit: rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(t, "retryAfterUnit"),
	}
	real := must.Get(ratelimit.New[string](cfg))(t)
	return &model{cfg: cfg, real: real, global: newModelBucket(cfg.Global), keys: map[string]*modelBucket{}}
}
