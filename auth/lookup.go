package auth

import (
	"cmp"
	"time"

	"taskapi/identity"
)

// verdict is the result of a look-up: a good token's entry, or why there is none. An entry does not say whether
// anything has changed since the token was verified: see recheck.
type verdict struct {
	entry *entry
	why   Reason
	from  *Principal // whose token was refused; nil unless a trusted key signed it
}

// refused returns the verdict on a bad token, with its principal if a trusted key signed it.
func refused(why Reason, token *identity.Verified) verdict {
	if token == nil {
		return verdict{why: why}
	}
	return verdict{why: why, from: &Principal{Claims: token.Claims, KeyID: token.KeyID}}
}

func (v verdict) limited() bool { return v.why == CallerLimited || v.why == GlobalLimited }

// countsAsFailure reports whether a verdict counts as a failed look-up: verdicts that needed a key or an allocation do.
// Refusing a token by its form alone costs less than counting it, and a good token on the wrong socket is in the cache.
// Claims that are bad after all have cost a verification.
func countsAsFailure(why Reason) bool {
	return why >= BadClaims && why <= WrongRole || why >= UnknownAllocation && why <= WrongClaims
}

// lookUp returns the verdict on a token that is not in the quick table: from the caches, or by verifying it.
//
// A limited caller gets no verification, even for a valid token. The limit is per caller, so nobody else is shut out
// with it.
func (a *Authenticator) lookUp(token string, who caller) verdict {
	key, now := a.digests.digest(token), a.config.Now()
	if e := a.cache.slowHit(key, now); e != nil {
		a.counters.hits.Add(1)
		return verdict{entry: e}
	}
	if r, ok := a.cache.refused(key, now, a.keySets()); ok {
		a.counters.negativeHits.Add(1)
		return a.repeatedBadToken(a.digests.tag(token), key, r, who, now)
	}
	a.counters.misses.Add(1)
	unverified, err := identity.Check(token)
	if err != nil {
		return verdict{why: ReasonOf(err)}
	}
	return a.verifyShared(token, unverified, key, who)
}

// keySets returns the present sets of keys. It is called for first uses and bad tokens, never for a good token in the
// cache.
func (a *Authenticator) keySets() []*identity.KeySet {
	now := make([]*identity.KeySet, len(a.config.Keys))
	for i, source := range a.config.Keys {
		now[i] = source.Keys()
	}
	return now
}

// repeatedBadToken returns the verdict on a bad token that is in the cache. It counts as another failed look-up, so a
// flood of one token is slowed like any other. A token that was refused only for its allocation is checked again.
func (a *Authenticator) repeatedBadToken(t tag, key digest, r refusal, who caller, now time.Time) verdict {
	if r.why >= UnknownAllocation { // which may have changed
		e, why := a.entry(t, r.token, who.Owner)
		if why == NotRefused {
			a.cache.keep(key, e)
			return verdict{entry: e}
		}
		r.why = why
	}
	return a.limits.countFailure(who, now, refused(r.why, r.token))
}

// verifyShared verifies the token once for all requests of a caller that bring it at the same time. Requests of other
// callers don't wait for it, since the limit of one caller must not decide about another. They still share the result:
// see verify.
func (a *Authenticator) verifyShared(token string, unverified *identity.Unverified, key digest, who caller) verdict {
	leads := false
	shared := string(key[:]) + who.AllocationID + "/" + who.Task + "/" + who.certificate
	result, _, _ := a.verifications.Do(shared, func() (any, error) {
		leads = true
		return a.verify(token, unverified, key, who), nil
	})
	v := result.(verdict)
	if leads {
		return v
	}
	a.counters.shared.Add(1)
	if countsAsFailure(v.why) {
		return a.limits.countFailure(who, a.config.Now(), v)
	}
	return v
}

// verify checks the signature, with a bounded number of verifications at a time. The wait is bounded by the number of
// connections, each of which waits for at most one verification. A failure is reserved from the limit first, and given
// back for a good token, so that a flood can't begin more verifications than may fail. It is reserved after the wait,
// so that many good tokens at once don't reach the limit.
func (a *Authenticator) verify(token string, unverified *identity.Unverified, key digest, who caller) verdict {
	a.verifying <- struct{}{}
	defer func() { <-a.verifying }()
	now := a.config.Now()
	if e := a.cache.slowHit(key, now); e != nil { // another request has verified it meanwhile
		a.counters.shared.Add(1)
		return verdict{entry: e}
	}
	reserved, decision := a.limits.lookups.Reserve(now, who)
	if !decision.OK {
		return verdict{why: limitReason(decision)}
	}
	// The keys are read before the look-up, so that a change in between voids the verdict.
	r := refusal{until: now.Add(badFor), keys: a.keySets()}
	began := time.Now()
	var err error
	r.token, err = a.config.Verifier.VerifyChecked(unverified, now)
	a.counters.verified.Add(1)
	a.counters.verifyNanos.Add(int64(time.Since(began)))
	var e *entry
	if err != nil {
		r.why = ReasonOf(err)
	} else { // a foreign issuer must not fill the cache with tokens of other allocations
		e, r.why = a.entry(a.digests.tag(token), r.token, who.Owner)
	}
	failed := countsAsFailure(r.why)
	if !failed {
		reserved.Cancel()
	}
	if e != nil {
		a.cache.keep(key, e)
		return verdict{entry: e}
	}
	// NotYetValid and BadLifetime change with time alone. An unknown key is found as quickly as a cached verdict, and a
	// key that was just added must work at once.
	if failed && r.why != UnknownKey && r.why != NotYetValid && r.why != BadLifetime {
		a.cache.bad.Add(key, r)
	}
	return refused(r.why, r.token)
}

// entry returns the cache's entry of a good token, or why the token does not belong to an allocation that is here, live
// or ended. The policy is that of the allocation's namespace, not of one that the token claims.
//
// A mapped token of another issuer need not name an allocation: it is for that of the socket which it came to first.
func (a *Authenticator) entry(t tag, v *identity.Verified, who Owner) (*entry, Reason) {
	id := v.Claims.AllocationID
	if v.Mapped() {
		id = cmp.Or(id, who.AllocationID)
	}
	alloc, liveness := a.config.Allocations.Lookup(id)
	if alloc == nil || liveness == Unknown {
		return nil, UnknownAllocation
	}
	v = v.Within(who.AllocationID, alloc.Namespace, alloc.JobID)
	if why := alloc.mismatch(v); why != NotRefused {
		return nil, why
	}
	e := &entry{tag: t, token: v, alloc: alloc, principal: Principal{
		Claims: v.Claims, TaskGroup: alloc.TaskGroup, KeyID: v.KeyID, Capabilities: All,
	}}
	e.principal.entry = e
	if !e.principal.Operator() {
		e.principal.Capabilities, e.principal.paths = a.config.Policy.grant(alloc.Namespace, v.Claims.Task)
	}
	return e, NotRefused
}
