package jobspec

import (
	"reflect"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"taskapi/allocrunner/jobspec/internal/hcleval"
	"taskapi/allocrunner/jobspec/internal/schema"
)

// maxBlocks bounds the blocks of a job after dynamic blocks were unrolled; "dynamic" inside "dynamic" multiplies. A
// job of a hundred tasks has about a thousand.
const maxBlocks = 10_000

// decoder walks blocks and the SDK's structs side by side, guided by the structs' hcl tags.
type decoder struct {
	eval   *hcleval.Evaluator
	bodies map[int]*hclsyntax.Body // by the byte at which they begin
	blocks int
	diags  hcl.Diagnostics
}

func (d *decoder) add(diags ...*hcl.Diagnostic) { d.diags = append(d.diags, diags...) }

// index remembers where each body begins, so that the names in a free-form block can be found after it was expanded.
func (d *decoder) index(body *hclsyntax.Body) {
	d.bodies[body.MissingItemRange().Start.Byte] = body
	for _, block := range body.Blocks {
		d.index(block.Body)
	}
}

// structBody decodes a block's content into a struct and finishes it with its extension.
func (d *decoder) structBody(body hcl.Body, ctx *hcl.EvalContext, target reflect.Value, labels []string) {
	fields := schema.Fields(target.Type())
	content, diags := body.Content(schema.Of(fields))
	d.add(diags...)
	extension, hasExtension := schema.Extensions[target.Type()]
	var extra reflect.Value
	if hasExtension {
		extra = reflect.ValueOf(extension.New())
	}
	for _, f := range fields {
		owner := target
		if f.Extension {
			owner = extra.Elem()
		}
		d.field(f, owner.FieldByIndex(f.Index), content, ctx, labels)
	}
	if hasExtension {
		d.add(extension.Finish(target.Addr().Interface(), extra.Interface(), content)...)
	}
}

func (d *decoder) field(f schema.Field, target reflect.Value, content *hcl.BodyContent, ctx *hcl.EvalContext,
	labels []string) {
	if f.Kind == "label" {
		if len(labels) > 0 {
			_ = setValue(cty.StringVal(labels[0]), target) // a label is a text
		}
		return
	}
	attr := content.Attributes[f.Name]
	if attr != nil {
		d.attribute(attr, ctx, target)
	}
	for i, block := range content.Blocks.OfType(f.Name) {
		if d.blocks++; d.blocks > maxBlocks {
			if d.blocks == maxBlocks+1 {
				d.add(hcleval.ErrorAt(block.DefRange, "Too large", "The job has more than %d blocks.", maxBlocks))
			}
			return
		}
		single := f.IsMap() || f.Type.Kind() == reflect.Pointer // neither a list nor a map whose keys are labels
		if single && (i > 0 || attr != nil) {
			d.add(hcleval.ErrorAt(block.DefRange, "Duplicate "+f.Name+" block", "Only one %s is allowed here.", f.Name))
			return
		}
		d.block(f, target, block, ctx)
	}
}

func (d *decoder) block(f schema.Field, target reflect.Value, block *hcl.Block, ctx *hcl.EvalContext) {
	elem := f.Elem()
	if elem == nil {
		d.mapBlock(block, ctx, target)
		return
	}
	value := reflect.New(elem)
	d.structBody(block.Body, ctx, value.Elem(), block.Labels)
	switch {
	case f.Type.Kind() == reflect.Map:
		d.labelledEntry(block, target, value)
	case f.Type.Kind() == reflect.Pointer:
		target.Set(value)
	case f.Type.Elem().Kind() == reflect.Pointer:
		target.Set(reflect.Append(target, value))
	default:
		target.Set(reflect.Append(target, value.Elem()))
	}
}

// labelledEntry puts a block into the map whose keys are the labels: volume "data" { ... }.
func (d *decoder) labelledEntry(block *hcl.Block, target, value reflect.Value) {
	key := reflect.ValueOf(block.Labels[0])
	if target.IsNil() {
		target.Set(reflect.MakeMap(target.Type()))
	}
	if target.MapIndex(key).IsValid() {
		d.add(hcleval.ErrorAt(block.DefRange, "Duplicate "+block.Type+" block", "There is already a %s %q.", block.Type,
			block.Labels[0]))
		return
	}
	target.SetMapIndex(key, value)
}

// mapBlock decodes the block form of a map: env { A = 1 }. Maps of any value may hold further blocks.
func (d *decoder) mapBlock(block *hcl.Block, ctx *hcl.EvalContext, target reflect.Value) {
	if target.Type().Elem().Kind() == reflect.Interface {
		target.Set(reflect.ValueOf(d.freeBody(block.Body, ctx)))
		return
	}
	attrs, diags := block.Body.JustAttributes()
	d.add(diags...)
	target.Set(reflect.MakeMapWithSize(target.Type(), len(attrs)))
	for name, attr := range attrs {
		value := reflect.New(target.Type().Elem()).Elem()
		if d.attribute(attr, ctx, value) {
			target.SetMapIndex(reflect.ValueOf(name), value)
		}
	}
}

var durationType = reflect.TypeFor[time.Duration]()
