package auth

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"taskapi/auth/limitset"
)

// ErrPolicy is in every error of ParsePolicy.
var ErrPolicy = errors.New("the policy can't be used")

// maxPolicyBytes bounds a policy file. A rule takes some 100 bytes, and the HCL parser recurses once for every bracket.
const maxPolicyBytes = 64 << 10

// presets are the policies that have a name.
var presets = map[string]CapabilitySet{"local": DefaultTask, "nomad": ImplicitTask}

// coarse are the values of policy in a namespace or a task block.
var coarse = map[string]CapabilitySet{
	"read":  CapabilitySet(ReadJob),
	"write": CapabilitySet(ReadJob | ReadLogs | ReadFS | AllocLifecycle | AllocExec),
	"deny":  0,
}

// machineBlocks are the blocks about the machine and its agent, with the capabilities that each value of policy gives.
// Nomad's agent:write has no meaning here: there is no cluster to join, and no servers to choose.
var machineBlocks = map[string]map[string]CapabilitySet{
	"node":  {"read": CapabilitySet(NodeRead), "write": CapabilitySet(NodeRead | NodeWrite), "deny": 0},
	"agent": {"read": agentPolicy, "write": agentPolicy, "deny": 0},
}

const agentPolicy = CapabilitySet(AgentRead | AgentMonitor)

