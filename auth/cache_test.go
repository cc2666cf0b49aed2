package auth_test

import (
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/auth"
	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/internal/must"
)

// More tokens than the caches hold are all let in; the most recent are remembered.
func TestMoreTokensThanRoom(t *testing.T) {
	w := newFixture(t)
	tokens := make([]string, 1100)
	for i := range tokens {
		tokens[i] = w.token(web)
		w.expect("fresh", tokens[i], web, auth.NotRefused)
	}
	before := w.verifier.checks.Load()
	for _, token := range tokens[len(tokens)-1000:] {
		w.expect("recent", token, web, auth.NotRefused)
	}
	if s := w.authenticator.Stats(); w.verifier.checks.Load() != before || s.Cached.Good != 1024 {
		t.Errorf("%d recent ones were verified again; %d are remembered", w.verifier.checks.Load()-before, s.Cached.Good)
	}
	for _, token := range tokens {
		w.expect("again", token, web, auth.NotRefused)
	}
}

func TestFirstUsesShareOneVerification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		w.verifier.gate = make(chan struct{})
		token, forged := w.token(web), forge(w.token(web), 1)
		results := make(chan auth.Reason, 60)
		for i := range 60 {
			go func() {
				switch i % 3 {
				case 0:
					results <- w.askAs(token, web, peer)
				case 1:
					results <- w.ask(token, web)
				default:
					results <- w.askAs(forged, web, peer)
				}
			}()
		}
		synctest.Wait()
		close(w.verifier.gate)
		counts := map[auth.Reason]int{}
		for range 60 {
			counts[<-results]++
		}
		if counts[auth.NotRefused] != 40 || counts[auth.BadSignature] != 20 {
			t.Errorf("got %v", counts)
		}
		if checks, s := w.verifier.checks.Load(), w.authenticator.Stats(); checks != 2 || s.Verified != 2 || s.Shared != 58 {
			t.Errorf("%d signatures checked, %d requests shared", checks, s.Shared)
		}
	})
}

// Those who share a failed verification have failed like the one who led.
func TestSharedFailuresCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, standard)
		w.verifier.gate = make(chan struct{})
		forged := forge(w.token(web), 1)
		results := make(chan auth.Reason, 30)
		for range 30 {
			go func() { results <- w.ask(forged, web) }()
		}
		synctest.Wait()
		close(w.verifier.gate)
		counts := map[auth.Reason]int{}
		for range 30 {
			counts[<-results]++
		}
		if counts[auth.BadSignature] != 20 || counts[auth.CallerLimited] != 10 {
			t.Errorf("got %v, want the burst of 20 and the rest limited", counts)
		}
	})
}

func TestBadTokensAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		for _, test := range []struct {
			token  string
			want   auth.Reason
			checks int64 // in three uses, the last after more than 5 s
		}{
			{forge(w.token(web), 1), auth.BadSignature, 2},
			{w.with(web, func(c *identity.Claims) { c.Audience = []string{"x"} }), auth.WrongAudience, 2},
			{w.token(auth.Owner{AllocationID: otherID, Task: "web"}), auth.UnknownAllocation, 2},
			{unknownKey(w.token(web), 1), auth.UnknownKey, 3},
			{w.with(web, func(c *identity.Claims) { c.NotBefore += 3000 }), auth.NotYetValid, 3},
			{"garbage", auth.Malformed, 0},
		} {
			before, hits := w.verifier.checks.Load(), w.authenticator.Stats().NegativeHits
			w.expect("first", test.token, web, test.want)
			w.expect("again", test.token, web, test.want)
			time.Sleep(5 * time.Second)
			w.expect("later", test.token, web, test.want)
			if got := w.verifier.checks.Load() - before; got != test.checks {
				t.Errorf("%s: %d signatures checked, want %d", test.want, got, test.checks)
			}
			if got := w.authenticator.Stats().NegativeHits - hits; (got == 1) != (test.checks == 2) {
				t.Errorf("%s: %d negative hits", test.want, got)
			}
		}
	})
}

