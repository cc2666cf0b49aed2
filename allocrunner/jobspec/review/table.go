package review

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"taskapi/allocrunner/internal/services"
)

// row is a feature of a part of the job that is not honoured as it is written.
type row[T any] struct {
	feature  string // its last word is the name of an argument or a block in the job specification
	severity Severity
	message  string
	used     func(*T) bool // reports whether the part uses the feature; nil: the argument or block is set
}

// limit is a rule for the value of an argument. A job that breaks it is refused.
type limit[T any] struct {
	feature string       // as a row's
	message string       // what the value must be
	value   func(*T) any // for messages; nil: the argument's value
	holds   func(*T) bool
}

// fieldOf returns the field for the argument or block that a feature names; invalid if the SDK has none.
func fieldOf[T any](part *T, feature string) reflect.Value {
	name := feature[strings.LastIndexByte(feature, ' ')+1:]
	for field, value := range reflect.ValueOf(part).Elem().Fields() {
		if tag, _, _ := strings.Cut(field.Tag.Get("hcl"), ","); tag == name {
			return value
		}
	}
	return reflect.Value{}
}

// valueOf returns the value of the argument that a feature names. It returns false when the argument is left out.
func valueOf[T any](part *T, feature string) (reflect.Value, bool) {
	v := reflect.Indirect(fieldOf(part, feature))
	return v, v.IsValid()
}

// uses reports whether a part of the job uses the feature.
func (r row[T]) uses(part *T) bool {
	if r.used != nil {
		return r.used(part)
	}
	switch v := fieldOf(part, r.feature); v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() > 0
	default:
		return v.IsValid() && !v.IsZero()
	}
}

// among returns the limit for a text that is one of several. An empty one stands for a text that is left out.
func among[T any](feature string, values ...string) limit[T] {
	return limit[T]{feature, services.OneOf(values...), nil, func(part *T) bool {
		text, ok := valueOf(part, feature)
		return !ok || slices.Contains(values, text.String())
	}}
}

// atLeast returns the limit for a number that must not be smaller.
func atLeast[T any, N int | time.Duration](feature string, least N) limit[T] {
	return limit[T]{feature, fmt.Sprintf("it must be at least %v", least), nil, func(part *T) bool {
		number, ok := valueOf(part, feature)
		return !ok || number.Int() >= int64(least)
	}}
}

func apply[T any](r *reviewer, rows []row[T], part *T) {
	for _, row := range rows {
		if row.uses(part) {
			r.add(row.severity, row.feature, "%s", row.message)
		}
	}
}

// restrict adds a finding for each limit that the job part exceeds. A part that is not there exceeds none.
func restrict[T any](r *reviewer, limits []limit[T], part *T) {
	if part == nil {
		return
	}
	for _, l := range limits {
		var is any
		if l.value != nil {
			is = l.value(part)
		} else if v, ok := valueOf(part, l.feature); ok {
			is = v.Interface()
		}
		took, isTime := is.(time.Duration)
		if isTime && took > 0 && took < time.Millisecond {
			r.add(Warning, l.feature, "it is %v, as a number without a unit is one of nanoseconds; write \"%ds\" for seconds",
				took, took)
		}
		if l.holds(part) {
			continue
		}
		switch text, isText := is.(string); {
		case is == nil, isText && text == "":
			r.refuse(l.feature, "it is left out; %s", l.message)
		case isTime && took == 0:
			r.refuse(l.feature, "it is left out or 0; %s, such as 10s", l.message)
		case isText:
			r.refuse(l.feature, "it is %q; %s", text, l.message)
		default:
			r.refuse(l.feature, "it is %v; %s", is, l.message)
		}
	}
}
