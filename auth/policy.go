package auth

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// ErrPolicy is in every error of ParsePolicy.
var ErrPolicy = errors.New("the policy can't be used")

// maxPolicyBytes bounds a policy file. A rule takes some 100 bytes, and the HCL parser recurses once for every bracket.
const maxPolicyBytes = 64 << 10

// Policy says which capabilities tasks have, where that differs from DefaultTask. It is immutable. A nil Policy is no policy: the
// preset "local".
//
// A policy file is HCL, in the manner of Nomad's ACL policies:
//
//	preset = "nomad"                           # what tasks have that no block is about; without it "local"
//
//	namespace "default" {                      # what the tasks of this namespace have, instead of the preset
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
//	task "web" {                               # this task: that, and more, and less
//	  capabilities = ["alloc-exec"]            # widens (policy = "..." and variables do too)
//	  deny         = ["alloc-lifecycle"]       # narrows, and wins; policy = "deny" leaves nothing
//	}
//
// The presets are ImplicitTask ("nomad") and DefaultTask ("local"). "read" is read-job; "write" is read-job, read-logs,
// read-fs, alloc-lifecycle and alloc-exec, as in Nomad; "deny" leaves only what every valid token has. A namespace
// block keeps ImplicitTask, as every policy does in Nomad; "deny" doesn't. A node or an agent block is for all tasks.
// It overrides the preset and the block of a namespace, and a task's block overrides it. The capabilities are those of
// grantable; "deny" among them is the policy "deny". A block "limits" sets limits as package limitset has them, such as
// connections = 64. MayVariable says how rules about variables are read; a task's rule replaces its namespace's for the
// same path. Both kinds of block may come any number of times. Labels may hold the wildcards of path.Match; of several
// labels that match, the exact one counts, else the one with the most characters that are no wildcard, else the first
// by the alphabet. The operator has every capability, always.
type Policy struct {
	base              CapabilitySet
	decided, machine  CapabilitySet // which capabilities node and agent blocks decide, and which of those they give
	limits            []limitSetting
	namespaces, tasks []rule // the best match first
}

// presets are the policies that have a name, by it.
var presets = map[string]CapabilitySet{"local": DefaultTask, "nomad": ImplicitTask}

// Preset returns the policy of that name, "local" or "nomad", and whether there is one.
func Preset(name string) (*Policy, bool) {
	base, ok := presets[name]
	if !ok {
		return nil, false
	}
	return &Policy{base: base}, true
}

// rule is one block.
type rule struct {
	label        string
	allow, taken CapabilitySet
	denyAll      bool
	paths        []pathRule
}

// coarse are the values of policy.
var coarse = map[string]CapabilitySet{
	"read":  CapabilitySet(ReadJob),
	"write": CapabilitySet(ReadJob | ReadLogs | ReadFS | AllocLifecycle | AllocExec),
	"deny":  0,
}

var (
	policySchema = &hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "preset"}}, Blocks: []hcl.BlockHeaderSchema{
		{Type: "namespace", LabelNames: []string{"name"}},
		{Type: "task", LabelNames: []string{"name"}},
		{Type: "limits"},
		{Type: "node"},
		{Type: "agent"},
	}}
	variablesBlock  = []hcl.BlockHeaderSchema{{Type: "variables"}}
	namespaceSchema = &hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "policy"}, {Name: "capabilities"}}, Blocks: variablesBlock}
	taskSchema      = &hcl.BodySchema{
		Attributes: []hcl.AttributeSchema{{Name: "policy"}, {Name: "capabilities"}, {Name: "deny"}}, Blocks: variablesBlock,
	}
)

// Task returns the capabilities of a task's identities on its allocation.
func (p *Policy) Task(namespace, task string) CapabilitySet {
	set, _ := p.grant(namespace, task)
	return set
}

// grant returns them with the task's rules about variables, nil for none.
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

// Idle returns the blocks that decide nothing for the tasks of a namespace, such as one with a misspelt name. In a file that serves
// several allocations they may be others' blocks.
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

// apply returns the capabilities and the rules about variables as the rule changes them.
func (r *rule) apply(set CapabilitySet, paths []pathRule) (CapabilitySet, []pathRule) {
	if r.denyAll {
		return CapabilitySet(Authenticated), nil
	}
	return (set | r.allow) &^ r.taken, mergePaths(paths, r.paths)
}

// match returns the first rule whose label matches the name, or nil; the rules are sorted by rank.
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

