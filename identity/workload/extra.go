package workload

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/ptr"
)

// ExtraClaims are claims of tasks' tokens beyond the standard ones, by their names. In Nomad a namespace has them; here
// the machine's settings do. A value may have references, such as ${job.id}.
type ExtraClaims struct {
	Required map[string]string // of all identities
	Optional map[string]string // of the identities that name them in the job file
}

// Names returns the names that a job file may have, sorted.
func (e ExtraClaims) Names() []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(e.Required)), maps.Keys(e.Optional))
	slices.Sort(names)
	return slices.Compact(names)
}

// of returns the claims of an identity; nil for none.
func (e ExtraClaims) of(wi *api.WorkloadIdentity) map[string]string {
	var all map[string]string
	set := func(name, value string) {
		if all == nil {
			all = map[string]string{}
		}
		all[name] = value
	}
	for name, value := range e.Required {
		set(name, value)
	}
	for _, name := range wi.ExtraClaims {
		if value, ok := e.Optional[name]; ok {
			set(name, value)
		}
	}
	return all
}

var reference = regexp.MustCompile(`\$\{[^}]+\}`)

// extra returns the extra claims of a token; nil for none. As in Nomad, a reference that stands for nothing stays as it
// is. The operator's tokens, whose task is nil, have none.
func (m *Manager) extra(task *api.Task, wi *api.WorkloadIdentity) map[string]string {
	if task == nil {
		return nil
	}
	claims := m.config.ExtraClaims.of(wi)
	if claims == nil {
		return nil
	}
	references := m.references(task, wi)
	for name, value := range claims {
		claims[name] = reference.ReplaceAllStringFunc(value, func(found string) string {
			if is, ok := references[found[len("${"):len(found)-len("}")]]; ok {
				return is
			}
			return found
		})
	}
	return claims
}

// references returns what the references of extra claims stand for, by the names between ${ and }.
func (m *Manager) references(task *api.Task, wi *api.WorkloadIdentity) map[string]string {
	c, job, vault := &m.config, m.config.Job(), vaultOf(task, wi)
	all := map[string]string{
		"job.region": c.Region, "job.namespace": c.Namespace, "job.id": c.JobID, "job.node_pool": ptr.Deref(job.NodePool),
		"group.name": c.TaskGroup, "task.name": task.Name, "alloc.id": c.AllocationID,
		"node.id": c.Node.ID, "node.datacenter": c.Node.Datacenter, "node.pool": c.Node.NodePool,
		"node.class":    c.Node.NodeClass,
		"vault.cluster": vault.Cluster, "vault.namespace": ptr.Deref(vault.Namespace), "vault.role": vault.Role,
	}
	for key, value := range job.Meta {
		all["job.meta."+key] = value
	}
	return all
}

// vaultOf returns the vault block that an identity's tokens are about; an empty one for none. The identities of such
// names are for logins to Vault, and to Consul for consulOf.
func vaultOf(task *api.Task, wi *api.WorkloadIdentity) *api.Vault {
	if task == nil || task.Vault == nil || !strings.HasPrefix(wi.Name, "vault_") {
		return &api.Vault{}
	}
	return task.Vault
}

// consulOf returns the consul block that an identity's tokens are about: the task's, or else its group's; an empty one
// for none.
func (m *Manager) consulOf(task *api.Task, wi *api.WorkloadIdentity) *api.Consul {
	if task == nil || !strings.HasPrefix(wi.Name, "consul") {
		return &api.Consul{}
	}
	if task.Consul != nil {
		return task.Consul
	}
	for _, g := range m.config.Job().TaskGroups {
		if ptr.Deref(g.Name) == m.config.TaskGroup && g.Consul != nil {
			return g.Consul
		}
	}
	return &api.Consul{}
}
