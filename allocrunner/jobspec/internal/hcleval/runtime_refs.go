package hcleval

import (
	"maps"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// scope is the set of root names that have a value while the file is read.
type scope map[string]bool

func newScope(names ...string) scope {
	return scope{}.with(names...)
}

func (s scope) with(names ...string) scope {
	wider := maps.Clone(s)
	for _, name := range names {
		wider[name] = true
	}
	return wider
}

// preparer rewrites expressions in place.
type preparer struct {
	*Evaluator
	src []byte
}

// rootBlock prepares a block at the top of a file, but for the type of a variable, which is no expression of values.
func (p *preparer) rootBlock(block *hclsyntax.Block) {
	s := newScope(knownRoots...)
	if block.Type != "variable" {
		p.body(block.Body, s)
		return
	}
	for name, attr := range block.Body.Attributes {
		if name != "type" {
			p.expression(attr.Expr, s)
		}
	}
	for _, inner := range block.Body.Blocks {
		p.body(inner.Body, s)
	}
}

func (p *preparer) body(body *hclsyntax.Body, s scope) {
	for _, attr := range body.Attributes {
		p.expression(attr.Expr, s)
	}
	for _, block := range body.Blocks {
		if block.Type == "dynamic" && len(block.Labels) == 1 {
			p.dynamic(block, s)
		} else {
			p.body(block.Body, s)
		}
	}
}

// dynamic prepares a dynamic block. Its iterator has a value in the labels and in the content, but not in for_each. The
// argument "iterator" itself is a keyword, not a reference.
func (p *preparer) dynamic(block *hclsyntax.Block, s scope) {
	iterator := block.Labels[0]
	if attr := block.Body.Attributes["iterator"]; attr != nil {
		if name := hcl.ExprAsKeyword(attr.Expr); name != "" {
			iterator = name
		}
	}
	inner := s.with(iterator)
	for name, attr := range block.Body.Attributes {
		switch name {
		case "iterator":
		case "labels":
			p.expression(attr.Expr, inner)
			if list, ok := attr.Expr.(*hclsyntax.TupleConsExpr); ok {
				for i, label := range list.Exprs {
					list.Exprs[i] = &plain{label, p.Evaluator}
				}
			}
		default:
			p.expression(attr.Expr, s)
		}
	}
	for _, content := range block.Body.Blocks {
		p.body(content.Body, inner)
	}
}

// plain is an expression whose value has no marks: HCL refuses a label with marks.
type plain struct {
	hclsyntax.Expression
	evaluator *Evaluator
}

func (p *plain) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	v, diags := p.Expression.Value(ctx)
	v, _ = p.evaluator.unmark(v)
	return v, diags
}

func (p *preparer) expression(expr hclsyntax.Expression, s scope) {
	_ = hclsyntax.Walk(expr, &refWalker{preparer: p, scopes: []scope{s}}) // the walker returns none
}

// refWalker turns runtime references into text.
type refWalker struct {
	*preparer
	scopes []scope
	types  []hclsyntax.Expression // type expressions in which the walk is, or is about to be
	inType int
}

// Enter is called before a node's children are visited.
func (w *refWalker) Enter(node hclsyntax.Node) hcl.Diagnostics {
	if w.isType(node) {
		w.inType++
	}
	if w.inType > 0 {
		return nil
	}
	switch n := node.(type) {
	case hclsyntax.ChildScope:
		names := slices.Collect(maps.Keys(n.LocalNames))
		w.scopes = append(w.scopes, w.scopes[len(w.scopes)-1].with(names...))
	case *hclsyntax.FunctionCallExpr:
		if n.Name == "convert" && len(n.Args) == 2 {
			w.types = append(w.types, n.Args[1])
		}
	case *hclsyntax.ScopeTraversalExpr:
		// Let it refer to a variable that is named like its text, and holds it.
		if !w.scopes[len(w.scopes)-1][n.Traversal.RootName()] {
			text := "${" + string(n.SrcRange.SliceBytes(w.src)) + "}"
			w.runtime[text] = cty.StringVal(text)
			n.Traversal = hcl.Traversal{hcl.TraverseRoot{Name: text, SrcRange: n.SrcRange}}
		}
	}
	return nil
}

// Exit is called after a node's children were visited.
func (w *refWalker) Exit(node hclsyntax.Node) hcl.Diagnostics {
	if w.inType > 0 {
		if w.isType(node) {
			w.inType--
		}
		return nil
	}
	if _, ok := node.(hclsyntax.ChildScope); ok {
		w.scopes = w.scopes[:len(w.scopes)-1]
	}
	return nil
}

func (w *refWalker) isType(node hclsyntax.Node) bool {
	switch expr := node.(type) { // a type is written as one of these; other nodes can't all be compared
	case *hclsyntax.ScopeTraversalExpr:
		return slices.Contains(w.types, hclsyntax.Expression(expr))
	case *hclsyntax.FunctionCallExpr:
		return slices.Contains(w.types, hclsyntax.Expression(expr))
	}
	return false
}
