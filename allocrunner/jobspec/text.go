package jobspec

import (
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"
)

// checkVars refuses values that are not UTF-8: a job is saved as JSON, which can't hold them, so its allocation could not be resumed.
func checkVars(vars []string) error {
	for _, v := range vars {
		name, _, _ := strings.Cut(v, "=")
		if !utf8.ValidString(v) {
			return fmt.Errorf("%w: -var %q is not UTF-8 text; base64encode it, and have the task decode it", ErrInvalid, strings.ToValidUTF8(name, "?"))
		}
	}
	return nil
}

// checkUTF8 refuses a job with text that is not UTF-8, from any source.
func checkUTF8(job *api.Job) error {
	if place := notUTF8(reflect.ValueOf(job)); place != "" {
		return fmt.Errorf("%w: %s of the job is not UTF-8 text; base64encode it, and have the task decode it", ErrInvalid, strings.TrimPrefix(place, "."))
	}
	return nil
}

// notUTF8 returns the place of the first text in v that is not UTF-8, empty for none.
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
			if place := notUTF8(v.Index(i)); place != "" {
				return fmt.Sprintf("[%d]%s", i, place)
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			name := strings.ToValidUTF8(fmt.Sprint(key), "?")
			if notUTF8(key) != "" {
				return fmt.Sprintf("[%q] (its name) ", name)
			}
			if place := notUTF8(v.MapIndex(key)); place != "" {
				return fmt.Sprintf("[%q]%s", name, place)
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Type().Field(i).IsExported() {
				continue
			}
			if place := notUTF8(v.Field(i)); place != "" {
				return "." + v.Type().Field(i).Name + place
			}
		}
	}
	return ""
}
