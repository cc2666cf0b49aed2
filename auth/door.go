package auth

import (
	"errors"
	"log/slog"
	"net/http"
	"time"

	"taskapi/identity"
)

// Verified is a token that a trusted key signed and whose claims are what they must be.
type Verified struct {
	Claims identity.Claims
	KeyID  string
}

// Verifier is what the door asks of the keys.
type Verifier interface {
	// Verify checks form, signature and claims at the given time.
	Verify(token string, now time.Time) (*Verified, error)
	// Trusts reports whether the key is still trusted. It is asked on every request.
	Trusts(keyID string) bool
}

// Liveness is what is known of an allocation.
type Liveness uint8

const (
	// Unknown: no such allocation is here. It is the zero value: who is not known is refused.
	Unknown Liveness = iota
	// Live: it runs, or will.
	Live
	// Terminal: it has ended, and its identities with it.
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
	Logger      *slog.Logger
	Policy      *Policy // nil: the defaults
}

// Door decides on requests. It is safe for any number of goroutines.
type Door struct {
	config Config
}

// NewDoor makes a Door.
func NewDoor(config Config) (*Door, error) {
	if config.Verifier == nil || config.Allocations == nil || config.Logger == nil {
		return nil, errors.New("auth: Config needs Verifier, Allocations and Logger")
	}
	return &Door{config: config}, nil
}

// Authenticate finds out who sends a request through the owner's socket from the peer. Exactly one of the results is nil.
func (d *Door) Authenticate(r *http.Request, owner Owner, peer Peer) (*Principal, *Denial) {
	token, why := credentials(r.Header)
	if why != NotRefused {
		return nil, &denials[why]
	}
	verified, err := d.config.Verifier.Verify(token, time.Now())
	if err != nil {
		return nil, &denials[BadSignature]
	}
	p := d.principal(verified)
	switch {
	case p.Claims.AllocationID != owner.AllocationID, !p.Operator() && p.Claims.Task != owner.Task:
		return nil, &denials[WrongSocket]
	case d.config.Allocations.Liveness(p.Claims.AllocationID) != Live:
		return nil, &denials[TerminalAllocation]
	}
	return p, nil
}

func (d *Door) principal(v *Verified) *Principal {
	p := &Principal{Claims: v.Claims, KeyID: v.KeyID, Capabilities: All}
	if !p.Operator() {
		p.Capabilities = d.config.Policy.Task(v.Claims.Namespace, v.Claims.Task)
	}
	return p
}

// Authorize decides whether the principal may do what needs the capability; nil is yes.
func (d *Door) Authorize(p *Principal, c Capability) *Denial {
	if !p.Can(c) {
		return &denials[MissingCapability]
	}
	return nil
}
