package jobdiff

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"taskapi/internal/slice"
)

// pairs matches the elements of two lists or two maps: by name, and by position where there are several of a name, or
// no names. The old version's come first, in its order. Nil elements are none.
func pairs(old, new reflect.Value) []*pair {
	var all []*pair
	byName := map[string][]*pair{}
	each := func(v reflect.Value, set func(*pair, reflect.Value)) {
		counts := map[string]int{}
		take := func(name string, element reflect.Value) {
			if element.Kind() == reflect.Pointer && element.IsNil() {
				return
			}
			counts[name]++
			if counts[name] > len(byName[name]) {
				p := &pair{name: name, number: counts[name]}
				all, byName[name] = append(all, p), append(byName[name], p)
			}
			set(byName[name][counts[name]-1], element)
		}
		if v.Kind() == reflect.Map {
			for _, key := range sortedKeys(v) {
				take(key, v.MapIndex(reflect.ValueOf(key).Convert(v.Type().Key())))
			}
			return
		}
		for i := range v.Len() {
			take(elementName(v.Index(i)), v.Index(i))
		}
	}
	each(old, func(p *pair, element reflect.Value) { p.old = element })
	each(new, func(p *pair, element reflect.Value) { p.new = element })
	for _, p := range all {
		p.alone = len(byName[p.name]) == 1
	}
	return all
}

// elementName returns the name or the label of a block, empty when it has neither.
func elementName(v reflect.Value) string {
	v = reflect.Indirect(v)
	if v.Kind() != reflect.Struct {
		return ""
	}
	for _, field := range []string{"Name", "Label"} {
		if name := v.FieldByName(field); name.IsValid() {
			if name = reflect.Indirect(name); name.Kind() == reflect.String {
				return name.String()
			}
		}
	}
	return ""
}

func sortedKeys(m reflect.Value) []string {
	return slices.Sorted(slices.Values(slice.Map(m.MapKeys(), reflect.Value.String)))
}

// same reports that two values of one type say the same. An empty list or map is the same as none; named blocks may be
// in any order; and what has no type (a driver's config) is compared as the JSON that it may have been read from.
func same(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Interface:
		if reflect.DeepEqual(a.Interface(), b.Interface()) {
			return true
		}
		// One may come from HCL and the other from JSON: 1 and 1.0, []string and []any.
		x, errX := json.Marshal(a.Interface())
		y, errY := json.Marshal(b.Interface())
		return errX == nil && errY == nil && string(x) == string(y)
	case reflect.Pointer:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil()
		}
		return same(a.Elem(), b.Elem())
	case reflect.Struct:
		for field, value := range a.Fields() {
			if ofJob(field) && !same(value, b.FieldByIndex(field.Index)) {
				return false
			}
		}
		return true
	case reflect.Map:
		return sameMap(a, b)
	case reflect.Slice:
		if blockOf(a.Type()) != nil {
			for _, p := range pairs(a, b) {
				if p.whole("") != "" || !same(p.old, p.new) {
					return false
				}
			}
			return true
		}
		return a.Len() == b.Len() && (a.Len() == 0 || reflect.DeepEqual(a.Interface(), b.Interface()))
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

func sameMap(a, b reflect.Value) bool {
	if a.Len() != b.Len() {
		return false
	}
	for _, key := range a.MapKeys() {
		if other := b.MapIndex(key); !other.IsValid() || !same(a.MapIndex(key), other) {
			return false
		}
	}
	return true
}

// ofJob reports that a field is one of the job's, and no note of a parser's, which is not in the job's JSON.
func ofJob(field reflect.StructField) bool { return field.IsExported() && field.Tag.Get("json") != "-" }

func blockName(field reflect.StructField) string {
	if name, ok := unnamed[field.Name]; ok {
		return name
	}
	if name, _, _ := strings.Cut(field.Tag.Get("hcl"), ","); name != "" {
		return name
	}
	return strings.ToLower(field.Name)
}

// unnamed are fields that the job specification has under another field's name, or as a label.
var unnamed = map[string]string{"ReservedPorts": "port", "Identity": "identity", "Name": "name", "Label": "label"}
