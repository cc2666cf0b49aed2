package auth

import (
	"fmt"
	"path"
	"strings"

	"taskapi/auth/limitset"
	"taskapi/identity"
)

// Policy says which capabilities tasks have, where that differs from DefaultTask. It is immutable. A nil Policy is the
// preset "local".
//
// A policy file is HCL, in the manner of Nomad's ACL policies:
//
//	preset = "nomad"                           # for tasks that no block matches; "local" if left out
//
//	namespace "default" {                      # for the tasks of this namespace, instead of the preset
//	  policy       = "read"                    # a name for several: "read", "write" or "deny"
//	  capabilities = ["read-logs", "read-fs"]  # and these
//	  variables {
//	    path "shared/*" {                      # variables of this namespace; * is for any characters
//	      capabilities = ["read", "write"]     # of read, list, write, destroy, deny
//	    }
//	  }
//	}
//
//	node  { policy = "write" }                 # this machine and its metadata: "read", "write" or "deny"
//	agent { policy = "read" }                  # the agent and its log: the same
//
//	task "web" {                               # this task: the above, and more, and less
//	  capabilities = ["alloc-exec"]            # widens (policy = "..." and variables do too)
//	  deny         = ["alloc-lifecycle"]       # narrows, and wins; policy = "deny" leaves nothing
//	}
//
// The presets are ImplicitTask ("nomad") and DefaultTask ("local"). "read" is read-job. "write" is read-job, read-logs,
// read-fs, alloc-lifecycle and alloc-exec, as in Nomad. "deny" leaves only what every valid token has. A namespace
// block keeps ImplicitTask, as every policy does in Nomad, unless it is "deny". Node and agent blocks are for all
// tasks. They override the preset and the namespace's block, and a task's block overrides them. The capabilities are
// those of grantable; "deny" among them is the policy "deny".
//
// A limits block sets limits of package limitset, such as connections = 64. MayVariable says how rules about variables
// are read; a task's rule replaces its namespace's for the same path. Namespace and task blocks may come any number of
// times. Their labels may hold the wildcards of path.Match. Of several labels that match, the exact one counts, else
// the one with the most characters that are no wildcard, else the first by the alphabet. The operator always has every
// capability.
type Policy struct {
	base              CapabilitySet
	decided, machine  CapabilitySet // the capabilities that node and agent blocks decide, and those of them that they give
	limits            []limitSetting
	namespaces, tasks []rule // the best match first
}

// Preset returns the policy of that name, "local" or "nomad", and whether there is one.
func Preset(name string) (*Policy, bool) {
	base, ok := presets[name]
	if !ok {
		return nil, false
	}
	return &Policy{base: base}, true
}

type rule struct {
	label        string
	allow, taken CapabilitySet
	denyAll      bool
	paths        []pathRule
}

// limitSetting is one limit that a policy sets.
type limitSetting struct{ name, value string }

// Limits returns the set with the limits of the policy.
func (p *Policy) Limits(set limitset.Set) limitset.Set {
	if p != nil {
		for _, l := range p.limits {
			_ = set.Put(l.name, l.value) // ParsePolicy has accepted it
		}
	}
	return set
}

// Task returns the capabilities of a task's identities on its allocation.
func (p *Policy) Task(namespace, task string) CapabilitySet {
	set, _ := p.grant(namespace, task)
	return set
}

// grant returns a task's capabilities and its rules about variables, nil for none.
func (p *Policy) grant(namespace, task string) (CapabilitySet, *pathRules) {
	if p == nil {
		return DefaultTask, nil
	}
	set := p.base
	var paths []pathRule
	if r := match(p.namespaces, namespace); r != nil {
		set, paths = r.apply(ImplicitTask, nil)
	}
	set = set&^p.decided | p.machine
	r := match(p.tasks, task)
	if r != nil {
		set, paths = r.apply(set, paths)
	}
	if len(paths) == 0 {
		return set, nil
	}
	rules := &pathRules{rules: paths, job: set}
	set |= gates(paths)
	if r != nil {
		set &^= r.taken
	}
	return set, rules
}

// Principal returns a task as its token would make it, for what is done in its name.
func (p *Policy) Principal(namespace, job, group, task string) *Principal {
	v := &Principal{Claims: identity.Claims{Namespace: namespace, JobID: job, Task: task}, TaskGroup: group}
	v.Capabilities, v.paths = p.grant(namespace, task)
	return v
}

// Exceeds reports whether the policy gives a task more than another one: a capability that the other does not give, or
// other rules about variables, which are not compared further.
func (p *Policy) Exceeds(other *Policy, namespace, task string) bool {
	set, paths := p.grant(namespace, task)
	most, others := other.grant(namespace, task)
	return set&^most != 0 || (set.Has(VariablesRead) || set.Has(VariablesWrite)) && !paths.equal(others)
}

// Idle returns the blocks that have no effect on the tasks of a namespace, such as one with a misspelt name. In a file
// for several allocations they may be meant for the tasks of others.
func (p *Policy) Idle(namespace string, tasks []string) []string {
	if p == nil {
		return nil
	}
	var idle []string
	add := func(kind string, rules []rule, names []string) {
		used := map[*rule]bool{}
		for _, name := range names {
			used[match(rules, name)] = true
		}
		for i := range rules {
			if !used[&rules[i]] {
				idle = append(idle, fmt.Sprintf("%s %q", kind, rules[i].label))
			}
		}
	}
	add("namespace", p.namespaces, []string{namespace})
	add("task", p.tasks, tasks)
	return idle
}

func (r *rule) apply(set CapabilitySet, paths []pathRule) (CapabilitySet, []pathRule) {
	if r.denyAll {
		return CapabilitySet(Authenticated), nil
	}
	return (set | r.allow) &^ r.taken, mergePaths(paths, r.paths)
}

// match returns the first rule whose label matches the name, or nil. The rules are sorted by rank.
func match(rules []rule, name string) *rule {
	for i := range rules {
		if ok, err := path.Match(rules[i].label, name); ok && err == nil {
			return &rules[i]
		}
	}
	return nil
}

// rank orders rules: exact labels, then by the number of characters that are no wildcard, then by the alphabet.
func rank(a, b rule) int {
	literal := func(label string) int {
		if !strings.ContainsAny(label, `*?[\`) {
			return maxPolicyBytes
		}
		return len(label) - strings.Count(label, "*") - strings.Count(label, "?")
	}
	if d := literal(b.label) - literal(a.label); d != 0 {
		return d
	}
	return strings.Compare(a.label, b.label)
}
