// Package hcleval evaluates the expressions of a job file. References that have a value only at run time (NOMAD_*,
// attr, node, meta, env, ...) are left as their own text, "${like.this}". All functions of Nomad's HCL2 are there. The
// package never reads the environment, and reads only regular files of bounded size. A source text can make it use any
// amount of stack, memory and time: package bounded has the limits.
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

// Evaluator is shared by the expressions of one job file. It has the functions and the texts of the runtime references
// that were found. It is for one goroutine.
type Evaluator struct {
	functions map[string]function.Function
	runtime   map[string]cty.Value
	fromFiles []string
}

// New returns an Evaluator whose file functions read relative to dir.
func New(dir string) *Evaluator {
	e := &Evaluator{runtime: map[string]cty.Value{}}
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

// Plain evaluates a prepared expression to a value that leaves the Evaluator, and so has no marks. fromFile reports
// whether a file was read for it.
func (e *Evaluator) Plain(expr hcl.Expression,
	ctx *hcl.EvalContext) (v cty.Value, fromFile bool, diags hcl.Diagnostics) {
	v, diags = expr.Value(ctx)
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

// ParseBody parses HCL.
func ParseBody(src []byte, filename string) (*hclsyntax.Body, hcl.Diagnostics) {
	file, diags := hclsyntax.ParseConfig(src, filename, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, diags
	}
	return file.Body.(*hclsyntax.Body), diags
}

// ParseExpression parses and prepares one expression.
func (e *Evaluator) ParseExpression(src []byte, filename string) (hclsyntax.Expression, hcl.Diagnostics) {
	return e.expression(src, filename, hclsyntax.ParseExpression, newScope(knownRoots...))
}

func (e *Evaluator) expression(src []byte, filename string,
	parse func([]byte, string, hcl.Pos) (hclsyntax.Expression, hcl.Diagnostics),
	s scope) (hclsyntax.Expression, hcl.Diagnostics) {
	expr, diags := parse(src, filename, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, diags
	}
	p := preparer{Evaluator: e, src: src}
	p.expression(expr, s)
	return expr, nil
}

// PrepareBody rewrites the runtime references of a parsed body to text, in place. It is called once for a body, before
// any of it is evaluated. src is the text of the body.
func (e *Evaluator) PrepareBody(body *hclsyntax.Body, src []byte) {
	p := preparer{Evaluator: e, src: src}
	for _, attr := range body.Attributes {
		p.expression(attr.Expr, newScope(knownRoots...))
	}
	for _, block := range body.Blocks {
		p.rootBlock(block)
	}
}

// ErrorAt returns an error about a place in a text.
func ErrorAt(at hcl.Range, summary, format string, args ...any) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: fmt.Sprintf(format, args...),
		Subject: &at}
}
