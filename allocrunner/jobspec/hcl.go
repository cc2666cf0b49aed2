package jobspec

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/dynblock"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty"

	"taskapi/allocrunner/jobspec/internal/hcleval"
)

var rootSchema = &hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{
	{Type: "job", LabelNames: []string{"name"}},
	{Type: "variable", LabelNames: []string{"name"}},
	{Type: "variables"},
	{Type: "locals"},
}}

// hclFile is one HCL job file while it is read.
type hclFile struct {
	cfg     Config
	eval    *hcleval.Evaluator
	sources map[string][]byte
}

// parseHCL reads the variables, then the locals, then the job, each with what came before it in scope.
func parseHCL(cfg Config) (*api.Job, error) {
	eval := hcleval.New(cfg.Dir)
	if cfg.NoFiles {
		eval = hcleval.NewWithoutFiles()
	}
	f := &hclFile{cfg: cfg, eval: eval, sources: map[string][]byte{cfg.Filename: cfg.Body}}
	job, diags := f.parse()
	read := FromFiles{eval.FromFiles()}
	if cfg.FromFiles != nil {
		*cfg.FromFiles = read
	}
	if !diags.HasErrors() {
		return job, nil
	}
	if hint := foreignHint(cfg.Body); hint != "" {
		return nil, fmt.Errorf("%w: %s is %s", ErrInvalid, cfg.Filename, hint)
	}
	errs := slices.DeleteFunc(diags, func(d *hcl.Diagnostic) bool { return d.Severity != hcl.DiagError })
	for _, diag := range errs {
		if diag.Subject != nil && diag.Subject.Filename == cfg.Filename {
			addHint(diag, cfg.Body)
		}
	}
	return nil, &Error{Diags: errs, sources: f.sources, fromFiles: &read}
}

func (f *hclFile) parse() (*api.Job, hcl.Diagnostics) {
	body, diags := hcleval.ParseBody(f.cfg.Body, f.cfg.Filename)
	if diags.HasErrors() {
		if comment := commentInBraces(f.cfg.Filename, f.cfg.Body); comment != nil {
			return nil, hcl.Diagnostics{comment}
		}
		return nil, diags
	}
	locals := collectLocals(body) // before preparation, which hides what locals refer to
	f.eval.PrepareBody(body, f.cfg.Body)
	content, diags := body.Content(rootSchema)
	if diags.HasErrors() {
		return nil, diags
	}
	jobs := content.Blocks.OfType("job")
	if len(jobs) == 0 {
		return nil, hcl.Diagnostics{hcleval.ErrorAt(content.MissingItemRange, "Missing job block",
			`A job file needs one block: job "name" { ... }`)}
	}
	if len(jobs) > 1 {
		return nil, hcl.Diagnostics{hcleval.ErrorAt(jobs[1].DefRange, "Duplicate job block",
			"A job file describes one job; another begins at line %d.", jobs[0].DefRange.Start.Line)}
	}
	vars, diags := f.variables(content)
	if diags.HasErrors() {
		return nil, diags
	}
	known := map[string]cty.Value{"var": cty.ObjectVal(vars), "local": cty.EmptyObjectVal}
	if known["local"], diags = f.locals(locals, known["var"]); diags.HasErrors() {
		return nil, diags
	}
	return f.job(jobs[0], body, f.eval.Context(known, true))
}

func (f *hclFile) job(block *hcl.Block, root *hclsyntax.Body, ctx *hcl.EvalContext) (*api.Job, hcl.Diagnostics) {
	d := &decoder{eval: f.eval, bodies: map[int]*hclsyntax.Body{}}
	d.index(root)
	job := &api.Job{}
	d.structBody(dynblock.Expand(block.Body, ctx), ctx, reflect.ValueOf(job).Elem(), nil)
	if d.diags.HasErrors() {
		return nil, d.diags
	}
	normalize(job, block.Labels[0])
	return job, nil
}
