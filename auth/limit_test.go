package auth_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/handlers/apierror"
	"taskapi/identity"
	"taskapi/internal/must"
	"taskapi/ratelimit"
)

// standard leaves the limits at their defaults.
func standard(c *auth.Config) { c.Limits = auth.Limits{} }

// exhaust fails until the limit refuses, and returns how often it did not.
func (w *fixture) exhaust(owner auth.Owner, peer auth.Peer) int {
	w.tb.Helper()
	for n := range 1000 {
		if why := w.askAs(forge(w.token(owner), n), owner, peer); why == auth.CallerLimited {
			return n
		} else if why != auth.BadSignature {
			w.tb.Fatalf("forged token %d: %s", n, why)
		}
	}
	w.tb.Fatal("1000 forged tokens did not exhaust the limit")
	return 0
}

func TestCallersAreLimitedApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, standard)
		cached := w.token(web)
		w.expect("good", cached, web, auth.NotRefused)
		if n := w.exhaust(web, peer); n != 20 {
			t.Errorf("%d failures were let through, want the burst of 20", n)
		}
		for _, test := range []struct {
			name, token string
			owner       auth.Owner
			uid         uint32
			want        auth.Reason
		}{
			{"cached", cached, web, peer.UID, auth.NotRefused},
			{"new", w.token(web), web, peer.UID, auth.CallerLimited},
			{"unknown key", unknownKey(cached, 1), web, peer.UID, auth.CallerLimited},
			{"garbage", "garbage", web, peer.UID, auth.Malformed},
			{"none", "", web, peer.UID, auth.NoToken},
			{"new, as root", w.token(web), web, 0, auth.CallerLimited},
			{"new, as a user that the socket is not for", w.token(web), web, 2000, auth.WrongPeer},
			{"new, another socket", w.token(db), db, peer.UID, auth.NotRefused},
			{"forged, another socket", forge(cached, 99), db, peer.UID, auth.BadSignature},
		} {
			if got := w.askAs(test.token, test.owner, auth.Peer{UID: test.uid}); got != test.want {
				t.Errorf("%s: got %s, want %s", test.name, got, test.want)
			}
		}
	})
}

// What counts as a failed look-up, and what does not.
func TestWhatCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			name   string
			token  func(w *fixture, n int) string
			counts bool
		}{
			{"forged", func(w *fixture, n int) string { return forge(w.token(web), n) }, true},
			{"the same forged", func(w *fixture, _ int) string {
				return forge(w.with(web, func(c *identity.Claims) { c.ID = "same" }), 0)
			}, true},
			{"unknown key", func(w *fixture, n int) string { return unknownKey(w.token(web), n) }, true},
			{"unknown allocation",
				func(w *fixture, _ int) string { return w.token(auth.Owner{AllocationID: otherID, Task: "web"}) }, true},
			{"wrong audience", func(w *fixture, _ int) string {
				return w.with(web, func(c *identity.Claims) { c.Audience = []string{"x"} })
			}, true},
			{"expired", func(w *fixture, _ int) string {
				return w.with(web, func(c *identity.Claims) { c.IssuedAt, c.NotBefore, c.ExpiresAt = 0, 0, 1 })
			}, true},
			{"good", func(w *fixture, _ int) string { return w.token(web) }, false},
			{"another task's", func(w *fixture, _ int) string { return w.token(db) }, false},
			{"garbage", func(_ *fixture, n int) string { return "garbage" + strconv.Itoa(n) }, false},
			{"none", func(*fixture, int) string { return "" }, false},
		} {
			w := newFixture(t, standard, func(c *auth.Config) { c.Limits.RefusalDelay = 1 })
			limited := false
			for n := range 30 {
				limited = w.ask(test.token(w, n), web) == auth.CallerLimited || limited
			}
			if limited != test.counts {
				t.Errorf("%s: limited %v, want %v", test.name, limited, test.counts)
			}
		}
	})
}

