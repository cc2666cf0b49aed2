// Package slice has what package slices of the standard library lacks.
package slice

// Map returns the results of a function for the elements, in their order; nil without elements.
func Map[T, R any](all []T, of func(T) R) (results []R) {
	for _, one := range all {
		results = append(results, of(one))
	}
	return results
}
