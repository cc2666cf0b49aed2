// Package ptr reads the optional fields of Nomad's API types, which are pointers.
package ptr

// Deref returns what p points to, and the zero value for nil.
func Deref[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}
