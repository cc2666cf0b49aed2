package identity

import (
	"reflect"
	"strings"
	"sync"
)

// Role is whom a token identifies: a task, or the operator.
type Role string

const (
	// RoleTask is a task's workload identity. A token that names no role has it, as all of Nomad's do.
	RoleTask Role = ""
	// RoleOperator is the person or program that runs the allocation.
	RoleOperator Role = "operator"
)

// DefaultName is the name of the identity that every task has.
const DefaultName = "default"

// DefaultAudience is the audience of a default identity, Nomad's own.
const DefaultAudience = "nomadproject.io"

// Claims are the claims of one token. The tags are their names in a token: those of RFC 7519 section 4.1, Nomad's, and
// ours. A claim without a value is left out of a token. readClaims reads them.
//
// Times are whole seconds since the Unix epoch. ExpiresAt is never zero in a token of ours.
type Claims struct {
	ID        string   `claim:"jti"` // unique to the token
	Issuer    string   `claim:"iss"` // empty unless configured
	Subject   string   `claim:"sub"` // region:namespace:job:group:task:identity
	Audience  []string `claim:"aud"`
	IssuedAt  int64    `claim:"iat"`
	NotBefore int64    `claim:"nbf"`
	ExpiresAt int64    `claim:"exp"`

	Namespace    string `claim:"nomad_namespace"`
	JobID        string `claim:"nomad_job_id"`
	AllocationID string `claim:"nomad_allocation_id"`
	Task         string `claim:"nomad_task"` // empty for the operator
	Role         Role   `claim:"taskapi_role"`

	// VaultRole and VaultNamespace are those of the task's vault block, in the tokens of its identities for Vault.
	VaultRole      string `claim:"vault_role"`
	VaultNamespace string `claim:"vault_namespace"`
	// ConsulNamespace is that of the task's or the group's consul block, in the tokens of its identities for Consul.
	ConsulNamespace string `claim:"consul_namespace"`

	// ExtraClaims are those that the machine's settings add, for other services. They decide nothing here: they are an
	// object of their own, so none of them can stand for a claim above. Nil for none.
	ExtraClaims map[string]string `claim:"extra_claims"`

	// Life is the life of the allocation that the token was issued for. The token is good in no other life of the same
	// allocation ID. Every token of ours has it; other issuers' need not.
	Life string `claim:"taskapi_allocation_life"`
}

// claimNames returns the names of the claims, in the order of the fields.
var claimNames = sync.OnceValue(func() (names []string) {
	for field := range reflect.TypeFor[Claims]().Fields() {
		names = append(names, field.Tag.Get("claim"))
	}
	return names
})

// Subject returns a sub claim, with its parts in Nomad's order.
func Subject(region, namespace, job, group, task, name string) string {
	return strings.Join([]string{region, namespace, job, group, task, name}, ":")
}
