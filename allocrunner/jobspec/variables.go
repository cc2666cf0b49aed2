package jobspec

import (
	"maps"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"taskapi/allocrunner/jobspec/internal/hcleval"
)

var variableSchema = &hcl.BodySchema{
	Attributes: []hcl.AttributeSchema{{Name: "type"}, {Name: "default"}, {Name: "description"}},
	Blocks:     []hcl.BlockHeaderSchema{{Type: "validation"}},
}

var validationSchema = &hcl.BodySchema{
	Attributes: []hcl.AttributeSchema{{Name: "condition", Required: true}, {Name: "error_message", Required: true}},
}

type variable struct {
	name        string
	declared    hcl.Range
	typ         cty.Type // DynamicPseudoType when none is declared
	defaults    *typeexpr.Defaults
	value       cty.Value // cty.NilVal until something sets it
	validations []*hcl.BodyContent
}

// variables reads the declarations, gives each variable its value and checks the values.
func (f *hclFile) variables(root *hcl.BodyContent) (map[string]cty.Value, hcl.Diagnostics) {
	declared, diags := f.declarations(root)
	if diags.HasErrors() {
		return nil, diags
	}
	if diags := f.assign(declared); diags.HasErrors() {
		return nil, diags
	}
	values := map[string]cty.Value{}
	for _, name := range slices.Sorted(maps.Keys(declared)) {
		v := declared[name]
		if v.value == cty.NilVal {
			diags = append(diags, hcleval.ErrorAt(v.declared, "Missing value for a variable",
				"Variable %q has no default. Give it a value with -var %s=..., -var-file, or %s%s in the environment.", name, name,
				envPrefix, name))
			continue
		}
		values[name] = v.value
	}
	if diags.HasErrors() {
		return nil, diags
	}
	ctx := f.eval.Context(map[string]cty.Value{"var": cty.ObjectVal(values)}, true)
	for _, name := range slices.Sorted(maps.Keys(declared)) {
		for _, validation := range declared[name].validations {
			diags = append(diags, f.checkValidation(name, validation, ctx)...)
		}
	}
	return values, diags
}

func (f *hclFile) declarations(root *hcl.BodyContent) (map[string]*variable, hcl.Diagnostics) {
	var diags hcl.Diagnostics
	declared := map[string]*variable{}
	declare := func(v *variable) {
		if other := declared[v.name]; other != nil {
			diags = append(diags, hcleval.ErrorAt(v.declared, "Duplicate variable",
				"Variable %q is declared at line %d already.", v.name, other.declared.Start.Line))
			return
		}
		if !hclsyntax.ValidIdentifier(v.name) {
			diags = append(diags, hcleval.ErrorAt(v.declared, "Invalid variable name",
				"%q is no name: it needs letters, digits, _ and -, and no digit in front.", v.name))
		}
		declared[v.name] = v
	}
	for _, block := range root.Blocks {
		switch block.Type {
		case "variable":
			v, more := f.declaration(block)
			diags = append(diags, more...)
			declare(v)
		case "variables":
			attrs, more := block.Body.JustAttributes()
			diags = append(diags, more...)
			for _, name := range slices.Sorted(maps.Keys(attrs)) {
				v := &variable{name: name, declared: attrs[name].NameRange, typ: cty.DynamicPseudoType}
				diags = append(diags, f.set(v, attrs[name].Expr)...)
				declare(v)
			}
		}
	}
	return declared, diags
}

func (f *hclFile) declaration(block *hcl.Block) (*variable, hcl.Diagnostics) {
	v := &variable{name: block.Labels[0], declared: block.DefRange, typ: cty.DynamicPseudoType}
	content, diags := block.Body.Content(variableSchema)
	if attr := content.Attributes["type"]; attr != nil {
		var more hcl.Diagnostics
		v.typ, v.defaults, more = typeexpr.TypeConstraintWithDefaults(attr.Expr)
		if diags = append(diags, more...); more.HasErrors() {
			return v, diags
		}
	}
	if attr := content.Attributes["default"]; attr != nil {
		diags = append(diags, f.set(v, attr.Expr)...)
	}
	if attr := content.Attributes["description"]; attr != nil {
		if text, more := attr.Expr.Value(f.eval.Context(nil, false)); more.HasErrors() {
			diags = append(diags, more...)
		} else if text.Type() != cty.String {
			diags = append(diags, hcleval.ErrorAt(attr.Expr.Range(), "Invalid description",
				"A description is text in quotes."))
		}
	}
	for _, validation := range content.Blocks {
		checked, more := validation.Body.Content(validationSchema)
		diags = append(diags, more...)
		v.validations = append(v.validations, checked)
	}
	return v, diags
}

// set evaluates what gives a variable its value. No variable, local or function can be used in it.
func (f *hclFile) set(v *variable, expr hcl.Expression) hcl.Diagnostics {
	value, diags := expr.Value(f.eval.Context(nil, false))
	if diags.HasErrors() {
		return diags
	}
	if v.defaults != nil && !value.IsNull() {
		value = v.defaults.Apply(value)
	}
	value, err := convert.Convert(value, v.typ)
	if err != nil {
		return hcl.Diagnostics{hcleval.ErrorAt(expr.Range(), "Unsuitable value for a variable", "Variable %q: %s.",
			v.name, err)}
	}
	v.value = value
	return nil
}

// checkValidation evaluates a validation block. It may use functions and every variable.
func (f *hclFile) checkValidation(name string, validation *hcl.BodyContent, ctx *hcl.EvalContext) hcl.Diagnostics {
	condition := validation.Attributes["condition"]
	ok, _, diags := f.eval.Plain(condition.Expr, ctx)
	if diags.HasErrors() {
		return diags
	}
	if ok.IsNull() || ok.Type() != cty.Bool {
		return hcl.Diagnostics{hcleval.ErrorAt(condition.Expr.Range(), "Invalid condition",
			"A validation's condition must be true or false.")}
	}
	if ok.True() {
		return nil
	}
	message := validation.Attributes["error_message"]
	text, fromFile, diags := f.eval.Plain(message.Expr, ctx)
	if diags.HasErrors() {
		return diags
	}
	if fromFile {
		text = cty.StringVal("its error_message comes from a file, which this error does not show")
	}
	if text.IsNull() || text.Type() != cty.String {
		return hcl.Diagnostics{hcleval.ErrorAt(message.Expr.Range(), "Invalid error message",
			"A validation's error_message must be text.")}
	}
	return hcl.Diagnostics{hcleval.ErrorAt(condition.Expr.Range(), "Invalid value for variable "+name, "%s",
		text.AsString())}
}