// What is remembered of a bad token never outlives what made it bad.
func TestRefusalsEndWithTheirCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		token := w.token(web)

		w.allocs.set(allocID, auth.Unknown)
		w.expect("before the allocation", token, web, auth.UnknownAllocation)
		w.allocs.set(allocID, auth.Live)
		w.expect("with it", token, web, auth.NotRefused)
		if got := w.authenticator.Stats().Cached.Bad; got != 0 {
			t.Errorf("%d refusals are still remembered", got)
		}

		soon := w.with(web, func(c *identity.Claims) { c.NotBefore += 3 })
		w.expect("early", soon, web, auth.NotYetValid)
		time.Sleep(3 * time.Second)
		w.expect("in time", soon, web, auth.NotRefused)

		// The key of another ring, added to what the verifier trusts.
		other, sources := identitytest.Keyring(t), &swappable{set: new(identity.KeySet)}
		verifier := must.Get(identity.NewVerifier(
			identity.VerifierConfig{Local: w.ring, Foreign: []identity.Issuer{{Keys: sources}}},
		))(t)
		w.verifier.Verifier = verifier
		foreign := identitytest.Sign(t, other, claimsOf(web))
		w.expect("before the key", foreign, web, auth.UnknownKey)
		sources.set = other.Keys()
		w.expect("with it", foreign, web, auth.NotRefused)
	})
}

// A key that is replaced under its ID turns what the old one said of a signature.
func TestReplacedKey(t *testing.T) {
	old, replaced := new(identity.KeySet), new(identity.KeySet)
	source := &swappable{set: old}
	w := newFixture(t, func(c *auth.Config) {
		c.Keys = append(c.Keys, source)
		c.Verifier = &fickle{Verifier: c.Verifier, bad: func() bool { return source.set == old }}
	})
	token := w.token(web)
	w.expect("with the old key", token, web, auth.BadSignature)
	w.expect("with the old key, remembered", token, web, auth.BadSignature)
	source.set = replaced
	w.expect("with the new key", token, web, auth.NotRefused)
}

// swappable is a source of keys whose set a test swaps.
type swappable struct{ set *identity.KeySet }

func (s *swappable) Keys() *identity.KeySet { return s.set }

// fickle is a verifier that finds every signature bad for a time.
type fickle struct {
	auth.Verifier
	bad func() bool
}

func (f *fickle) VerifyChecked(u *identity.Unverified, now time.Time) (*identity.Verified, error) {
	if f.bad() {
		return nil, &identity.Error{Reason: identity.ReasonSignature}
	}
	return f.Verifier.VerifyChecked(u, now)
}

// instant is a verifier that needs no time for a bad signature, so that a million of them can be tried.
type instant struct{ auth.Verifier }

func (v *instant) VerifyChecked(u *identity.Unverified, now time.Time) (*identity.Verified, error) {
	if u.Claims.JobID == "junk" {
		return nil, &identity.Error{Reason: identity.ReasonSignature}
	}
	return v.Verifier.VerifyChecked(u, now)
}

// TestJunk: bad tokens of every sort push no good token out.
func TestJunk(t *testing.T) { sendJunk(t, 10_000) }

// sendJunk sends n bad tokens, some of each sort, to an authenticator whose cache of good tokens is full. It returns by
// how much the process has grown.
func sendJunk(t *testing.T, n int) (grown int) {
	t.Helper()
	w := newFixture(t, func(c *auth.Config) {
		c.Verifier, c.Auditor, c.Limits.FailedLookups = &instant{c.Verifier}, nil, auth.Limits{}.FailedLookups
		c.Limits.RefusalDelay = 1
	})
	w.log.discard()
	good := make([]string, 1024)
	for i := range good {
		good[i] = w.token(web)
		w.expect("good", good[i], web, auth.NotRefused)
	}
	checks := w.verifier.checks.Load()
	bad := w.with(web, func(c *identity.Claims) { c.JobID = "junk" })
	before := residentBytes(t)
	for i := range n {
		token := forge(bad, i)
		switch i % 10 {
		case 0:
			token = unknownKey(bad, i)
		case 1:
			token = "garbage" + strconv.Itoa(i)
		}
		where := web
		where.Task += strconv.Itoa(i % 5000) // more sockets than are counted apart
		if w.askAs(token, where, auth.Peer{UID: web.UID, PID: int32(i)}) == auth.NotRefused {
			t.Fatal("junk was let in")
		}
	}
	grown = residentBytes(t) - before
	t.Logf("%d junk tokens: %d KiB more, %+v", n, grown>>10, w.authenticator.Stats())
	for _, token := range good {
		w.expect("good among junk", token, web, auth.NotRefused)
	}
	if got := w.verifier.checks.Load() - checks; got != 0 {
		t.Errorf("junk pushed %d good tokens out", got)
	}
	return grown
}

// residentBytes returns what the process has in memory, after what is garbage has been given back.
func residentBytes(t *testing.T) int {
	t.Helper()
	debug.FreeOSMemory()
	runtime.GC()
	status := must.Read(t, "/proc/self/status")
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kib := must.Get(strconv.Atoi(strings.Fields(rest)[0]))(t)
	return kib << 10
}