// The label of a path block consists of the letters of a variable's path, and *.
const (
	pathLetters   = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_~/*"
	maxPathLength = 128
)

var (
	policySchema = &hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "preset"}}, Blocks: []hcl.BlockHeaderSchema{
		{Type: "namespace", LabelNames: []string{"name"}},
		{Type: "task", LabelNames: []string{"name"}},
		{Type: "limits"},
		{Type: "node"},
		{Type: "agent"},
	}}
	variablesBlock  = []hcl.BlockHeaderSchema{{Type: "variables"}}
	namespaceSchema = &hcl.BodySchema{
		Attributes: []hcl.AttributeSchema{{Name: "policy"}, {Name: "capabilities"}}, Blocks: variablesBlock,
	}
	taskSchema = &hcl.BodySchema{
		Attributes: []hcl.AttributeSchema{{Name: "policy"}, {Name: "capabilities"}, {Name: "deny"}}, Blocks: variablesBlock,
	}
	machineSchema = &hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "policy", Required: true}}}
	pathsSchema   = &hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "path", LabelNames: []string{"path"}}}}
	pathSchema    = &hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "capabilities", Required: true}}}
)

// ParsePolicy parses a policy file. The error holds ErrPolicy and one line for each mistake, with file, line and
// column.
func ParsePolicy(filename string, src []byte) (*Policy, error) {
	if len(src) > maxPolicyBytes {
		return nil, fmt.Errorf("%w: %s has %d bytes; at most %d are read", ErrPolicy, filename, len(src), maxPolicyBytes)
	}
	file, diags := hclsyntax.ParseConfig(src, filename, hcl.InitialPos)
	p := policyParser{policy: &Policy{base: DefaultTask}, diags: diags}
	if !diags.HasErrors() {
		p.file(file.Body)
	}
	if p.diags.HasErrors() {
		return nil, p.err()
	}
	slices.SortFunc(p.policy.namespaces, rank)
	slices.SortFunc(p.policy.tasks, rank)
	return p.policy, nil
}

type policyParser struct {
	policy *Policy
	diags  hcl.Diagnostics
}

func (p *policyParser) file(body hcl.Body) {
	content, _ := p.content(body, policySchema)
	if attr := content.Attributes["preset"]; attr != nil {
		_, p.policy.base = p.choice(attr, presets, `unknown preset %q; there are "local" and "nomad"`)
	}
	for _, block := range content.Blocks {
		switch block.Type {
		case "namespace":
			p.rule(block, namespaceSchema, &p.policy.namespaces)
		case "task":
			p.rule(block, taskSchema, &p.policy.tasks)
		case "limits":
			p.limits(block)
		default:
			p.machine(block)
		}
	}
}

// unknownPolicy is the mistake of a policy that has an unknown name.
const unknownPolicy = `unknown policy %q; there are "read", "write" and "deny"`

func (p *policyParser) rule(block *hcl.Block, schema *hcl.BodySchema, list *[]rule) {
	r := rule{label: block.Labels[0]}
	content, ok := p.content(block.Body, schema)
	if _, err := path.Match(r.label, ""); err != nil || r.label == "" {
		p.mistake(block.LabelRanges[0], "%q is no name and no pattern; a pattern may hold *, ? and [a-z]", r.label)
	}
	if len(content.Attributes)+len(content.Blocks) == 0 && ok {
		p.mistake(block.DefRange, "the block says nothing; set policy or capabilities")
	}
	for i, variables := range content.Blocks {
		if i > 0 {
			p.mistake(variables.DefRange, "a second variables block; write one with all paths")
			continue
		}
		r.paths = p.paths(variables)
	}
	if attr := content.Attributes["policy"]; attr != nil {
		var name string
		name, r.allow = p.choice(attr, coarse, unknownPolicy)
		r.denyAll = name == "deny"
	}
	if attr := content.Attributes["capabilities"]; attr != nil {
		set, deny, ok := p.capabilities(attr.Expr)
		if block.Type == "task" && set == 0 && !deny && ok {
			p.mistake(attr.Expr.Range(), `an empty list gives a task nothing more, and takes nothing away; `+
				`to take, write deny = ["read-logs"] or policy = "deny"`)
		}
		r.allow, r.denyAll = r.allow|set, r.denyAll || deny
	}
	if attr := content.Attributes["deny"]; attr != nil {
		set, deny, _ := p.capabilities(attr.Expr)
		r.taken, r.denyAll = set, r.denyAll || deny
	}
	if slices.ContainsFunc(*list, func(other rule) bool { return other.label == r.label }) {
		p.mistake(block.LabelRanges[0], "%s %q has a block already; write one for both", block.Type, r.label)
	}
	*list = append(*list, r)
}

func (p *policyParser) machine(block *hcl.Block) {
	values := machineBlocks[block.Type]
	if p.policy.decided&values["write"] != 0 {
		p.mistake(block.DefRange, "a second %s block; write one", block.Type)
	}
	p.policy.decided |= values["write"]
	content, _ := p.content(block.Body, machineSchema)
	if attr := content.Attributes["policy"]; attr != nil {
		_, set := p.choice(attr, values, unknownPolicy)
		p.policy.machine |= set
	}
}

// limits parses a limits block: NAME = VALUE, with a string or a number.
func (p *policyParser) limits(block *hcl.Block) {
	attributes, diags := block.Body.JustAttributes()
	p.diags = append(p.diags, diags...)
	if p.policy.limits != nil {
		p.mistake(block.DefRange, "a second limits block; write one for all")
	}
	if len(attributes) == 0 && !diags.HasErrors() {
		p.mistake(block.DefRange, "the block says nothing; write connections = 64, say")
	}
	for _, attr := range slices.SortedFunc(maps.Values(attributes), func(a, b *hcl.Attribute) int {
		return cmp.Compare(a.Range.Start.Byte, b.Range.Start.Byte)
	}) {
		value, diags := attr.Expr.Value(nil)
		if p.diags = append(p.diags, diags...); diags.HasErrors() {
			continue
		}
		word, err := convert.Convert(value, cty.String)
		if err != nil || word.IsNull() || !word.IsKnown() {
			p.mistake(attr.Expr.Range(), `neither a number nor a string; write 64 or "10/s:20"`)
			continue
		}
		if err := new(limitset.Set).Put(attr.Name, word.AsString()); err != nil {
			p.mistake(attr.Range, "%v", err)
		}
		p.policy.limits = append(p.policy.limits, limitSetting{attr.Name, word.AsString()})
	}
}

func (p *policyParser) paths(block *hcl.Block) (paths []pathRule) {
	content, ok := p.content(block.Body, pathsSchema)
	if len(content.Blocks) == 0 && ok {
		p.mistake(block.DefRange, `the block says nothing; write path "PATH" { capabilities = ["read"] } in it`)
	}
	for _, b := range content.Blocks {
		rule := pathRule{path: b.Labels[0]}
		switch {
		case rule.path == "" || len(rule.path) > maxPathLength || strings.Trim(rule.path, pathLetters) != "":
			p.mistake(b.LabelRanges[0], "no variable has a path like %q: it is made of at most %d of a-z, A-Z, 0-9, "+
				"-, _, ~ and /, and * stands for any of them", rule.path, maxPathLength)
		case slices.ContainsFunc(paths, func(other pathRule) bool { return other.path == rule.path }):
			p.mistake(b.LabelRanges[0], "path %q has a block already; write one for both", rule.path)
		}
		inner, _ := p.content(b.Body, pathSchema)
		if attr := inner.Attributes["capabilities"]; attr != nil {
			rule.rights = p.rights(attr.Expr)
		}
		paths = append(paths, rule)
	}
	return paths
}

func (p *policyParser) rights(expr hcl.Expression) (rights VariableRight) {
	names, ok := p.list(expr, `["read", "write"]`)
	denied := false
	for _, name := range names {
		right, known := variableRights[name.text]
		if !known {
			p.mistake(name.at, "unknown capability %q of variables; there are read, list, write, destroy and deny", name.text)
		}
		denied, rights = denied || name.text == "deny", rights|right
	}
	if len(names) == 0 && ok {
		p.mistake(expr.Range(), `an empty list; to refuse the path, write ["deny"]`)
	}
	if denied {
		return noVariableRight
	}
	return rights
}

// capabilities parses a list of capabilities. deny reports whether "deny" is among them, and ok whether there was no
// mistake.
func (p *policyParser) capabilities(expr hcl.Expression) (set CapabilitySet, deny, ok bool) {
	names, ok := p.list(expr, `["read-job", "read-logs"]`)
	for _, name := range names {
		if name.text == "deny" {
			deny = true
			continue
		}
		c, err := ParseCapability(name.text)
		if err != nil {
			p.mistake(name.at, "%v", err)
			ok = false
		}
		set = set.With(c)
	}
	return set, deny, ok
}

// content returns the content of a block, and whether it fits the schema.
func (p *policyParser) content(body hcl.Body, schema *hcl.BodySchema) (*hcl.BodyContent, bool) {
	content, diags := body.Content(schema)
	p.diags = append(p.diags, diags...)
	return content, !diags.HasErrors()
}

// choice returns the name that an attribute has as its value, and what that stands for.
func (p *policyParser) choice(
	attr *hcl.Attribute, values map[string]CapabilitySet, unknown string,
) (name string, set CapabilitySet) {
	name, ok := p.text(attr.Expr)
	set, known := values[name]
	if ok && !known {
		p.mistake(attr.Expr.Range(), unknown, name)
	}
	return name, set
}

// placed is a string with its place in the file.
type placed struct {
	text string
	at   hcl.Range
}

// list returns the strings of a list, and whether all of its elements are strings. The mistake of another expression
// shows the example.
func (p *policyParser) list(expr hcl.Expression, example string) (list []placed, ok bool) {
	items, diags := hcl.ExprList(expr)
	if diags.HasErrors() {
		p.mistake(expr.Range(), "not a list; write it as %s", example)
		return nil, false
	}
	ok = true
	for _, item := range items {
		if text, isText := p.text(item); isText {
			list = append(list, placed{text, item.Range()})
		} else {
			ok = false
		}
	}
	return list, ok
}

// text returns the value of an expression that is a string without references.
func (p *policyParser) text(expr hcl.Expression) (text string, ok bool) {
	value, diags := expr.Value(nil)
	switch {
	case diags.HasErrors():
		p.diags = append(p.diags, diags...)
	case value.Type() != cty.String || value.IsNull() || !value.IsKnown():
		p.mistake(expr.Range(), "not a string; write it in double quotes")
	default:
		return value.AsString(), true
	}
	return "", false
}

func (p *policyParser) mistake(at hcl.Range, format string, args ...any) {
	words := fmt.Sprintf(format, args...)
	p.diags = append(p.diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: words, Subject: &at})
}

func (p *policyParser) err() error {
	lines := []error{ErrPolicy}
	for _, d := range p.diags {
		words := d.Summary
		if d.Detail != "" {
			words += ": " + d.Detail
		}
		if d.Subject != nil {
			words = fmt.Sprintf("%s:%d:%d: %s", d.Subject.Filename, d.Subject.Start.Line, d.Subject.Start.Column, words)
		}
		lines = append(lines, errors.New(words))
	}
	return errors.Join(lines...)
}
