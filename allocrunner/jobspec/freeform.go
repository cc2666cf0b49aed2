package jobspec

import (
	"maps"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"taskapi/allocrunner/jobspec/internal/hcleval"
	"taskapi/internal/ctyvalue"
)

// freeBody decodes a block whose arguments are not known here, such as a driver's config. It returns arguments by name,
// and nested blocks as lists of maps; each label adds a map around the block.
func (d *decoder) freeBody(body hcl.Body, ctx *hcl.EvalContext) map[string]any {
	raw := d.bodies[body.MissingItemRange().Start.Byte]
	schema := freeSchema(raw)
	content, diags := body.Content(schema)
	d.add(diags...)
	result := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(content.Attributes)) {
		if value, ok := d.freeAttribute(content.Attributes[name], ctx); ok {
			result[name] = value
		}
	}
	for _, block := range content.Blocks {
		if d.blocks++; d.blocks > maxBlocks {
			d.add(hcleval.ErrorAt(block.DefRange, "Too large", "The job has more than %d blocks.", maxBlocks))
			return result
		}
		d.freeBlock(result, block, ctx)
	}
	return result
}

func (d *decoder) freeAttribute(attr *hcl.Attribute, ctx *hcl.EvalContext) (any, bool) {
	v, _, diags := d.eval.Plain(attr.Expr, ctx)
	d.add(diags...)
	if diags.HasErrors() || v.IsNull() {
		return nil, false
	}
	value, err := ctyvalue.Go(v)
	if err != nil {
		d.add(hcleval.ErrorAt(attr.Expr.Range(), "Unsuitable value", "Argument %q: %s.", attr.Name, err))
	}
	return value, err == nil
}

func (d *decoder) freeBlock(result map[string]any, block *hcl.Block, ctx *hcl.EvalContext) {
	var value any = d.freeBody(block.Body, ctx)
	for _, label := range slices.Backward(block.Labels) {
		value = map[string]any{label: []any{value}}
	}
	list, isList := result[block.Type].([]any)
	if _, taken := result[block.Type]; taken && !isList {
		d.add(hcleval.ErrorAt(block.DefRange, "Duplicate argument", "%q is already set as an argument in this block.",
			block.Type))
		return
	}
	result[block.Type] = append(list, value)
}

// freeSchema returns a schema that fits a body: every argument, and every type of block with as many labels as its
// first block. Dynamic blocks count under the type that they make.
func freeSchema(raw *hclsyntax.Body) *hcl.BodySchema {
	schema := &hcl.BodySchema{}
	if raw == nil {
		return schema
	}
	for _, name := range slices.Sorted(maps.Keys(raw.Attributes)) {
		schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: name})
	}
	seen := map[string]bool{}
	for _, block := range raw.Blocks {
		kind, labels := block.Type, len(block.Labels)
		if kind == "dynamic" && labels == 1 {
			kind, labels = block.Labels[0], 0
			if attr := block.Body.Attributes["labels"]; attr != nil {
				list, _ := hcl.ExprList(attr.Expr)
				labels = len(list)
			}
		}
		if seen[kind] {
			continue
		}
		seen[kind] = true
		schema.Blocks = append(schema.Blocks, hcl.BlockHeaderSchema{Type: kind,
			LabelNames: slices.Repeat([]string{"name"}, labels)})
	}
	return schema
}
