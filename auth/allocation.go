package auth

import (
	"strings"

	"taskapi/identity"
)

// Liveness is what is known of an allocation.
type Liveness uint8

const (
	// Unknown: no such allocation is here. It is the zero value, so that an allocation which nobody described is refused.
	Unknown Liveness = iota
	// Live: it runs, or will.
	Live
	// Terminal: it has ended, and its tasks' identities with it.
	Terminal
)

// Allocation holds what every token of an allocation must claim. It is never changed: another life of the allocation, or another
// allocation under its ID, is another Allocation.
type Allocation struct {
	Region, Namespace, JobID, TaskGroup string

	// Life identifies one life of the allocation. A new one begins, under the same ID, each time the allocation is run from its
	// beginning. It is empty for an allocation that has been running since before tokens had this claim.
	Life string
}

// mismatch returns why the token is not one of the allocation's present life, or NotRefused. The operator's token
// outlasts a life, so that a client sees how an allocation is replaced: its holder can read the next token anyway. A
// foreign issuer may leave out the life, which it can't know, and the subject, which repeats other claims.
func (a *Allocation) mismatch(t *identity.Verified) Reason {
	c := &t.Claims
	if c.Life != a.Life && c.Role != identity.RoleOperator && (c.Life != "" || !t.Foreign()) {
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

// Allocations finds allocations. It is called for every request and answers from memory, without waiting; a change is seen by every
// request that starts after it.
type Allocations interface {
	// Lookup returns what the tokens of an allocation must claim, always as the same pointer while that is the same, and nil for one
	// that is Unknown.
	Lookup(allocationID string) (*Allocation, Liveness)
}
