package jobspec

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"taskapi/allocrunner/jobspec/internal/hcleval"
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

// field is one tagged field of a struct.
type field struct {
	index    []int
	name     string // of the argument or block; empty for the label
	kind     string // "attr", "optional", "block", "label"
	inner    bool   // it belongs to the extension, not to the struct itself
	typ      reflect.Type
	required bool
}

func (f field) isMap() bool {
	return f.typ.Kind() == reflect.Map && f.typ.Elem().Kind() != reflect.Pointer
}

// fieldsOf reads the hcl tags of a struct: "name,kind", the kind "attr" when it is left out.
func fieldsOf(t reflect.Type, inner bool) []field {
	var fields []field
	for _, f := range reflect.VisibleFields(t) {
		tag, ok := f.Tag.Lookup("hcl")
		if !ok {
			continue
		}
		name, kind, _ := strings.Cut(tag, ",")
		kind = cmp.Or(kind, "attr")
		fields = append(fields, field{index: f.Index, name: name, kind: kind, inner: inner, typ: f.Type,
			required: kind == "attr" && f.Type.Kind() != reflect.Pointer})
	}
	return fields
}

// labelled reports whether a struct, or its extension, takes a label.
func labelled(t reflect.Type) bool {
	return slices.ContainsFunc(allFields(t), func(f field) bool { return f.kind == "label" })
}

// allFields returns the fields of a struct and of its extension. The extension's win.
func allFields(t reflect.Type) []field {
	var fields []field
	taken := map[string]bool{}
	if c, ok := extensions[t]; ok {
		fields = fieldsOf(reflect.TypeOf(c.fields()).Elem(), true)
	}
	for _, f := range fields {
		taken[f.name] = true
	}
	for _, f := range fieldsOf(t, false) {
		if !taken[f.name] || f.kind == "label" {
			fields = append(fields, f)
		}
	}
	return fields
}

// elem returns the struct type that a block of this field describes, or nil for a map of plain values.
func (f field) elem() reflect.Type {
	t := f.typ
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if f.isMap() || t.Kind() != reflect.Struct {
		return nil
	}
	return t
}

func schemaOf(fields []field) *hcl.BodySchema {
	schema := &hcl.BodySchema{}
	for _, f := range fields {
		if f.kind == "attr" || f.kind == "optional" || f.isMap() {
			schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: f.name, Required: f.required})
		}
		if f.kind == "block" || f.isMap() {
			header := hcl.BlockHeaderSchema{Type: f.name}
			if elem := f.elem(); elem != nil && (labelled(elem) || f.typ.Kind() == reflect.Map) {
				header.LabelNames = []string{"name"}
			}
			schema.Blocks = append(schema.Blocks, header)
		}
	}
	return schema
}

// structBody decodes a block's content into a struct and finishes it with its extension.
func (d *decoder) structBody(body hcl.Body, ctx *hcl.EvalContext, target reflect.Value, labels []string) {
	fields := allFields(target.Type())
	content, diags := body.Content(schemaOf(fields))
	d.add(diags...)
	extension, hasExtension := extensions[target.Type()]
	var extra reflect.Value
	if hasExtension {
		extra = reflect.ValueOf(extension.fields())
	}
	for _, f := range fields {
		owner := target
		if f.inner {
			owner = extra.Elem()
		}
		d.field(f, owner.FieldByIndex(f.index), content, ctx, labels)
	}
	if hasExtension {
		d.add(extension.finish(target.Addr().Interface(), extra.Interface(), content)...)
	}
}

func (d *decoder) field(f field, target reflect.Value, content *hcl.BodyContent, ctx *hcl.EvalContext, labels []string) {
	if f.kind == "label" {
		setLabel(target, labels)
		return
	}
	attr := content.Attributes[f.name]
	if attr != nil {
		d.attribute(attr, ctx, target)
	}
	for i, block := range content.Blocks.OfType(f.name) {
		if d.blocks++; d.blocks > maxBlocks {
			if d.blocks == maxBlocks+1 {
				d.add(diagAt(block.DefRange, "Too large", "The job has more than %d blocks.", maxBlocks))
			}
			return
		}
		if single(f) && (i > 0 || attr != nil) {
			d.add(diagAt(block.DefRange, "Duplicate "+f.name+" block", "Only one %s is allowed here.", f.name))
			return
		}
		d.block(f, target, block, ctx)
	}
}

func setLabel(target reflect.Value, labels []string) {
	if len(labels) == 0 {
		return
	}
	if target.Kind() == reflect.Pointer {
		target.Set(reflect.ValueOf(&labels[0]))
	} else {
		target.SetString(labels[0])
	}
}

// single reports that a block may be there once: it is no list, and no map whose keys are labels.
func single(f field) bool { return f.isMap() || f.typ.Kind() == reflect.Pointer }

func (d *decoder) block(f field, target reflect.Value, block *hcl.Block, ctx *hcl.EvalContext) {
	elem := f.elem()
	if elem == nil {
		d.mapBlock(block, ctx, target)
		return
	}
	value := reflect.New(elem)
	d.structBody(block.Body, ctx, value.Elem(), block.Labels)
	switch {
	case f.typ.Kind() == reflect.Map:
		d.labelledEntry(block, target, value)
	case f.typ.Kind() == reflect.Pointer:
		target.Set(value)
	case f.typ.Elem().Kind() == reflect.Pointer:
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
		d.add(diagAt(block.DefRange, "Duplicate "+block.Type+" block", "There is already a %s %q.", block.Type, block.Labels[0]))
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