// ParsePolicy parses a policy file. The error holds ErrPolicy and one line for each mistake, with file, line and column.
func ParsePolicy(filename string, src []byte) (*Policy, error) {
	if len(src) > maxPolicyBytes {
		return nil, fmt.Errorf("%w: %s has %d bytes; at most %d are read", ErrPolicy, filename, len(src), maxPolicyBytes)
	}
	file, diags := hclsyntax.ParseConfig(src, filename, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, policyError(diags)
	}
	content, diags := file.Body.Content(policySchema)
	policy := &Policy{base: DefaultTask}
	if attr := content.Attributes["preset"]; attr != nil {
		name, more := text(attr.Expr)
		base, known := presets[name]
		if !known && !more.HasErrors() {
			more = append(more, mistake(attr.Expr.Range(), `unknown preset %q; there are "local" and "nomad"`, name))
		}
		policy.base, diags = base, append(diags, more...)
	}
	for _, block := range content.Blocks {
		switch {
		case block.Type == "limits":
			diags = append(diags, policy.parseLimits(block)...)
			continue
		case machineBlocks[block.Type] != nil:
			diags = append(diags, policy.parseMachine(block)...)
			continue
		}
		list, schema := &policy.namespaces, namespaceSchema
		if block.Type == "task" {
			list, schema = &policy.tasks, taskSchema
		}
		r, more := parseRule(block, schema)
		if slices.ContainsFunc(*list, func(other rule) bool { return other.label == r.label }) {
			more = append(more, mistake(block.LabelRanges[0], "%s %q has a block already; write one for both", block.Type, r.label))
		}
		*list, diags = append(*list, r), append(diags, more...)
	}
	if diags.HasErrors() {
		return nil, policyError(diags)
	}
	slices.SortFunc(policy.namespaces, rank)
	slices.SortFunc(policy.tasks, rank)
	return policy, nil
}

// parseRule parses one block. Beside errors only the rule's label is valid.
func parseRule(block *hcl.Block, schema *hcl.BodySchema) (rule, hcl.Diagnostics) {
	r := rule{label: block.Labels[0]}
	content, diags := block.Body.Content(schema)
	if _, err := path.Match(r.label, ""); err != nil || r.label == "" {
		diags = append(diags, mistake(block.LabelRanges[0], "%q is no name and no pattern; a pattern may hold *, ? and [a-z]", r.label))
	}
	if len(content.Attributes)+len(content.Blocks) == 0 && !diags.HasErrors() {
		diags = append(diags, mistake(block.DefRange, "the block says nothing; set policy or capabilities"))
	}
	for i, variables := range content.Blocks {
		if i > 0 {
			diags = append(diags, mistake(variables.DefRange, "a second variables block; write one with all paths"))
			continue
		}
		paths, more := parsePaths(variables)
		r.paths, diags = paths, append(diags, more...)
	}
	if attr := content.Attributes["policy"]; attr != nil {
		name, more := text(attr.Expr)
		set, known := coarse[name]
		if !known && !more.HasErrors() {
			more = append(more, unknownPolicy(attr, name))
		}
		r.allow, r.denyAll, diags = set, name == "deny", append(diags, more...)
	}
	if attr := content.Attributes["capabilities"]; attr != nil {
		set, deny, more := capabilities(attr.Expr)
		if block.Type == "task" && set == 0 && !deny && !more.HasErrors() {
			more = append(more, mistake(attr.Expr.Range(),
				`an empty list gives a task nothing more, and takes nothing away; to take, write deny = ["read-logs"] or policy = "deny"`))
		}
		r.allow, r.denyAll, diags = r.allow|set, r.denyAll || deny, append(diags, more...)
	}
	if attr := content.Attributes["deny"]; attr != nil {
		set, deny, more := capabilities(attr.Expr)
		r.taken, r.denyAll, diags = set, r.denyAll || deny, append(diags, more...)
	}
	return r, diags
}

// capabilities parses a list of capability names; deny reports whether "deny" is among them.
func capabilities(expr hcl.Expression) (set CapabilitySet, deny bool, diags hcl.Diagnostics) {
	names, diags := texts(expr, `["read-job", "read-logs"]`)
	for _, name := range names {
		if name.text == "deny" {
			deny = true
			continue
		}
		c, err := ParseCapability(name.text)
		if err != nil {
			diags = append(diags, mistake(name.at, "%v", err))
		}
		set = set.With(c)
	}
	return set, deny, diags
}

// placed is a string with its place in the file.
type placed struct {
	text string
	at   hcl.Range
}

// texts returns the strings of a list; example is shown where there is none.
func texts(expr hcl.Expression, example string) (list []placed, diags hcl.Diagnostics) {
	items, diags := hcl.ExprList(expr)
	if diags.HasErrors() {
		return nil, hcl.Diagnostics{mistake(expr.Range(), "not a list; write it as %s", example)}
	}
	for _, item := range items {
		value, more := text(item)
		if !more.HasErrors() {
			list = append(list, placed{value, item.Range()})
		}
		diags = append(diags, more...)
	}
	return list, diags
}

// text returns the value of an expression that is a string without references.
func text(expr hcl.Expression) (string, hcl.Diagnostics) {
	value, diags := expr.Value(nil)
	if diags.HasErrors() {
		return "", diags
	}
	if value.Type() != cty.String || value.IsNull() || !value.IsKnown() {
		return "", hcl.Diagnostics{mistake(expr.Range(), "not a string; write it in double quotes")}
	}
	return value.AsString(), nil
}

// mistake returns one error at one place.
func mistake(at hcl.Range, format string, args ...any) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: fmt.Sprintf(format, args...), Subject: &at}
}

// policyError returns the diagnostics as file:line:col lines.
func policyError(diags hcl.Diagnostics) error {
	lines := []error{ErrPolicy}
	for _, d := range diags {
		words := d.Summary
		if d.Detail != "" {
			words += ": " + d.Detail
		}
		at := ""
		if d.Subject != nil {
			at = fmt.Sprintf("%s:%d:%d: ", d.Subject.Filename, d.Subject.Start.Line, d.Subject.Start.Column)
		}
		lines = append(lines, errors.New(at+words))
	}
	return errors.Join(lines...)
}
