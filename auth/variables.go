package auth

import (
	"slices"
	"strings"
)

// VariableRight is a set of rights on a variable, one bit each. Nomad's policies have the same names.
type VariableRight uint8

// The rights on one variable. VariableWrite includes its lock.
const (
	VariableRead VariableRight = 1 << iota
	VariableList
	VariableWrite
	VariableDestroy

	noVariableRight  VariableRight = 0
	everyVariable                  = VariableRead | VariableList | VariableWrite | VariableDestroy
	implicitVariable               = VariableRead | VariableList
)

// variableRights are the names of the rights in a policy. "read" includes list, as in Nomad, and "deny" leaves nothing.
var variableRights = map[string]VariableRight{
	"read": VariableRead | VariableList, "list": VariableList, "write": VariableWrite, "destroy": VariableDestroy,
	"deny": noVariableRight,
}

// capability returns the capability without which nobody has the right.
func (r VariableRight) capability() Capability {
	if r&(VariableWrite|VariableDestroy) != 0 {
		return VariablesWrite
	}
	return VariablesRead
}

// MayVariable reports whether the principal has a right on the variable of that namespace and path. No other function
// decides that.
//
// The operator has every right in every namespace. A task has rights only in the namespace of its job. With
// variables-read it reads and lists the variables that Nomad's implicit policy gives a workload: nomad/jobs,
// nomad/jobs/JOB, nomad/jobs/JOB/GROUP and nomad/jobs/JOB/GROUP/TASK, for its own job, group and task. With
// variables-write it has every right on nomad/jobs/JOB and all paths below. A policy's rules about paths come in
// Nomad's order: the rule with exactly this path, then the implicit policy, then the closest pattern.
func (p *Principal) MayVariable(namespace, path string, right VariableRight) bool {
	switch {
	case p == nil || right == noVariableRight || right&(right-1) != 0:
		return false
	case p.Operator():
		return true
	case namespace != p.Claims.Namespace || !p.Capabilities.Has(right.capability()):
		return false
	}
	return p.variableRights(path)&right != 0
}

// SearchesVariables reports whether the principal may search variables; it then finds those that it may list. As in
// Nomad, the implicit policy does not suffice: a search needs a policy's rules about paths or, here, read-job, as every
// other search does.
func (p *Principal) SearchesVariables() bool {
	return p.Operator() || p != nil && p.Capabilities.Has(VariablesRead) && (p.paths != nil || p.Capabilities.Has(ReadJob))
}

// variableRights returns a task's rights on a path of its namespace, as if it had both capabilities.
func (p *Principal) variableRights(path string) VariableRight {
	if rule := p.paths.exact(path); rule != nil {
		return rule.rights
	}
	own := noVariableRight
	if p.Capabilities.Has(VariablesWrite) && !p.paths.withoutJob(VariablesWrite) && p.belowJob(path) {
		own = everyVariable
	}
	if p.Capabilities.Has(VariablesRead) && !p.paths.withoutJob(VariablesRead) && p.implicit(path) {
		return own | implicitVariable
	}
	if rule := p.paths.closest(path); rule != nil {
		return rule.rights
	}
	return own
}

// jobVariables is the path above the variables of all jobs.
const jobVariables = "nomad/jobs"

// implicit reports whether Nomad's implicit policy gives the path.
func (p *Principal) implicit(path string) bool {
	rest, ok := strings.CutPrefix(path, jobVariables)
	if !ok || rest == "" {
		return ok
	}
	// As in Nomad, a job whose ID is another's with a slash and a group's name shares a path with that group.
	rest, ok = strings.CutPrefix(rest, "/"+p.Claims.JobID)
	group := "/" + p.TaskGroup
	if !ok || rest == "" || p.TaskGroup == "" {
		return ok && rest == ""
	}
	return rest == group || p.Claims.Task != "" && rest == group+"/"+p.Claims.Task
}

// belowJob reports whether the path is the job's own, or below it.
func (p *Principal) belowJob(path string) bool {
	rest, ok := strings.CutPrefix(path, jobVariables+"/"+p.Claims.JobID)
	return ok && p.Claims.JobID != "" && (rest == "" || rest[0] == '/')
}

// pathRule is a policy's rule about the variables at a path, or at all paths that a pattern matches.
type pathRule struct {
	path   string // with * for any characters, slashes too
	rights VariableRight
}

// pathRules are the rules for a task. A nil *pathRules has none.
type pathRules struct {
	rules []pathRule
	job   CapabilitySet // those of variables-read and variables-write that hold for the job's own paths, beside the rules
}

func (r *pathRules) equal(other *pathRules) bool {
	if r == nil || other == nil {
		return r == other
	}
	return r.job == other.job && slices.Equal(r.rules, other.rules)
}

// withoutJob reports whether the capability holds only for the paths of the rules.
func (r *pathRules) withoutJob(c Capability) bool { return r != nil && !r.job.Has(c) }

// exact returns the rule about that path and no other, or nil.
func (r *pathRules) exact(path string) *pathRule {
	if r == nil {
		return nil
	}
	i := slices.IndexFunc(r.rules, func(rule pathRule) bool { return rule.path == path })
	if i >= 0 && !strings.Contains(path, "*") {
		return &r.rules[i]
	}
	return nil
}

// closest returns the rule whose pattern matches with the fewest characters under its wildcards, or nil. Of two such,
// it returns the earlier.
func (r *pathRules) closest(path string) (found *pathRule) {
	if r == nil {
		return nil
	}
	least := 0
	for i := range r.rules {
		pattern := r.rules[i].path
		if !strings.Contains(pattern, "*") || !matchPath(pattern, path) {
			continue
		}
		if distance := len(path) - len(pattern) + strings.Count(pattern, "*"); found == nil || distance < least {
			found, least = &r.rules[i], distance
		}
	}
	return found
}

// matchPath reports whether a pattern matches the whole path. It takes time proportional to both for each wildcard.
func matchPath(pattern, path string) bool {
	parts := strings.Split(pattern, "*")
	path, ok := strings.CutPrefix(path, parts[0])
	if len(parts) == 1 {
		return ok && path == ""
	}
	for _, part := range parts[1 : len(parts)-1] {
		if !ok {
			return false
		}
		_, path, ok = strings.Cut(path, part)
	}
	return ok && strings.HasSuffix(path, parts[len(parts)-1])
}

// gates returns the capabilities without which the rules have no effect.
func gates(rules []pathRule) (set CapabilitySet) {
	for _, rule := range rules {
		for right := VariableRead; right <= VariableDestroy; right <<= 1 {
			if rule.rights&right != 0 {
				set = set.With(right.capability())
			}
		}
	}
	return set
}

// mergePaths returns the rules of both lists. A later rule replaces an earlier one for the same path.
func mergePaths(earlier, later []pathRule) []pathRule {
	merged := slices.Clone(later)
	for _, rule := range earlier {
		if !slices.ContainsFunc(later, func(l pathRule) bool { return l.path == rule.path }) {
			merged = append(merged, rule)
		}
	}
	return merged
}
