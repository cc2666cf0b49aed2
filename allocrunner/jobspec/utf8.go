package jobspec

import (
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"
)

// notUTF8 returns the path of the first text in v that is not UTF-8; empty for none. A job is saved as JSON, which
// can't hold such a text, so its allocation could not be resumed.
func notUTF8(v reflect.Value) string {
	switch v.Kind() {
	case reflect.String:
		if !utf8.ValidString(v.String()) {
			return " "
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return notUTF8(v.Elem())
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if path := notUTF8(v.Index(i)); path != "" {
				return fmt.Sprintf("[%d]%s", i, path)
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			name := strings.ToValidUTF8(fmt.Sprint(key), "?")
			if notUTF8(key) != "" {
				return fmt.Sprintf("[%q] (its name) ", name)
			}
			if path := notUTF8(v.MapIndex(key)); path != "" {
				return fmt.Sprintf("[%q]%s", name, path)
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Type().Field(i).IsExported() {
				continue
			}
			if path := notUTF8(v.Field(i)); path != "" {
				return "." + v.Type().Field(i).Name + path
			}
		}
	}
	return ""
}
