package jobspec

import (
	"maps"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"taskapi/allocrunner/jobspec/internal/hcleval"
)

// local is one entry of a locals block and the names of the locals that it refers to.
type local struct {
	attr  *hclsyntax.Attribute
	needs []string
	whole bool // it refers to "local" as a whole
}

// collectLocals finds the locals and their references. Duplicates are distinguished by their position.
func collectLocals(body *hclsyntax.Body) map[string][]*local {
	locals := map[string][]*local{}
	for _, block := range body.Blocks {
		if block.Type != "locals" {
			continue
		}
		for name, attr := range block.Body.Attributes {
			l := &local{attr: attr}
			for _, traversal := range hclsyntax.Variables(attr.Expr) {
				l.need(traversal)
			}
			locals[name] = append(locals[name], l)
		}
	}
	return locals
}

func (l *local) need(traversal hcl.Traversal) {
	if traversal.RootName() != "local" {
		return
	}
	if len(traversal) > 1 {
		if step, ok := traversal[1].(hcl.TraverseAttr); ok {
			l.needs = append(l.needs, step.Name)
			return
		}
	}
	l.whole = true
}

// localResolver evaluates locals in the order in which they need one another.
type localResolver struct {
	file   *hclFile
	vars   cty.Value
	locals map[string][]*local
	values map[string]cty.Value
	open   map[string]bool // being evaluated: meeting one again is a cycle
	failed map[string]bool
	diags  hcl.Diagnostics
}

func (f *hclFile) locals(locals map[string][]*local, vars cty.Value) (cty.Value, hcl.Diagnostics) {
	r := &localResolver{file: f, vars: vars, locals: locals, values: map[string]cty.Value{}, open: map[string]bool{},
		failed: map[string]bool{}}
	for _, name := range slices.Sorted(maps.Keys(locals)) {
		r.resolve(name)
	}
	return cty.ObjectVal(r.values), r.diags
}

func (r *localResolver) resolve(name string) {
	if _, done := r.values[name]; done || r.failed[name] {
		return
	}
	entries := r.locals[name]
	if len(entries) == 0 {
		return // evaluation says where the unknown name is
	}
	l := entries[0]
	switch at := l.attr.NameRange; {
	case len(entries) > 1:
		r.fail(name, hcleval.ErrorAt(entries[1].attr.NameRange, "Duplicate local",
			"Local %q is defined at line %d already.", name, at.Start.Line))
	case l.whole:
		r.fail(name, hcleval.ErrorAt(at, "Invalid local",
			`Local %q refers to all of "local", and so to itself; name the ones that it needs.`, name))
	case r.open[name]:
		r.fail(name, hcleval.ErrorAt(at, "Cycle of locals", "Local %q needs its own value.", name))
	default:
		r.evaluate(name, l)
	}
}

func (r *localResolver) fail(name string, diags ...*hcl.Diagnostic) {
	r.failed[name] = true
	r.diags = append(r.diags, diags...)
}

func (r *localResolver) evaluate(name string, l *local) {
	r.open[name] = true
	for _, need := range l.needs {
		r.resolve(need)
	}
	delete(r.open, name)
	if r.failed[name] || slices.ContainsFunc(l.needs, func(need string) bool { return r.failed[need] }) {
		r.failed[name] = true
		return
	}
	known := map[string]cty.Value{"var": r.vars, "local": cty.ObjectVal(r.values)}
	value, diags := l.attr.Expr.Value(r.file.eval.Context(known, true))
	if diags.HasErrors() {
		r.fail(name, diags...)
		return
	}
	r.values[name] = value
}
