package auth_test

import (
	"os"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/internal/must"
	"taskapi/ratelimit"
)

// The limit of one socket's callers decides over nobody else's use of the same token at the same time.
func TestLimitIsNotSharedWithTheVerification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, standard)
		w.exhaust(web, peer)
		other := auth.Owner{AllocationID: otherID, Task: "db", UID: 1000}
		for range 20 {
			w.ask(forge(w.token(db), 1), other)
		}
		w.verifier.gate = make(chan struct{})
		busy := runtime.GOMAXPROCS(0) // verifications, which keep the next ones waiting
		blocked := make(chan auth.Reason, busy)
		for range busy {
			go func() { blocked <- w.ask(w.token(db), db) }()
		}
		synctest.Wait()
		token, results := w.token(db), map[auth.Owner]chan auth.Reason{}
		for _, owner := range []auth.Owner{web, other, db} { // the first of those who share would lead
			results[owner] = make(chan auth.Reason, 1)
			go func() { results[owner] <- w.ask(token, owner) }()
			synctest.Wait()
		}
		close(w.verifier.gate)
		for range busy {
			if got := <-blocked; got != auth.NotRefused {
				t.Errorf("a good token: %s", got)
			}
		}
		for owner, want := range map[auth.Owner]auth.Reason{web: auth.CallerLimited, other: auth.CallerLimited,
			db: auth.NotRefused} {
			got := <-results[owner]
			if got != want && (owner == db || got != auth.WrongSocket) { // when it was found good meanwhile
				t.Errorf("on the socket of %s: %s, want %s", owner.Task, got, want)
			}
		}
	})
}

// TestRetryAfterCountsFromTheAnswer: each refusal by a limit is delayed, even while refusals are few, and Retry-After
// counts from the answer.
func TestRetryAfterCountsFromTheAnswer(t *testing.T) {
	const delay = 250 * time.Millisecond
	few := ratelimit.Rate{PerSecond: 1, Burst: 1}
	for name, test := range map[string]struct {
		limits limitset.Set
		good   bool
		want   auth.Reason
	}{
		"failed look-ups": {
			limitset.Set{FailedLookups: few, AllFailedLookups: unfelt.AllFailedLookups, Refusals: unfelt.Refusals},
			false, auth.CallerLimited,
		},
		"requests": {
			limitset.Set{
				FailedLookups: unfelt.FailedLookups, AllFailedLookups: unfelt.AllFailedLookups, Requests: few,
				Refusals: ratelimit.Rate{PerSecond: 1e-5, Burst: 1},
			},
			true, auth.RequestLimited,
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newFixture(t, func(c *auth.Config) { c.Limits = auth.Limits{Set: test.limits, RefusalDelay: delay} })
			w.ask("", web) // uses up the refusals that are not delayed
			token := w.token(web)
			if !test.good {
				token = forge(token, 1)
			}
			w.ask(token, web)
			start := time.Now()
			_, denial := w.authenticator.Authenticate(request(token), web, peer)
			if denial == nil || denial.Reason != test.want {
				t.Fatalf("%s: %v", name, denial)
			}
			if took := time.Since(start); took != delay || took+denial.RetryAfter != time.Second {
				t.Errorf("%s: refused after %v for another %v, want %v and a second together", name, took, denial.RetryAfter, delay)
			}
		})
	}
}

// What is remembered of a bad token is dropped when it is found to be too old, also when nothing takes its place.
func TestStaleRefusalIsDropped(t *testing.T) {
	w := newFixture(t)
	w.expect("forged", forge(w.token(web), 1), web, auth.BadSignature)
	forged, old := forge(w.token(web), 2), w.ring.Active().ID
	w.expect("forged", forged, web, auth.BadSignature)
	must.Get(w.ring.Rotate())(t)
	must.OK(t, w.ring.Remove(old))
	w.expect("without the key", forged, web, auth.UnknownKey) // which is not remembered
	if got := w.authenticator.Stats().Cached.Bad; got != 1 {
		t.Errorf("%d refusals are remembered, want the other one", got)
	}
}

// A socket is for its owner, for root, and for the user that the authenticator runs as, also when that is not root.
func TestPeersOfAnotherUsersAuthenticator(t *testing.T) {
	var config auth.Config
	w := newFixture(t, func(c *auth.Config) { config = *c })
	self := os.Geteuid()
	if self == 0 {
		self = 4711
		must.OK(t, syscall.Seteuid(self))
	}
	var err error
	w.authenticator, err = auth.NewAuthenticator(config)
	if os.Getuid() == 0 {
		must.OK(t, syscall.Seteuid(0))
	}
	must.OK(t, err)
	owner := auth.Owner{AllocationID: allocID, Task: "web", UID: 64_000}
	for uid, want := range map[uint32]auth.Reason{
		0: auth.NotRefused, uint32(self): auth.NotRefused, owner.UID: auth.NotRefused, 64_001: auth.WrongPeer,
	} {
		if got := w.askAs(w.token(owner), owner, auth.Peer{UID: uid}); got != want {
			t.Errorf("a process of uid %d: %s, want %s", uid, got, want)
		}
	}
}

// TestLimitsOfOtherMachines: the bad tokens of a client of another machine use up the limit of its certificate alone.
// A new token of a process of this machine, and of a client with another certificate, is verified.
func TestLimitsOfOtherMachines(t *testing.T) {
	w := newFixture(t, standard)
	one, other := peer, peer
	one.Address, one.Certificate = "192.0.2.1:4000", "one"
	other.Address, other.Certificate = "192.0.2.1:4001", "other"
	w.exhaust(web, one)
	for who, want := range map[auth.Peer]auth.Reason{
		one: auth.CallerLimited, other: auth.NotRefused, peer: auth.NotRefused,
	} {
		if got := w.askAs(w.token(web), web, who); got != want {
			t.Errorf("certificate %q: %s, want %s", who.Certificate, got, want)
		}
	}
}
