package auth

import (
	"strings"

	"taskapi/identity"
	"taskapi/internal/peercred"
)

// Principal is the authenticated sender of a request. It is shared between requests with the same token and never
// changed.
type Principal struct {
	Claims       identity.Claims
	TaskGroup    string // of the allocation
	KeyID        string // the key that signed the token
	Capabilities CapabilitySet

	paths *pathRules // of variables, from the policy
	entry *entry     // of the token in the cache; nil in a Principal that no Authenticator has made
}

// MaySee reports whether the principal may see the allocation with the ID, in any case: only its own.
func (p *Principal) MaySee(allocationID string) bool {
	return p != nil && strings.EqualFold(allocationID, p.Claims.AllocationID)
}

// Operator reports whether the principal is the allocation's operator.
func (p *Principal) Operator() bool { return p != nil && p.Claims.Role == identity.RoleOperator }

// SeesWholeJob reports whether the principal sees all of its job. The operator does, and so does a task that may run
// commands in all tasks, since it can read the same there. Other tasks don't see each other's private parts.
func (p *Principal) SeesWholeJob() bool {
	return p.Operator() || p != nil && p.Capabilities.Has(AllocExec)
}

// Owner is the owner of a socket: one task of one allocation, or the allocation's operator. A token is good only on the
// socket of its owner, so the operator's token is never sent to a socket on which a task might listen.
type Owner struct {
	AllocationID string
	Task         string // empty on the operator's socket

	// UID is the user whose processes may use the socket: the task's user, or the allocation's owner. Processes of root
	// and of this process's user may, too.
	UID uint32
	// AnyUser lets processes of every user use the socket: the token alone decides, where the task's user is not known.
	AnyUser bool
	// GID is the task's group. A caller who is not the task's user reads files with the task's user and group.
	GID uint32
}

// Peer is the process at the other end of a connection, with the fields UID, GID and PID, as the kernel saw it at
// connect time (SO_PEERCRED, unix(7)). PID is 0 across PID namespaces.
type Peer = peercred.Cred
