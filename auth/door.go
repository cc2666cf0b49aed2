package auth

import (
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"time"

	"golang.org/x/sync/singleflight"

	"taskapi/identity"
)

// Verifier is what the door asks of the keys; *identity.Verifier is one. Its methods are safe for any number of goroutines.
type Verifier interface {
	// VerifyChecked checks signature and claims of a token whose form is right. Its error holds an *identity.Error.
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

// Allocations is what the door asks of the allocations. It is asked on every request, so it answers from memory, without
// waiting; a change is seen by every request that starts after it.
type Allocations interface {
	Liveness(allocationID string) Liveness
}

// Config is what a Door is made of. Verifier, Allocations and Logger are required.
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

// Door decides on requests. It is safe for any number of goroutines, starts none, and needs no closing.
type Door struct {
	verifier    Verifier
	keys        *keyWatch
	allocations Allocations
	logger      *slog.Logger
	policy      *Policy
	auditor     Auditor

	prints    *fingerprints
	cache     *cache
	flights   singleflight.Group // of first uses, by token and caller
	verifying chan struct{}      // holds one element for every verification under way
	limits    *limits

	logs     gate
	counters counters
}

// NewDoor makes a Door.
func NewDoor(config Config) (*Door, error) {
	if config.Verifier == nil || config.Allocations == nil || config.Logger == nil {
		return nil, errors.New("auth: Config needs Verifier, Allocations and Logger")
	}
	prints, err := newFingerprints()
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
	return &Door{
		verifier: config.Verifier, keys: &keyWatch{sources: config.Keys},
		allocations: config.Allocations, logger: config.Logger, policy: config.Policy, auditor: config.Auditor,
		prints: prints, cache: cache, limits: limits,
		// First uses get half of the processors at most: the others are for callers whose token is known.
		verifying: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
	}, nil
}

// Authenticate finds out who sends a request through the owner's socket from the peer. Exactly one of the results is nil. It
// is to be asked for every request, before the path or the method is looked at. A good token that is known takes no lock and no
// memory; a refusal may be held back for a moment, until the request's context ends at the latest.
func (d *Door) Authenticate(r *http.Request, owner Owner, peer Peer) (*Principal, *Denial) {
	token, why := credentials(r.Header)
	if why != NotRefused {
		return nil, d.refuse(r, nil, owner, peer, verdict{why: why})
	}
	e := d.cache.hit(d.prints.tag(token))
	if e == nil {
		v := d.lookUp(token, caller{owner, peer.UID})
		if v.why == GlobalLimited && d.hold(r) {
			v = d.lookUp(token, caller{owner, peer.UID}) // others filled the limit: their flood must not shut this caller out
		}
		if v.why != NotRefused {
			return nil, d.refuse(r, nil, owner, peer, v)
		}
		e = v.entry
	} else {
		d.counters.hits.Add(1)
	}
	if why = d.examine(e, time.Now(), owner); why != NotRefused {
		return nil, d.refuse(r, &e.principal, owner, peer, verdict{why: why})
	}
	return &e.principal, nil
}

// Authorize decides whether the principal may do what needs the capability; nil is yes. No principal has the zero capability.
func (d *Door) Authorize(p *Principal, c Capability) *Denial {
	if p.Can(c) {
		return nil
	}
	d.counters.refused[MissingCapability].Add(1)
	return &denials[MissingCapability]
}

// examine looks at all that may have changed since the token was verified, and at what depends on the socket.
func (d *Door) examine(e *entry, now time.Time, owner Owner) Reason {
	c := &e.principal.Claims
	if err := e.token.CheckTime(now); err != nil {
		return tokenReason(err)
	}
	if !d.verifier.Trusts(e.token) {
		return KeyRemoved
	}
	switch d.allocations.Liveness(c.AllocationID) {
	case Live:
	case Terminal:
		if c.Role != identity.RoleOperator || owner.Task != "" { // the operator may see the end, until that socket closes
			return TerminalAllocation
		}
	default:
		return UnknownAllocation
	}
	if c.AllocationID != owner.AllocationID || (c.Role != identity.RoleOperator && (c.Task != owner.Task || owner.Task == "")) {
		return WrongSocket
	}
	return NotRefused
}
