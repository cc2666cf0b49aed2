// Package schema says which arguments and blocks the job specification has: those of the SDK's structs, by their hcl
// tags, and those that the SDK's structs have no tags for.
package schema

import (
	"cmp"
	"reflect"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// Field is one argument, block or label.
type Field struct {
	Index     []int  // in the struct, or in its extension
	Name      string // of the argument or block; empty for the label
	Kind      string // "attr", "optional", "block", "label"
	Extension bool   // it belongs to the extension, not to the struct itself
	Type      reflect.Type
	required  bool
}

// IsMap reports whether the field is a map of plain values, which can be written as an argument or as a block.
func (f Field) IsMap() bool {
	return f.Type.Kind() == reflect.Map && f.Type.Elem().Kind() != reflect.Pointer
}

// fieldsOf reads the hcl tags of a struct: "name,kind", the kind "attr" when it is left out.
func fieldsOf(t reflect.Type, extension bool) []Field {
	var fields []Field
	for _, f := range reflect.VisibleFields(t) {
		tag, ok := f.Tag.Lookup("hcl")
		if !ok {
			continue
		}
		name, kind, _ := strings.Cut(tag, ",")
		kind = cmp.Or(kind, "attr")
		fields = append(fields, Field{Index: f.Index, Name: name, Kind: kind, Extension: extension, Type: f.Type,
			required: kind == "attr" && f.Type.Kind() != reflect.Pointer})
	}
	return fields
}

// labelled reports whether a struct takes a label. No extension has one.
func labelled(t reflect.Type) bool {
	for f := range t.Fields() {
		if strings.HasSuffix(f.Tag.Get("hcl"), ",label") {
			return true
		}
	}
	return false
}

// Fields returns the fields of a struct and of its extension. The extension's win.
func Fields(t reflect.Type) []Field {
	var fields []Field
	taken := map[string]bool{}
	if c, ok := Extensions[t]; ok {
		fields = fieldsOf(reflect.TypeOf(c.New()).Elem(), true)
	}
	for _, f := range fields {
		taken[f.Name] = true
	}
	for _, f := range fieldsOf(t, false) {
		if !taken[f.Name] || f.Kind == "label" {
			fields = append(fields, f)
		}
	}
	return fields
}

// Elem returns the struct type that a block of this field describes, or nil for a map of plain values.
func (f Field) Elem() reflect.Type {
	t := f.Type
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if f.IsMap() || t.Kind() != reflect.Struct {
		return nil
	}
	return t
}

// Of returns the schema with which HCL reads a block of these fields.
func Of(fields []Field) *hcl.BodySchema {
	schema := &hcl.BodySchema{}
	for _, f := range fields {
		if f.Kind == "attr" || f.Kind == "optional" || f.IsMap() {
			schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: f.Name, Required: f.required})
		}
		if f.Kind == "block" || f.IsMap() {
			header := hcl.BlockHeaderSchema{Type: f.Name}
			if elem := f.Elem(); elem != nil && (labelled(elem) || f.Type.Kind() == reflect.Map) {
				header.LabelNames = []string{"name"}
			}
			schema.Blocks = append(schema.Blocks, header)
		}
	}
	return schema
}
