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

func eachMap(v reflect.Value, f func(reflect.Value)) {
	find(v, func(part reflect.Value) bool {
		if part.Kind() == reflect.Map {
			f(part)
		}
		return false
	})
}

// find returns the path within v of the first part that is one; empty for none.
func find(v reflect.Value, is func(reflect.Value) bool) string {
	if is(v) {
		return " "
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return find(v.Elem(), is)
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if path := find(v.Index(i), is); path != "" {
				return fmt.Sprintf("[%d]%s", i, path)
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			path := find(v.MapIndex(key), is)
			if find(key, is) != "" {
				path = " (its name) "
			}
			if path != "" {
				return fmt.Sprintf("[%q]%s", strings.ToValidUTF8(key.String(), "?"), path)
			}
		}
	case reflect.Struct:
		for field, value := range v.Fields() {
			if !field.IsExported() {
				continue
			}
			if path := find(value, is); path != "" {
				return "." + field.Name + path
			}
		}
	}
	return ""
}
