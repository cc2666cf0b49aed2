package auth

import (
	"time"

	"taskapi/identity"
)

// verdict is what a look-up found: a good token's entry, or why there is none. An entry says only that the token is good: it is
// still to be examined.
type verdict struct {
	entry *entry
	why   Reason
	from  *Principal // whose token was refused; nil unless a trusted key signed it
}

// refused is the verdict on a token that a trusted key signed, if token is not nil.
func refused(why Reason, token *identity.Verified) verdict {
	if token == nil {
		return verdict{why: why}
	}
	return verdict{why: why, from: &Principal{Claims: token.Claims, KeyID: token.KeyID}}
}

// limited reports whether a limit refused.
func (v verdict) limited() bool { return v.why == CallerLimited || v.why == GlobalLimited }

// countsAsFailure reports whether a verdict counts as a failed look-up: those that took a look at a key or at an allocation. What is
// refused by its form alone costs less than to count it, and a good token in the wrong place is in the cache.
func countsAsFailure(why Reason) bool {
	return why >= UnknownKey && why <= WrongRole || why >= UnknownAllocation && why <= WrongClaims
}

// final reports whether a verdict is worth remembering. Two are turned by time alone; that no key has the ID is found again
// as quickly as remembered, and a key that was just added must work at once.
func cacheable(why Reason) bool {
	return countsAsFailure(why) && why != UnknownKey && why != NotYetValid && why != BadLifetime
}

// lookUp finds the verdict on a token that is not in the quick table: in the caches, or by verifying it.
//
// A caller who failed too often learns nothing of a token that is not known as good, were it the right one: verifying it is what
// the limit is there to prevent. It is per socket, so nobody else is shut out with it.
func (a *Authenticator) lookUp(token string, who Owner) verdict {
	key := a.digests.digest(token)
	if e := a.cache.slowHit(key); e != nil {
		a.counters.hits.Add(1)
		return verdict{entry: e}
	}
	now := time.Now()
	if r, ok := a.cache.refused(key, now, a.keys.generation()); ok {
		a.counters.negativeHits.Add(1)
		return a.again(a.digests.tag(token), key, r, who, now)
	}
	a.counters.misses.Add(1)
	unverified, err := identity.Check(token)
	if err != nil {
		return verdict{why: tokenReason(err)}
	}
	return a.share(first{token, unverified, key, who})
}

// again is the verdict on a bad token that comes again. It counts as one more failed look-up, so that a flood of the same token
// is slowed like any other; and a token that was refused for its allocation alone is looked at anew.
func (a *Authenticator) again(t tag, key digest, r refusal, who Owner, now time.Time) verdict {
	if r.why >= UnknownAllocation { // and not by what it says for ever
		e, why := a.entry(t, r.token)
		if why == NotRefused {
			a.cache.keep(key, e)
			return verdict{entry: e}
		}
		r.why = why
	}
	return a.limits.failed(who, now, refused(r.why, r.token))
}

// first is a token on its first use.
type first struct {
	token      string
	unverified *identity.Unverified
	key        digest
	who        Owner
}

// share verifies the token once for all requests on a socket that bring it at the same time. Other sockets have flights of
// their own, since a limit of the one who leads must not decide over those who follow; verify makes them share all the same.
func (a *Authenticator) share(f first) verdict {
	flight := string(f.key[:]) + f.who.AllocationID + "/" + f.who.Task
	leads := false
	result, _, _ := a.flights.Do(flight, func() (any, error) {
		leads = true
		return a.verify(f), nil
	})
	v := result.(verdict)
	if leads {
		return v
	}
	a.counters.shared.Add(1)
	if countsAsFailure(v.why) {
		return a.limits.failed(f.who, time.Now(), v)
	}
	return v
}

// verify checks the signature, with as many others at a time as there is room for. The wait is bounded by the number of
// connections, each of which waits for one verification at most. A token of the limit is spent before, and given back for a good
// one, so that a flood can't begin more than it may fail; it is spent after the wait, so that many good ones at once don't run
// into it.
func (a *Authenticator) verify(f first) verdict {
	a.verifying <- struct{}{}
	defer func() { <-a.verifying }()
	if e := a.cache.slowHit(f.key); e != nil { // found good while this one waited
		a.counters.shared.Add(1)
		return verdict{entry: e}
	}
	now := time.Now()
	spent, decision := a.limits.lookups.Reserve(now, f.who)
	if !decision.OK {
		return over(decision)
	}
	r := refusal{until: now.Add(badFor), generation: a.keys.generation()} // before the look-up: a change between voids the verdict
	var err error
	r.token, err = a.verifier.VerifyChecked(f.unverified, now)
	a.counters.verified.Add(1)
	a.counters.verifyNanos.Add(int64(time.Since(now)))
	var e *entry
	if err != nil {
		r.why = tokenReason(err)
	} else { // a holder of a trusted key must not fill the cache of good tokens with those of other allocations
		e, r.why = a.entry(a.digests.tag(f.token), r.token)
	}
	if !countsAsFailure(r.why) {
		spent.Cancel()
	}
	if e != nil {
		a.cache.keep(f.key, e)
		return verdict{entry: e}
	}
	if cacheable(r.why) {
		a.cache.refuse(f.key, r)
	}
	return refused(r.why, r.token)
}

// entry is what is remembered of a good token, or why it is not one of an allocation that is here, live or ended. What a task may do is
// decided by its allocation, not by what the token says.
func (a *Authenticator) entry(t tag, v *identity.Verified) (*entry, Reason) {
	alloc, liveness := a.allocations.Lookup(v.Claims.AllocationID)
	if alloc == nil || liveness == Unknown {
		return nil, UnknownAllocation
	}
	if why := alloc.mismatch(v); why != NotRefused {
		return nil, why
	}
	e := &entry{tag: t, token: v, alloc: alloc, principal: Principal{Claims: v.Claims, KeyID: v.KeyID, Capabilities: All}}
	e.principal.entry = e
	if !e.principal.Operator() {
		e.principal.Capabilities = a.policy.Task(alloc.Namespace, v.Claims.Task)
	}
	return e, NotRefused
}
