// Package ptr reads the optional fields of Nomad's API types, which are pointers.
package ptr

import "cmp"

// Deref returns what p points to, and the zero value for nil.
func Deref[T any](p *T) T { return *cmp.Or(p, new(T)) }
