package auth

import (
	"errors"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"taskapi/identity"
)

// Verifier checks tokens against the keys. Its methods are safe for any number of goroutines.
type Verifier interface {
	// VerifyChecked checks the signature and the claims of a token whose form is right. Errors: *identity.Error, wrapped.
	// If the signature is good, the token is returned beside the error.
	VerifyChecked(token *identity.Unverified, now time.Time) (*identity.Verified, error)
	// Trusts reports whether the key that verified the token is still trusted. It is called for every request, and
	// answers from memory.
	Trusts(token *identity.Verified) bool
}

var _ Verifier = (*identity.Verifier)(nil)

// Revocations says which tokens are refused before they expire. It is called for every request, by any number of
// goroutines, and does not wait. Every request that starts after a change must see the change.
type Revocations interface {
	Revoked(*identity.Claims) bool
}

// Config holds the parts of an Authenticator. Verifier, Allocations and Logger are required.
type Config struct {
	Verifier    Verifier
	Allocations Allocations
	Logger      *slog.Logger // gets a line on refusals, at most one a second
	Policy      *Policy      // what tasks may do; nil: DefaultTask

	// Keys are the Verifier's sources of keys. When one of them swaps its set, cached verdicts on bad tokens are dropped.
	// Without Keys, a token that a new key makes good may be refused for another 5 s.
	Keys []identity.KeySource

	Revocations Revocations // nil: no token is revoked

	// OperatorSecret returns the token for which a secret in the form of a UUID stands, on the operator's socket only.
	// The token is then checked as if the client had sent it. Nil for no secrets.
	OperatorSecret func(secret string) (token string, known bool)

	Auditor  Auditor   // gets the refusals of Authenticate; nil for none
	Refusals *Refusals // remembers these, too; nil for none
	Limits   Limits    // of failed look-ups; zero fields have the defaults

	// Now returns the time for tokens and limits; nil: time.Now. Tests move it.
	Now func() time.Time
}

// Authenticator authenticates and authorizes requests. It is safe for any number of goroutines, starts none, and needs
// no closing.
type Authenticator struct {
	config Config
	self   uint32 // the user that this process runs as

	digests       *tokenDigests
	cache         *cache
	verifications singleflight.Group // of first uses, by token and caller
	verifying     chan struct{}      // one element for each verification under way
	limits        *limits

	logs       rate.Sometimes // samples the log's lines on refusals
	suppressed atomic.Uint64  // refusals since the latest such line
	counters   counters
}

