package ratelimit_test

import (
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskapi/internal/must"
	"taskapi/ratelimit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start is any time; no test looks at the clock.
var start = time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)

// failures is what the package is used for: ten failures a second, twenty at once; two hundred in all.
var failures = ratelimit.Config{
	Key:     ratelimit.Rate{PerSecond: 10, Burst: 20},
	Global:  ratelimit.Rate{PerSecond: 200, Burst: 200},
	MaxKeys: 64,
}

func newLimiter(t testing.TB, cfg ratelimit.Config) *ratelimit.Limiter[string] {
	t.Helper()
	return must.Get(ratelimit.New[string](cfg))(t)
}

// spendAll calls Allow until it refuses; it returns how often it was allowed, and the refusal.
func spendAll(l *ratelimit.Limiter[string], now time.Time, key string) (int, ratelimit.Decision) {
	for n := 0; ; n++ {
		if d := l.Allow(now, key); !d.OK {
			return n, d
		}
	}
}

func TestPeekChangesNothing(t *testing.T) {
	cfg := failures
	cfg.MaxKeys, cfg.RetryAfterUnit = 1, time.Second
	l := newLimiter(t, cfg)
	for range 100 {
		if d := l.Peek(start.Add(time.Hour), "a"); !d.OK {
			t.Fatalf("Peek = %+v", d)
		}
	}
	if n, _ := spendAll(l, start, "a"); n != 20 {
		t.Errorf("%d were allowed, want 20", n)
	}
	if got, want := l.Peek(start, "new"), (ratelimit.Decision{RetryAfter: time.Second,
		Scope: ratelimit.ScopeKey}); got != want {
		t.Errorf("Peek at a new key in a full table = %+v, want %+v", got, want)
	}
}

func TestReserveHoldsTheBurst(t *testing.T) {
	l := newLimiter(t, failures)
	for range 3 {
		reservations := make(chan *ratelimit.Reservation, 200)
		var wg sync.WaitGroup
		for range cap(reservations) {
			wg.Go(func() {
				r, d := l.Reserve(start, "a")
				if d.OK {
					reservations <- r
				} else if r.Cancel(); r != nil {
					t.Error("a refusal came with a reservation")
				}
			})
		}
		wg.Wait()
		close(reservations)
		if len(reservations) != 20 {
			t.Errorf("%d were at work at once, want 20", len(reservations))
		}
		for r := range reservations {
			wg.Go(r.Cancel)
			wg.Go(r.Cancel)
		}
		wg.Wait()
	}
	if n, _ := spendAll(l, start, "a"); n != 20 {
		t.Errorf("all was given back, and %d were allowed, want 20", n)
	}
}

// Callers look at their clocks before they get in, so that times come in any order.
func TestTimeNeverGoesBack(t *testing.T) {
	l := newLimiter(t, failures)
	for range 15 {
		l.Allow(start, "a")
	}
	n := 0
	for i := range 1000 {
		now := start
		if i%2 == 0 {
			now = start.Add(time.Second)
		}
		if l.Allow(now, "a").OK {
			n++
		}
	}
	if n != 5+10 {
		t.Errorf("%d were allowed in a second seen 500 times, want 15", n)
	}
	if d := l.Allow(start, "a"); d.OK || d.RetryAfter != 1100*time.Millisecond {
		t.Errorf("for a clock a second behind: %+v, want 1.1s", d)
	}
}

// Making up keys buys MaxKeys bursts, and not one more.
func TestForgottenKeysBuyNothing(t *testing.T) {
	l := must.Get(ratelimit.New[int](ratelimit.Config{
		Key:     ratelimit.Rate{PerSecond: 1, Burst: 5},
		Global:  ratelimit.Rate{PerSecond: 1e6, Burst: 1e6},
		MaxKeys: 10,
	}))(t)
	allowed := 0
	for key := range 10_000 {
		for l.Allow(start, key).OK {
			allowed++
		}
	}
	if allowed != 10*5 {
		t.Errorf("10,000 keys were allowed %d, want 50", allowed)
	}
	// Coming back as a key that was forgotten helps as little.
	for range 3 {
		for key := range 11 {
			if d := l.Allow(start, key); d.OK || d.Scope != ratelimit.ScopeKey {
				t.Errorf("key %d: %+v", key, d)
			}
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for name, change := range map[string]func(*ratelimit.Config){
		"no rate":         func(c *ratelimit.Config) { c.Key.PerSecond = 0 },
		"negative":        func(c *ratelimit.Config) { c.Key.PerSecond = -1 },
		"not a number":    func(c *ratelimit.Config) { c.Key.PerSecond = math.NaN() },
		"infinite":        func(c *ratelimit.Config) { c.Global.PerSecond = math.Inf(1) },
		"never":           func(c *ratelimit.Config) { c.Global.PerSecond = 1e-300 },
		"no burst":        func(c *ratelimit.Config) { c.Key.Burst = 0 },
		"no global burst": func(c *ratelimit.Config) { c.Global.Burst = 0 },
		"no keys":         func(c *ratelimit.Config) { c.MaxKeys = 0 },
		"negative unit":   func(c *ratelimit.Config) { c.RetryAfterUnit = -1 },
		"nothing":         func(c *ratelimit.Config) { *c = ratelimit.Config{} },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := failures
			change(&cfg)
			if _, err := ratelimit.New[string](cfg); !errors.Is(err, ratelimit.ErrConfig) {
				t.Errorf("got %v, want ErrConfig", err)
			}
		})
	}
}

func BenchmarkAllow(b *testing.B) {
	for name, perSecond := range map[string]float64{"allowed": 1e12, "refused": 1e-5} {
		b.Run(name, func(b *testing.B) {
			r := ratelimit.Rate{PerSecond: perSecond, Burst: 1}
			l := newLimiter(b, ratelimit.Config{Key: r, Global: r, MaxKeys: 64, RetryAfterUnit: time.Second})
			l.Allow(start, "a")
			now := start
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(time.Nanosecond)
				if d := l.Allow(now, "a"); d.OK != (name == "allowed") {
					b.Fatalf("got %+v", d)
				}
			}
		})
	}
}

func TestAllowOfAKnownKeyAllocatesNothing(t *testing.T) {
	cfg := failures
	cfg.RetryAfterUnit = time.Second
	l := newLimiter(t, cfg)
	l.Allow(start, "a")
	if n := testing.AllocsPerRun(100, func() { l.Allow(start, "a") }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
