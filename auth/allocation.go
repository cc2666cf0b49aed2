package auth

import (
	"strings"

	"taskapi/identity"
)

// Liveness is whether an allocation is known and still runs.
type Liveness uint8

const (
	// Unknown means that there is no such allocation here. It is the zero value, so that an allocation without a Liveness
	// is refused.
	Unknown Liveness = iota
	// Live means that the allocation runs, or will run.
	Live
	// Terminal means that the allocation has ended, and its tasks' identities with it.
	Terminal
)

// Allocation holds the claims that every token of an allocation must have. It is never changed: another life of the
// allocation, or another allocation with its ID, is another Allocation.
type Allocation struct {
	Region, Namespace, JobID, TaskGroup string

	// Life identifies one life of the allocation. A new life begins, under the same ID, each time the allocation is run
	// from its beginning. It is empty for an allocation that has been running since before tokens had this claim.
	Life string
}

// mismatch returns why the token does not belong to the allocation's present life, or NotRefused. The operator's token
// outlasts a life, so that a client sees how an allocation is replaced; the operator can read the next token anyway. A
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

// Allocations finds allocations. It is called for every request and answers from memory, without waiting. Every request
// that starts after a change must see the change.
type Allocations interface {
	// Lookup returns what the tokens of an allocation must claim, and nil for an Unknown allocation. While the claims are
	// the same, it returns the same pointer.
	Lookup(allocationID string) (*Allocation, Liveness)
}
