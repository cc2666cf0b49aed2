package settings

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// block is the form of a block with a label. Its value is one text of a list: the block as a JSON object, unless it has
// a form of its own.
type block struct {
	label   string              // the field with the label
	words   string              // what the label is, for messages
	fields  map[string]cty.Type // the arguments, by the names of fields: a text, a truth, a list or a map of texts
	blocks  map[string]block    // blocks in it
	plural  string              // the field of the outer object with the list of such blocks
	literal map[string]cty.Value
	text    func(object map[string]any) string // the form of its own; nil for none
}

// labelled returns the key of blocks with a label, by its name; nil for none.
func labelled(keys []Key, name string) *Key {
	if i := slices.IndexFunc(keys, func(k Key) bool { return k.Name == name && k.block != nil }); i >= 0 {
		return &keys[i]
	}
	return nil
}

// labelled takes a block with a label, which is one value of a setting that is a list.
func (p *parser) labelled(b *hclsyntax.Block) {
	key, before := labelled(p.keys, b.Type), len(p.wrong)
	if key == nil {
		p.problem(b.TypeRange, "the block %q %s", b.Type, p.elsewhere)
		return
	}
	object := p.object(*key.block, b)
	if len(p.wrong) > before {
		return
	}
	text, err := json.Marshal(object)
	if key.block.text != nil {
		text = []byte(key.block.text(object))
	}
	from := fmt.Sprintf("%s:%d", p.path, b.TypeRange.Start.Line)
	one := Values{}
	if err == nil {
		err = one.Set(key.Name, string(text), filepath.Dir(p.path), from)
	}
	if err == nil {
		_, err = one.resolve()
		err = errors.Unwrap(err) // without the place, which problem adds
	}
	if err == nil {
		err = p.values.Set(key.Name, string(text), filepath.Dir(p.path), from)
	}
	if err == nil {
		_, err = Values{*p.values.get(key.Name)}.resolve() // such as a second block with the label
		err = errors.Unwrap(err)                           // without the place, which problem adds
	}
	if err != nil {
		p.problem(b.TypeRange, "%v", err)
	}
}

// object returns a block as it is written in JSON.
func (p *parser) object(form block, b *hclsyntax.Block) map[string]any {
	if len(b.Labels) != 1 {
		p.problem(b.TypeRange, "the block %q takes one label, %s", b.Type, form.words)
		return nil
	}
	object := map[string]any{form.label: b.Labels[0]}
	for name, a := range b.Body.Attributes {
		kind, ok := form.fields[name]
		if !ok {
			p.problem(a.NameRange, "the block %q has no argument %q; it has %s", b.Type, name, form.names())
			continue
		}
		v, problems := a.Expr.Value(&hcl.EvalContext{Variables: form.literal})
		if problems.HasErrors() {
			p.problem(a.Expr.Range(), "%s: it must be a plain value: %s", name, problems[0].Detail)
			continue
		}
		v, err := convert.Convert(v, kind)
		if err != nil || !v.IsWhollyKnown() || v.IsNull() {
			p.problem(a.Expr.Range(), "%s must be %s", name, wordsOf(kind))
			continue
		}
		if object[name], ok = plainOf(v); !ok {
			p.problem(a.Expr.Range(), "%s must be %s, and none of them null", name, wordsOf(kind))
		}
	}
	for _, inner := range b.Body.Blocks {
		nested, ok := form.blocks[inner.Type]
		if !ok {
			p.problem(inner.TypeRange, "the block %q has no block %q; it has %s", b.Type, inner.Type, form.names())
			continue
		}
		list, _ := object[nested.plural].([]any)
		object[nested.plural] = append(list, p.object(nested, inner))
	}
	return object
}

// labels returns the labels of blocks.
func (f block) labels(texts []string) string {
	var labels []string
	for _, text := range texts {
		var object map[string]any
		_ = json.Unmarshal([]byte(text), &object) // Set's caller has refused what is no block
		labels = append(labels, fmt.Sprint(object[f.label]))
	}
	return strings.Join(labels, " ")
}

// names lists what can stand in a block.
func (f block) names() string {
	names := slices.Sorted(maps.Keys(f.fields))
	for _, name := range slices.Sorted(maps.Keys(f.blocks)) {
		names = append(names, name+" {}")
	}
	return strings.Join(names, ", ")
}

func wordsOf(kind cty.Type) string {
	switch {
	case kind.IsListType():
		return "a list of texts"
	case kind.IsMapType():
		return "texts by name, as in { NAME = \"TEXT\" }"
	case kind == cty.Bool:
		return "true or false"
	}
	return "a text"
}

// plainOf returns a value for JSON. It returns false for a null in a list or a map.
func plainOf(v cty.Value) (any, bool) {
	switch {
	case v.Type() == cty.Bool:
		return v.True(), true
	case v.Type() == cty.String:
		return v.AsString(), true
	case v.Type().IsListType():
		list := []string{}
		for _, e := range v.AsValueSlice() {
			if e.IsNull() {
				return nil, false
			}
			list = append(list, e.AsString())
		}
		return list, true
	}
	texts := map[string]string{}
	for name, e := range v.AsValueMap() {
		if e.IsNull() {
			return nil, false
		}
		texts[name] = e.AsString()
	}
	return texts, true
}