// Retry-After is true: waiting that long works, waiting half of it does not.
func TestRetryAfterIsTrue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			part time.Duration
			want auth.Reason
		}{{1, auth.NotRefused}, {2, auth.CallerLimited}} {
			w := newFixture(t, standard)
			w.exhaust(web, peer)
			time.Sleep(3 * time.Second) // 20 again
			w.exhaust(web, peer)
			time.Sleep(time.Second) // 10
			for w.ask(forge(w.token(web), 0), web) == auth.BadSignature {
			}
			token := w.token(web)
			_, denial := w.authenticator.Authenticate(request(token), web, peer)
			if denial == nil || denial.Reason.Status() != http.StatusTooManyRequests || denial.RetryAfter <= 0 {
				t.Fatalf("got %+v", denial)
			}
			time.Sleep(denial.RetryAfter / test.part)
			w.expect("after "+(denial.RetryAfter/test.part).String()+" of "+denial.RetryAfter.String(), token, web, test.want)
		}
	})
}

// The first answer's header is true as it stands, in whole seconds.
func TestRetryAfterInSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, standard)
		for n := range 20 {
			w.expect("forged", forge(w.token(web), n), web, auth.BadSignature)
		}
		token := w.token(web)
		_, denial := w.authenticator.Authenticate(request(forge(token, 0)), web, peer)
		answer := httptest.NewRecorder()
		apierror.WriteDenial(answer, denial)
		if got := answer.Header().Get("Retry-After"); got != "1" {
			t.Fatalf("Retry-After is %q", got)
		}
		time.Sleep(time.Second / 2)
		w.expect("after half a second", token, web, auth.CallerLimited)
		time.Sleep(time.Second / 2)
		w.expect("after a second", token, web, auth.NotRefused)
	})
}

func TestGlobalLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, standard, func(c *auth.Config) { c.Limits.RefusalDelay = 1 })
		cached := w.token(web)
		w.expect("good", cached, web, auth.NotRefused)
		counts := map[auth.Reason]int{}
		for socket := range 15 {
			for n := range 15 {
				counts[w.ask(forge(cached, socket*100+n), auth.Owner{AllocationID: allocID, Task: strconv.Itoa(socket),
					UID: peer.UID})]++
			}
		}
		if counts[auth.BadSignature] < 200 || counts[auth.GlobalLimited] == 0 || counts[auth.CallerLimited] != 0 {
			t.Errorf("got %v", counts)
		}
		w.expect("good among them", cached, web, auth.NotRefused)
		time.Sleep(time.Second)
		w.expect("new, afterwards", w.token(web), web, auth.NotRefused)
	})
}

// Who comes new while others fill the limit for all is not shut out, but waits a moment.
func TestGlobalLimitShutsNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, standard, func(c *auth.Config) {
			c.Limits.AllFailedLookups = ratelimit.Rate{PerSecond: 10, Burst: 5}
		})
		for n := range 5 {
			w.ask(forge(w.token(web), n), web)
		}
		start := time.Now()
		if got := w.ask(w.token(db), db); got != auth.NotRefused {
			t.Errorf("a new caller got %s", got)
		}
		if took := time.Since(start); took != 250*time.Millisecond {
			t.Errorf("it waited %v", took)
		}
	})
}

// A flood is slowed, whatever is wrong with its requests, over however many connections it comes; and nobody else
// waits.
func TestFloodIsSlowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, token := range map[string]func(w *fixture, good string, n int) string{
			"none":      func(*fixture, string, int) string { return "" },
			"garbage":   func(*fixture, string, int) string { return "garbage" },
			"forged":    func(_ *fixture, good string, n int) string { return forge(good, n) },
			"elsewhere": func(w *fixture, _ string, _ int) string { return w.token(db) },
		} {
			w := newFixture(t, standard)
			good := w.token(web)
			w.expect("good", good, web, auth.NotRefused)
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
			var flood sync.WaitGroup
			var answers atomic.Int64
			for c := range 8 {
				flood.Go(func() {
					for n := c; ctx.Err() == nil; n += 8 {
						w.ask(token(w, good, n), web)
						answers.Add(1)
					}
				})
			}
			for range 90 {
				time.Sleep(100 * time.Millisecond)
				start := time.Now()
				w.expect("good", good, web, auth.NotRefused)
				if got := w.ask(w.token(db), db); got != auth.NotRefused {
					t.Errorf("%s: another's new token got %s", name, got)
				}
				if took := time.Since(start); took != 0 {
					t.Errorf("%s: others waited %v", name, took)
				}
			}
			flood.Wait()
			stop()
			if got := answers.Load(); got > 100+10*50+10*8*4+8 {
				t.Errorf("%s: %d answers in 10 s", name, got)
			}
		}
	})
}

