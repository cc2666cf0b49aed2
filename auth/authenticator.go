package auth

import (
	"errors"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"

	"taskapi/identity"
)

// Verifier is what the Authenticator needs of the keys; *identity.Verifier is one. Its methods are safe for any number of goroutines.
type Verifier interface {
	// VerifyChecked checks signature and claims of a token whose form is right. Its error holds an *identity.Error; the token comes
	// with it when its signature is good.
	VerifyChecked(token *identity.Unverified, now time.Time) (*identity.Verified, error)
	// Trusts reports whether the key that verified the token is still trusted. It is asked on every request, so it answers from
	// memory.
	Trusts(token *identity.Verified) bool
}

// Liveness is what is known of an allocation.
type Liveness uint8

const (
	// Unknown: no such allocation is here. It is the zero value: who is not known is refused.
	Unknown Liveness = iota
	// Live: it runs, or will.
	Live
	// Terminal: it has ended, and its tasks' identities with it.
	Terminal
)

// Allocation is what every token of an allocation must say of it. It is never changed: another life of the allocation, or another
// allocation under its ID, is another Allocation.
type Allocation struct {
	Region, Namespace, JobID, TaskGroup string

	// Life tells lives of the allocation apart, which have its ID in common: it begins a new one each time it is run from its beginning.
	// It is empty for an allocation that has been running since before there was such a claim.
	Life string
}

// mismatch is why the token is not one of the allocation's present life, NotRefused when it is. Who signed it makes one difference:
// another issuer may know nothing of lives, and need not repeat in sub what the other claims say.
func (a *Allocation) mismatch(t *identity.Verified) Reason {
	c := &t.Claims
	if c.Life != a.Life && (c.Life != "" || !t.Foreign()) {
		return EarlierLife
	}
	if c.Namespace != a.Namespace || c.JobID != a.JobID {
		return WrongClaims
	}
	if c.Subject == "" && t.Foreign() {
		return NotRefused
	}
	name, ok := strings.CutPrefix(c.Subject, identity.Subject(a.Region, a.Namespace, a.JobID, a.TaskGroup, c.Task, ""))
	if !ok || name == "" || strings.Contains(name, ":") {
		return WrongClaims
	}
	return NotRefused
}

// Allocations is what the Authenticator needs of the allocations. It is asked on every request, so it answers from memory, without
// waiting; a change is seen by every request that starts after it.
type Allocations interface {
	// Lookup finds an allocation by its ID. One that is Live or Terminal comes with what its tokens must say, always as the same
	// pointer while that is the same.
	Lookup(allocationID string) (*Allocation, Liveness)
}

// Config is what an Authenticator is made of. Verifier, Allocations and Logger are required.
type Config struct {
	Verifier    Verifier
	Allocations Allocations
	Logger      *slog.Logger // gets a line on refusals, at most once a second
	Policy      *Policy      // what tasks may do; nil: DefaultTask

	// Keys are the Verifier's sources of keys. When one of them swaps its set, what was found of bad tokens is forgotten; without
	// them, a token that a changed key would make good may be refused for another 5 s.
	Keys []identity.KeySource

	Auditor Auditor // gets what Authenticate refuses; nil: nobody
	Limits  Limits  // of failed look-ups; zero fields take the defaults
}

// Authenticator decides on requests. It is safe for any number of goroutines, starts none, and needs no closing.
type Authenticator struct {
	verifier    Verifier
	keys        *keyWatch
	allocations Allocations
	logger      *slog.Logger
	policy      *Policy
	auditor     Auditor
	self        uint32 // the user that this process runs as

	digests   *tokenDigests
	cache     *cache
	flights   singleflight.Group // of first uses, by token and caller
	verifying chan struct{}      // holds one element for every verification under way
	limits    *limits

	logs     rateSampler
	counters counters
}

// NewAuthenticator returns an Authenticator.
func NewAuthenticator(config Config) (*Authenticator, error) {
	if config.Verifier == nil || config.Allocations == nil || config.Logger == nil {
		return nil, errors.New("auth: Config needs Verifier, Allocations and Logger")
	}
	digests, err := newTokenDigests()
	if err != nil {
		return nil, err
	}
	cache, err := newCache()
	if err != nil {
		return nil, err
	}
	limits, err := newLimits(config.Limits)
	if err != nil {
		return nil, err
	}
	return &Authenticator{
		verifier: config.Verifier, keys: &keyWatch{sources: config.Keys},
		allocations: config.Allocations, logger: config.Logger, policy: config.Policy, auditor: config.Auditor,
		self:    uint32(os.Geteuid()),
		digests: digests, cache: cache, limits: limits,
		// First uses get half of the processors at most: the others are for callers whose token is known.
		verifying: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
	}, nil
}