// NewAuthenticator returns an Authenticator.
func NewAuthenticator(config Config) (*Authenticator, error) {
	if config.Verifier == nil || config.Allocations == nil || config.Logger == nil {
		return nil, errors.New("auth: Config needs Verifier, Allocations and Logger")
	}
	limits, err := newLimits(config.Limits)
	if err != nil {
		return nil, err
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	return &Authenticator{
		config: config, self: uint32(os.Geteuid()),
		digests: newTokenDigests(), cache: newCache(), limits: limits,
		// First uses get at most half of the processors. The others are for callers whose token is cached.
		verifying: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
		logs:      rate.Sometimes{Interval: time.Second},
	}, nil
}

// secretLength is the length of a UUID. No token is as short.
const secretLength = 36

// Authenticate returns the principal who sends a request from the peer through the owner's socket, or why the request
// is refused. It must be called for every request, before its path or method is looked at. A good token in the cache
// takes no lock and no memory. A refusal may be delayed for a moment, at most until the request's context ends.
func (a *Authenticator) Authenticate(r *http.Request, owner Owner, peer Peer) (*Principal, *Denial) {
	// The socket's mode keeps other users out, too, but a task owns its socket and can change the mode.
	if peer.UID != 0 && peer.UID != owner.UID && peer.UID != a.self && !owner.AnyUser {
		return nil, a.refuse(r, owner, peer, verdict{why: WrongPeer})
	}
	token, why := credentials(r.Header)
	if why != NotRefused {
		return nil, a.refuse(r, owner, peer, verdict{why: why})
	}
	if len(token) == secretLength && owner.Task == "" && a.config.OperatorSecret != nil {
		stands, known := a.config.OperatorSecret(token)
		if !known {
			v := a.limits.countFailure(callerOf(owner, peer), a.config.Now(), verdict{why: UnknownSecret})
			return nil, a.refuse(r, owner, peer, v)
		}
		token = stands
	}
	now := a.config.Now()
	e := a.cache.hit(a.digests.tag(token), now)
	if e == nil {
		v := a.lookUp(token, callerOf(owner, peer))
		if v.why == GlobalLimited && a.delay(r) {
			v = a.lookUp(token, callerOf(owner, peer)) // the flood of others must not shut this caller out
		}
		if v.why != NotRefused {
			return nil, a.refuse(r, owner, peer, v)
		}
		e, now = v.entry, a.config.Now()
	} else {
		a.counters.hits.Add(1)
	}
	if why = a.recheck(e, now, owner); why != NotRefused {
		return nil, a.refuse(r, owner, peer, verdict{why: why, from: &e.principal})
	}
	// The operator has no limit.
	if l := a.limits.requests; l != nil && owner.Task != "" && !l.Allow(now, owner.anyUser()).OK {
		return nil, a.refuse(r, owner, peer, verdict{why: RequestLimited, from: &e.principal})
	}
	return &e.principal, nil
}

// Authorize checks that the principal has one of the capabilities; nil means yes. If there are none, it is refused.
func (a *Authenticator) Authorize(p *Principal, anyOf CapabilitySet) *Denial {
	if p != nil && p.Capabilities&anyOf != 0 {
		return nil
	}
	a.counters.refused[MissingCapability].Add(1)
	return &denials[MissingCapability]
}

// Recheck decides again on a request that Authenticate has let in and that has waited since, or goes on; nil means yes.
// It checks the clock, the trust in the key, revocations and the allocation's life. If the allocation has ended
// meanwhile, that is no reason for a refusal: the caller may be waiting for the end, and its next request is refused.
// It costs as little as Authenticate with a cached token, and no limit applies.
func (a *Authenticator) Recheck(r *http.Request, p *Principal, owner Owner, peer Peer) *Denial {
	if p == nil || p.entry == nil { // no Authenticator has let it in
		return a.refuse(r, owner, peer, verdict{why: NoToken})
	}
	why := a.recheck(p.entry, a.config.Now(), owner)
	if why == NotRefused || why == TerminalAllocation {
		return nil
	}
	return a.refuse(r, owner, peer, verdict{why: why, from: p})
}

// recheck checks everything that may have changed since the token was verified, and everything that depends on the
// socket. It returns TerminalAllocation only if there is no other reason.
func (a *Authenticator) recheck(e *entry, now time.Time, owner Owner) Reason {
	c := &e.principal.Claims
	if err := e.token.CheckTime(now); err != nil {
		return ReasonOf(err)
	}
	if !a.config.Verifier.Trusts(e.token) {
		return KeyRemoved
	}
	if a.config.Revocations != nil && a.config.Revocations.Revoked(c) {
		return Revoked
	}
	alloc, liveness := a.config.Allocations.Lookup(c.AllocationID)
	if alloc == nil || liveness == Unknown {
		return UnknownAllocation
	}
	if alloc != e.alloc {
		if why := alloc.mismatch(e.token); why != NotRefused {
			return why
		}
	}
	// The operator's socket is the one without a task, and only the operator's token may lack a task.
	if c.AllocationID != owner.AllocationID || c.Task != owner.Task ||
		(c.Role == identity.RoleOperator) != (owner.Task == "") {
		return WrongSocket
	}
	if liveness != Live && c.Role != identity.RoleOperator { // the operator may see the end, until the socket closes
		return TerminalAllocation
	}
	return NotRefused
}
