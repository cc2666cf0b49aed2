package render

import (
	"fmt"
	"maps"
	"slices"
)

// scratch keeps values for one template while it is executed.
type scratch struct{ values map[string]any }

// scratchFunc returns the function that returns a template's one scratch.
func scratchFunc() func() *scratch {
	s := &scratch{map[string]any{}}
	return func() *scratch { return s }
}

func (s *scratch) Key(k string) bool { _, ok := s.values[k]; return ok }

func (s *scratch) Get(k string) any { return s.values[k] }

func (s *scratch) Set(k string, v any) string {
	s.values[k] = v
	return ""
}

// SetX sets a value that is not set yet.
func (s *scratch) SetX(k string, v any) string {
	if !s.Key(k) {
		s.values[k] = v
	}
	return ""
}

// MapSet sets a value in the map of that name.
func (s *scratch) MapSet(k, key string, v any) (string, error) { return s.mapSet(k, key, v, true) }

// MapSetX sets a value in the map of that name, unless its key is set already.
func (s *scratch) MapSetX(k, key string, v any) (string, error) { return s.mapSet(k, key, v, false) }

func (s *scratch) mapSet(k, key string, v any, over bool) (string, error) {
	if !s.Key(k) {
		s.values[k] = map[string]any{}
	}
	m, ok := s.values[k].(map[string]any)
	if !ok {
		return "", fmt.Errorf("%q is not a map", k)
	}
	if _, has := m[key]; over || !has {
		m[key] = v
	}
	return "", nil
}

// MapValues returns the values of the map of that name, sorted by their keys.
func (s *scratch) MapValues(k string) []any {
	m, ok := s.values[k].(map[string]any)
	if !ok {
		return nil
	}
	values := make([]any, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		values = append(values, m[key])
	}
	return values
}
