package apierror

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// WrongJSON says, in the words of JSON and not of Go, which value a field has and which it must have. A document that
// is no object must be like the example.
func WrongJSON(wrong *json.UnmarshalTypeError, example string) string {
	if wrong.Field == "" {
		return fmt.Sprintf("%s is no object: give %s", article(wrong.Value), example)
	}
	return fmt.Sprintf("%q is %s: give %s", wrong.Field, article(wrong.Value), article(wordOf(wrong.Type)))
}

// wordOf returns the JSON word for the value that a Go type is decoded from.
func wordOf(t reflect.Type) string {
	switch kind := t.Kind(); {
	case kind == reflect.Bool:
		return "boolean"
	case reflect.Int <= kind && kind <= reflect.Uintptr:
		return "whole number"
	case kind == reflect.Float32, kind == reflect.Float64:
		return "number"
	case kind == reflect.String:
		return "string"
	case kind == reflect.Slice:
		return "array"
	}
	return "object"
}

// article returns a word with its article.
func article(word string) string {
	if strings.ContainsAny(word[:1], "aeiou") {
		return "an " + word
	}
	return "a " + word
}
