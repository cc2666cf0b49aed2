package review

import (
	"cmp"
	"fmt"
	"slices"

	"taskapi/allocrunner/internal/services"
)

// row is one use of a part of the job: what it is called, what it means here, and how to tell that it is made.
type row[T any] struct {
	feature  string
	severity Severity
	message  string
	used     func(*T) bool
}

// limit is what the value of an attribute must be. A job with another one is refused.
type limit[T any] struct {
	feature string
	message string // what it must be
	value   func(*T) any
	holds   func(*T) bool
}

// among returns the limit of text that is one of several. An empty one stands for text that is left out.
func among[T any](feature string, get func(*T) string, values ...string) limit[T] {
	return limit[T]{
		feature, services.OneOf(values...), func(t *T) any { return get(t) }, func(t *T) bool { return slices.Contains(values, get(t)) },
	}
}

// atLeast returns the limit of a number that must not be smaller.
func atLeast[T any, N cmp.Ordered](feature string, least N, get func(*T) N) limit[T] {
	words := fmt.Sprintf("it must be at least %v", least)
	return limit[T]{feature, words, func(t *T) any { return get(t) }, func(t *T) bool { return get(t) >= least }}
}

// apply adds a finding for each row of a table that the job part uses.
func apply[T any](r *reviewer, rows []row[T], part *T) {
	for _, row := range rows {
		if row.used(part) {
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
		if l.holds(part) {
			continue
		}
		switch v := l.value(part).(type) {
		case string:
			if v == "" {
				r.refuse(l.feature, "it is left out; %s", l.message)
			} else {
				r.refuse(l.feature, "it is %q; %s", v, l.message)
			}
		default:
			r.refuse(l.feature, "it is %v; %s", v, l.message)
		}
	}
}