// Holding back ends with the request, and holds no more than it may.
func TestHoldingBackIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, func(c *auth.Config) {
			c.Limits = auth.Limits{Set: limitset.Set{Refusals: ratelimit.Rate{PerSecond: 1e-5, Burst: 1}}, RefusalDelay: hour,
				MaxDelayed: 2}
		})
		w.ask("", web)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan time.Time, 2)
		for range 2 {
			go func() {
				w.authenticator.Authenticate(request("").WithContext(ctx), web, peer)
				ended <- time.Now()
			}()
		}
		synctest.Wait()
		start := time.Now()
		w.ask("", web)
		if took := time.Since(start); took != 0 {
			t.Errorf("a third refusal was held for %v", took)
		}
		cancel()
		for range 2 {
			if at := <-ended; at != start {
				t.Errorf("a request that was over was held for another %v", at.Sub(start))
			}
		}
		if got := w.authenticator.Stats().Delayed; got != 2 {
			t.Errorf("%d were held", got)
		}
	})
}

func TestConfigErrors(t *testing.T) {
	w := newFixture(t)
	for _, config := range []auth.Config{
		{Allocations: w.allocs, Logger: discardLogger}, {Verifier: w.verifier, Logger: discardLogger},
		{Verifier: w.verifier, Allocations: w.allocs},
	} {
		if _, err := auth.NewAuthenticator(config); err == nil ||
			!strings.Contains(err.Error(), "Verifier, Allocations and Logger") {
			t.Errorf("got %v", err)
		}
	}
	for _, limits := range []auth.Limits{
		{Set: limitset.Set{FailedLookups: ratelimit.Rate{PerSecond: -1, Burst: 1}}},
		{Set: limitset.Set{AllFailedLookups: ratelimit.Rate{PerSecond: 1}}}, {MaxDelayed: -1},
	} {
		_, err := auth.NewAuthenticator(auth.Config{Verifier: w.verifier, Allocations: w.allocs, Logger: discardLogger,
			Limits: limits})
		if err == nil {
			t.Errorf("%+v is taken", limits)
		}
	}
}

// TestRequestsAreLimited: a task that asks too often is refused until its Retry-After is over, others and the operator
// are not.
func TestRequestsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, func(c *auth.Config) {
			c.Limits = unfelt
			c.Limits.Requests = ratelimit.Rate{PerSecond: 0.5, Burst: 3}
		})
		token := w.token(web)
		for range 3 {
			w.expect("within the limit", token, web, auth.NotRefused)
		}
		_, denial := w.authenticator.Authenticate(request(token), web, peer)
		if denial == nil || denial.Reason != auth.RequestLimited {
			t.Fatalf("one more: %v", denial)
		}
		answer := httptest.NewRecorder()
		apierror.WriteDenial(answer, denial)
		if got := answer.Header().Get("Retry-After"); answer.Code != http.StatusTooManyRequests || got != "2" {
			t.Errorf("%d with Retry-After %q, want 429 with 2", answer.Code, got)
		}
		w.expect("a bad token has a limit of its own", forge(token, 1), web, auth.BadSignature)
		w.expect("another task", w.token(db), db, auth.NotRefused)
		for range 10 {
			w.expect("the operator", w.token(operator), operator, auth.NotRefused)
		}
		time.Sleep(time.Second)
		w.expect("half of it later", token, web, auth.RequestLimited)
		time.Sleep(2 * time.Second)
		w.expect("after it", token, web, auth.NotRefused)
	})
}

// TestOffIsOff: hundreds of bad tokens are each refused for their own reason at once.
func TestOffIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := must.Get(limitset.Default().With("off"))(t)
		w := newFixture(t, func(c *auth.Config) {
			c.Limits = auth.Limits{Set: set}
		})
		start := time.Now()
		for n := range 500 {
			w.expect("forged", forge(w.token(web), n), web, auth.BadSignature)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("refusals were delayed by %v", took)
		}
		if cached := w.authenticator.Stats().Cached.Bad; cached > 4096 {
			t.Errorf("%d verdicts are kept", cached)
		}
	})
}
