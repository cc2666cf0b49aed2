// Package hcleval evaluates the expressions of a job file. References that have a value only at run time (NOMAD_*,
// attr, node, meta, env, ...) are left as their own text, "${like.this}". All functions of Nomad's HCL2 are there. No
// source text makes the package use unbounded stack, memory or time. It never reads the environment, and reads only
// regular files of bounded size.
package hcleval

import (
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
)

// knownRoots are the references that are resolved while a job file is read; every other root name is left for run time.
var knownRoots = []string{"var", "local"}

// Evaluator is shared by the expressions of one job file. It has the functions, the budget, and the texts of the
// runtime references that were found. It is for one goroutine.
type Evaluator struct {
	budget    *budget
	functions map[string]function.Function
	runtime   map[string]cty.Value
	fromFiles []string
}

// New returns an Evaluator whose file functions read relative to dir.
func New(dir string) *Evaluator {
	e := &Evaluator{budget: &budget{left: allowance}, runtime: map[string]cty.Value{}}
	e.functions = e.table(dir)
	return e
}

// NewWithoutFiles returns an Evaluator for a text from somebody who may not read this machine's files. Functions that
// read files, or return their paths, are errors.
func NewWithoutFiles() *Evaluator {
	e := New("")
	for _, name := range []string{"abspath", "file", "filebase64", "fileexists", "fileset", "pathexpand",
		"templatefile"} {
		e.functions[name] = refusing("files of this machine can't be used here")
	}
	return e
}

// Context returns a context for prepared expressions. known holds the values of the knownRoots. Functions may be called
// if functions is set.
func (e *Evaluator) Context(known map[string]cty.Value, functions bool) *hcl.EvalContext {
	ctx := &hcl.EvalContext{Variables: e.runtime}
	if functions {
		ctx.Functions = e.functions
	}
	child := ctx.NewChild()
	child.Variables = known
	return child
}

// FromFiles returns the texts that come from files, of all that Plain has returned.
func (e *Evaluator) FromFiles() []string { return e.fromFiles }

// Plain is Value without marks, for a value that leaves the Evaluator. fromFile reports whether a file was read for it.
func (e *Evaluator) Plain(expr hcl.Expression,
	ctx *hcl.EvalContext) (v cty.Value, fromFile bool, diags hcl.Diagnostics) {
	v, diags = e.Value(expr, ctx)
	v, fromFile = e.unmark(v)
	return v, fromFile, diags
}

func (e *Evaluator) unmark(v cty.Value) (plain cty.Value, fromFile bool) {
	plain, marked := v.UnmarkDeepWithPaths()
	for _, at := range marked {
		if part, err := at.Path.Apply(plain); err == nil { // it can't fail
			e.addTexts(part)
		}
	}
	return plain, len(marked) > 0
}

// addTexts adds the texts of a value that comes from a file, keys included.
func (e *Evaluator) addTexts(v cty.Value) {
	if v.IsNull() {
		return
	}
	if v.Type() == cty.String {
		e.fromFiles = append(e.fromFiles, v.AsString())
		return
	}
	if !v.CanIterateElements() {
		return
	}
	for key, element := range v.Elements() {
		if !v.Type().IsSetType() {
			e.addTexts(key)
		}
		e.addTexts(element)
	}
}

// Value evaluates a prepared expression, and charges the value to the file's allowance. Without diagnostics, no part of
// the value is unknown. Texts that functions read from files are marked.
func (e *Evaluator) Value(expr hcl.Expression, ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	v, diags := expr.Value(ctx)
	if diags.HasErrors() {
		return cty.DynamicVal, diags
	}
	if diag := e.budget.charge(v, expr.Range()); diag != nil {
		return cty.DynamicVal, append(diags, diag)
	}
	if !v.IsWhollyKnown() {
		return cty.DynamicVal, append(diags, tooLarge(expr.Range()))
	}
	return v, diags
}

type (
	lexer         func(src []byte, filename string, start hcl.Pos) (hclsyntax.Tokens, hcl.Diagnostics)
	parser[T any] func(src []byte, filename string, start hcl.Pos) (T, hcl.Diagnostics)
)

// parse parses a source of one kind, unless it nests too deep.
func parse[T any](src []byte, filename string, lex lexer, read parser[T]) (parsed T, diags hcl.Diagnostics) {
	tokens, diags := lex(src, filename, hcl.InitialPos)
	if diags.HasErrors() {
		return parsed, diags
	}
	if diag := checkNesting(tokens); diag != nil {
		return parsed, hcl.Diagnostics{diag}
	}
	return read(src, filename, hcl.InitialPos)
}

// ParseBody parses HCL.
func ParseBody(src []byte, filename string) (*hclsyntax.Body, hcl.Diagnostics) {
	file, diags := parse(src, filename, hclsyntax.LexConfig, hclsyntax.ParseConfig)
	if diags.HasErrors() {
		return nil, diags
	}
	return file.Body.(*hclsyntax.Body), diags
}

// ParseExpression parses and prepares one expression.
func (e *Evaluator) ParseExpression(src []byte, filename string) (hclsyntax.Expression, hcl.Diagnostics) {
	return e.expression(src, filename, hclsyntax.LexExpression, hclsyntax.ParseExpression, newScope(knownRoots...))
}

func (e *Evaluator) expression(src []byte, filename string, lex lexer, read parser[hclsyntax.Expression],
	s scope) (hclsyntax.Expression, hcl.Diagnostics) {
	expr, diags := parse(src, filename, lex, read)
	if diags.HasErrors() {
		return nil, diags
	}
	p := preparer{Evaluator: e, src: src}
	expr = p.expression(expr, s)
	return expr, p.diags
}

// PrepareBody rewrites the expressions of a parsed body in place: runtime references become text, and expressions whose
// values may grow are charged. It is called once for a body, before any of it is evaluated. src is the text of the
// body.
func (e *Evaluator) PrepareBody(body *hclsyntax.Body, src []byte) hcl.Diagnostics {
	p := preparer{Evaluator: e, src: src}
	for _, attr := range body.Attributes {
		attr.Expr = p.expression(attr.Expr, newScope(knownRoots...))
	}
	for _, block := range body.Blocks {
		p.rootBlock(block)
	}
	return p.diags
}

// ErrorAt returns an error about a place in a text.
func ErrorAt(at hcl.Range, summary, format string, args ...any) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: fmt.Sprintf(format, args...),
		Subject: &at}
}
