package jobspec

import (
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"
)

// notUTF8 reports whether v is text that is not UTF-8. A job is saved as JSON, which can't hold such a text, so its
// allocation could not be resumed.
func notUTF8(v reflect.Value) bool {
	return v.Kind() == reflect.String && !utf8.ValidString(v.String())
}

// eachMap calls f with every map within v.
func eachMap(v reflect.Value, f func(reflect.Value)) {
	find(v, func(part reflect.Value) bool {
		if part.Kind() == reflect.Map {
			f(part)
		}
		return false
	})
}

// find returns the place within v of the first part that is one; empty for none.
func find(v reflect.Value, is func(reflect.Value) bool) string {
	if is(v) {
		return " "
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return find(v.Elem(), is)
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if place := find(v.Index(i), is); place != "" {
				return fmt.Sprintf("[%d]%s", i, place)
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			place := find(v.MapIndex(key), is)
			if find(key, is) != "" {
				place = " (its name) "
			}
			if place != "" {
				return fmt.Sprintf("[%q]%s", strings.ToValidUTF8(key.String(), "?"), place)
			}
		}
	case reflect.Struct:
		for field, value := range v.Fields() {
			if !field.IsExported() {
				continue
			}
			if place := find(value, is); place != "" {
				return "." + field.Name + place
			}
		}
	}
	return ""
}
