package auth

import (
	"strconv"
	"time"

	"taskapi/identity"
)

// verdict is what a look-up found: a good token's entry, or why there is none. An entry says only that the token is good: it is
// still to be examined.
type verdict struct {
	entry *entry
	why   Reason
}

// limited reports whether a limit refused.
func (v verdict) limited() bool { return v.why == CallerLimited || v.why == GlobalLimited }

// costly reports whether a verdict counts as a failed look-up: those that took a look at a key or at an allocation. What is
// refused by its form alone costs less than to count it, and a good token in the wrong place is in the cache.
func costly(why Reason) bool {
	return why >= UnknownKey && why <= WrongRole || why == UnknownAllocation
}

// final reports whether a verdict is worth remembering. Two are turned by time alone; that no key has the ID is found again
// as quickly as remembered, and a key that was just added must work at once.
func final(why Reason) bool {
	return costly(why) && why != UnknownKey && why != NotYetValid && why != BadLifetime
}

// lookUp finds the verdict on a token that is not in the quick table: in the caches, or by verifying it.
//
// A caller who failed too often learns nothing of a token that is not known as good, were it the right one: verifying it is what
// the limit is there to prevent. It is per socket and user, so nobody else is shut out with it.
func (d *Door) lookUp(token string, who caller) verdict {
	key := d.prints.digest(token)
	if e := d.cache.slowHit(key); e != nil {
		d.counters.hits.Add(1)
		return verdict{entry: e}
	}
	now := time.Now()
	if r, ok := d.cache.refused(key, now, d.keys.generation()); ok {
		d.counters.negativeHits.Add(1)
		return d.again(key, r, who, now)
	}
	d.counters.misses.Add(1)
	unverified, err := identity.Check(token)
	if err != nil {
		return verdict{why: tokenReason(err)}
	}
	return d.share(first{token, unverified, key, who})
}

// again is the verdict on a bad token that comes again. It counts as one more failed look-up, so that a flood of the same token
// is slowed like any other; and a token that was refused for its allocation alone is looked at anew.
func (d *Door) again(key digest, r refusal, who caller, now time.Time) verdict {
	if r.entry != nil && d.present(r.entry) {
		d.cache.keep(key, r.entry)
		return verdict{entry: r.entry}
	}
	return d.limits.failed(who, now, verdict{why: r.why})
}

// first is a token on its first use.
type first struct {
	token      string
	unverified *identity.Unverified
	key        digest
	who        caller
}

// share verifies the token once for all requests of the caller that bring it at the same time. Other callers have flights of
// their own, since a limit of the one who leads must not decide over those who follow; verify makes them share all the same.
func (d *Door) share(f first) verdict {
	flight := string(f.key[:]) + f.who.owner.AllocationID + "/" + f.who.owner.Task + "/" + strconv.FormatUint(uint64(f.who.uid), 10)
	leads := false
	result, _, _ := d.flights.Do(flight, func() (any, error) {
		leads = true
		return d.verify(f), nil
	})
	v := result.(verdict)
	if leads {
		return v
	}
	d.counters.shared.Add(1)
	if costly(v.why) {
		return d.limits.failed(f.who, time.Now(), v)
	}
	return v
}

// verify checks the signature, with as many others at a time as there is room for. The wait is bounded by the number of
// connections, each of which waits for one verification at most. A token of the limit is spent before, and given back for a good
// one, so that a flood can't begin more than it may fail; it is spent after the wait, so that many good ones at once don't run
// into it.
func (d *Door) verify(f first) verdict {
	d.verifying <- struct{}{}
	defer func() { <-d.verifying }()
	if e := d.cache.slowHit(f.key); e != nil { // found good while this one waited
		d.counters.shared.Add(1)
		return verdict{entry: e}
	}
	now := time.Now()
	spent, decision := d.limits.lookups.Reserve(now, f.who)
	if !decision.OK {
		return over(decision)
	}
	r := refusal{until: now.Add(badFor), generation: d.keys.generation()} // before the look-up: a change between voids the verdict
	verified, err := d.verifier.VerifyChecked(f.unverified, now)
	d.counters.verified.Add(1)
	d.counters.verifyNanos.Add(int64(time.Since(now)))
	if err != nil {
		r.why = tokenReason(err)
	} else if r.entry = d.entry(d.prints.tag(f.token), verified); !d.present(r.entry) {
		// Whoever holds a trusted key could fill the cache of good tokens with those of allocations that are not here.
		r.why = UnknownAllocation
	}
	if !costly(r.why) {
		spent.Cancel()
	}
	if r.why == NotRefused {
		d.cache.keep(f.key, r.entry)
		return verdict{entry: r.entry}
	}
	if final(r.why) {
		d.cache.refuse(f.key, r)
	}
	return verdict{why: r.why}
}

// entry is what is remembered of a good token.
func (d *Door) entry(t tag, v *identity.Verified) *entry {
	e := &entry{tag: t, token: v, principal: Principal{Claims: v.Claims, KeyID: v.KeyID, Capabilities: All}}
	if !e.principal.Operator() {
		e.principal.Capabilities = d.policy.Task(v.Claims.Namespace, v.Claims.Task)
	}
	return e
}

// present reports whether the token's allocation is here, live or ended.
func (d *Door) present(e *entry) bool {
	return d.allocations.Liveness(e.principal.Claims.AllocationID) != Unknown
}