// Authenticate finds out who sends a request through the owner's socket from the peer. Exactly one of the results is nil. It
// is to be asked for every request, before the path or the method is looked at. A good token that is known takes no lock and no
// memory; a refusal may be held back for a moment, until the request's context ends at the latest.
func (a *Authenticator) Authenticate(r *http.Request, owner Owner, peer Peer) (*Principal, *Denial) {
	if !a.mayConnect(peer, owner) {
		return nil, a.refuse(r, owner, peer, verdict{why: WrongPeer})
	}
	token, why := credentials(r.Header)
	if why != NotRefused {
		return nil, a.refuse(r, owner, peer, verdict{why: why})
	}
	e := a.cache.hit(a.digests.tag(token))
	if e == nil {
		v := a.lookUp(token, owner)
		if v.why == GlobalLimited && a.hold(r) {
			v = a.lookUp(token, owner) // others filled the limit: their flood must not shut this caller out
		}
		if v.why != NotRefused {
			return nil, a.refuse(r, owner, peer, v)
		}
		e = v.entry
	} else {
		a.counters.hits.Add(1)
	}
	if why = a.recheck(e, time.Now(), owner); why != NotRefused {
		return nil, a.refuse(r, owner, peer, verdict{why: why, from: &e.principal})
	}
	return &e.principal, nil
}

// Authorize decides whether the principal may do what needs one of the capabilities; nil is yes. Nobody may do what names none.
func (a *Authenticator) Authorize(p *Principal, anyOf CapabilitySet) *Denial {
	if p != nil && p.Capabilities&anyOf != 0 {
		return nil
	}
	a.counters.refused[MissingCapability].Add(1)
	return &denials[MissingCapability]
}

// mayConnect reports whether processes of the peer's user may speak through the owner's socket. The socket's mode keeps others out as
// well, but a task owns its socket and can change that.
func (a *Authenticator) mayConnect(peer Peer, owner Owner) bool {
	return peer.UID == 0 || peer.UID == owner.UID || peer.UID == a.self
}

// Recheck decides once more on a request that Authenticate has let in and that has waited since, or goes on: nil is yes. It looks at
// the clock, the trust in the key and the allocation's life. An allocation that has ended meanwhile is no reason to refuse: its end is
// what the caller waits for, and the next request is refused. It costs as little as Authenticate for a token that is known, and no limit
// applies.
func (a *Authenticator) Recheck(r *http.Request, p *Principal, owner Owner, peer Peer) *Denial {
	if p == nil || p.entry == nil { // no Authenticator has let it in
		return a.refuse(r, owner, peer, verdict{why: NoToken})
	}
	why := a.recheck(p.entry, time.Now(), owner)
	if why == NotRefused || why == TerminalAllocation {
		return nil
	}
	return a.refuse(r, owner, peer, verdict{why: why, from: p})
}

// examine looks at all that may have changed since the token was verified, and at what depends on the socket. That the allocation
// has ended is its last reason.
func (a *Authenticator) recheck(e *entry, now time.Time, owner Owner) Reason {
	c := &e.principal.Claims
	if err := e.token.CheckTime(now); err != nil {
		return tokenReason(err)
	}
	if !a.verifier.Trusts(e.token) {
		return KeyRemoved
	}
	alloc, liveness := a.allocations.Lookup(c.AllocationID)
	if alloc == nil || liveness == Unknown {
		return UnknownAllocation
	}
	if alloc != e.alloc {
		if why := alloc.mismatch(e.token); why != NotRefused {
			return why
		}
	}
	// The operator's socket is the one without a task, and only the operator's token may go without one.
	if c.AllocationID != owner.AllocationID || c.Task != owner.Task || (c.Role == identity.RoleOperator) != (owner.Task == "") {
		return WrongSocket
	}
	if liveness != Live && c.Role != identity.RoleOperator { // the operator may see the end, until that socket closes
		return TerminalAllocation
	}
	return NotRefused
}
