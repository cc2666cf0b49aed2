package identity

import "strings"

// Role says for whom a token speaks.
type Role string

const (
	// RoleTask is a task's workload identity. It is the role of a token that names none, as Nomad's never do.
	RoleTask Role = ""
	// RoleOperator is the person or program that runs the allocation.
	RoleOperator Role = "operator"
)

// DefaultName is the name of the identity that every task has.
const DefaultName = "default"

// DefaultAudience is the audience of a default identity, Nomad's own.
const DefaultAudience = "nomadproject.io"

// Claims are the claims of one token. On the wire they carry the names of RFC 7519 section 4.1 and Nomad's own
// (nomad_namespace, nomad_job_id, nomad_allocation_id, nomad_task); the role travels as taskapi_role and is absent for a task.
// taskapi_allocation_life tells lives of one allocation ID apart.
//
// Times are whole seconds since the Unix epoch. ExpiresAt is never zero in a token of ours.
type Claims struct {
	ID        string // jti: unique to the token
	Issuer    string // iss: empty unless configured
	Subject   string // sub: region:namespace:job:group:task:identity
	Audience  []string
	IssuedAt  int64
	NotBefore int64
	ExpiresAt int64

	Namespace    string
	JobID        string
	AllocationID string
	Task         string // empty for the operator
	Role         Role

	// Life is the life of the allocation that the token was issued for, so that it is good in no later one under the same ID. Every token
	// of ours has it (taskapi_allocation_life); other issuers' need not.
	Life string
}

// Subject joins the parts of a sub claim in Nomad's order.
func Subject(region, namespace, job, group, task, name string) string {
	return strings.Join([]string{region, namespace, job, group, task, name}, ":")
}
