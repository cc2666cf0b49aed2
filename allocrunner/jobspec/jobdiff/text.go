package jobdiff

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"taskapi/allocrunner/interfaces"
)

// difference describes in words how two values differ. Numbers, times and switches are always shown, texts only if the
// rule says that they are no secrets, and of maps the keys alone.
func difference(row rule, a, b reflect.Value) string {
	if a.Kind() == reflect.Map {
		return keyDifference(a, b)
	}
	was, wasSet := shown(row, a)
	is, isSet := shown(row, b)
	switch {
	case !wasSet && is != "":
		return "is set to " + is
	case !wasSet:
		return "is added"
	case !isSet && was != "":
		return "is removed; it was " + was
	case !isSet:
		return "is removed"
	case was == "" || is == "" || was == is:
		return "changes"
	}
	return "changes from " + was + " to " + is
}

// shown returns a value as it may be shown, empty when it may not, and whether there is a value at all.
func shown(row rule, v reflect.Value) (text string, set bool) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return "", false
		}
		text, _ = shown(row, v.Elem())
		return text, true
	}
	switch {
	case v.Kind() == reflect.String && row.secret:
		return "", v.Len() > 0
	case v.Kind() == reflect.String:
		return quote(v.String()), true
	case v.Kind() == reflect.Slice:
		return shownList(row, v)
	case v.Kind() == reflect.Bool, v.CanInt(), v.CanUint(): // durations among them
		return fmt.Sprint(v.Interface()), true
	}
	return "", !v.IsZero()
}

// shownList returns a list of texts; any other is not shown.
func shownList(row rule, v reflect.Value) (string, bool) {
	if row.secret || v.Type().Elem().Kind() != reflect.String || v.Len() > longestList {
		return "", v.Len() > 0
	}
	words := make([]string, v.Len())
	for i := range words {
		words[i] = quote(v.Index(i).String())
	}
	return "[" + strings.Join(words, ", ") + "]", true
}

// longestList and longestName bound what one line says.
const (
	longestList = 8
	longestName = 64
)

// keyDifference returns which keys of two maps differ, sorted, and how.
func keyDifference(a, b reflect.Value) string {
	var parts []string
	more := 0
	names := append(sortedKeys(a), sortedKeys(b)...)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		key := reflect.ValueOf(name)
		p := pair{name: name, old: a.MapIndex(key), new: b.MapIndex(key)}
		switch {
		case p.whole("") == "" && same(p.old, p.new):
		case len(parts) == longestList:
			more++
		default:
			parts = append(parts, quote(name)+" "+p.whole("changes"))
		}
	}
	text := strings.Join(parts, ", ")
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// quote quotes a text from a job, cut to a bearable length.
func quote(text string) string {
	if len(text) > longestName {
		return interfaces.Quote(text[:longestName]) + "..."
	}
	return interfaces.Quote(text)
}
