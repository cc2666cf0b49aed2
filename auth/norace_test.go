//go:build !race

package auth_test

import (
	"flag"
	"testing"
)

// The race detector allocates, so what costs no memory is tested without it: `make test` runs these tests by their
// names, which end in Memory.

// junk is 25 times what the cache of bad tokens holds; the promise is made for 1,000,000, which take some 10 s.
var junk = flag.Int("junk", 100_000, "bad tokens in TestJunkTakesLittleMemory")

func TestCachedTakesNoMemory(t *testing.T) {
	w := newFixture(t)
	r := request(w.token(web))
	w.authenticate(t, r)
	if got := testing.AllocsPerRun(1000, func() { w.authenticate(t, r) }); got != 0 {
		t.Errorf("a cached request costs %v allocations", got)
	}
	if s := w.authenticator.Stats(); s.Misses != 1 || s.Verified != 1 || s.Hits < 1000 || s.Cached.Good != 1 {
		t.Errorf("stats %+v", s)
	}
}

func TestRecheckTakesNoMemory(t *testing.T) {
	w := newFixture(t)
	r := request(w.token(web))
	p := admitted(w.authenticator.Authenticate(r, web, peer))(t)
	if got := testing.AllocsPerRun(100, func() { w.authenticator.Recheck(r, p, web, peer) }); got != 0 {
		t.Errorf("a recheck costs %v allocations", got)
	}
}

func TestJunkTakesLittleMemory(t *testing.T) {
	if grown := sendJunk(t, *junk); grown > 8<<20 {
		t.Errorf("%d junk tokens made the process %d KiB larger", *junk, grown>>10)
	}
}
