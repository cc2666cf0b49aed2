// Package ctyvalue turns the values of HCL expressions into plain values of Go.
package ctyvalue

import (
	"errors"
	"math"

	"github.com/zclconf/go-cty/cty"
)

// Go returns a known value in the types that a JSON document has after decoding: nil, bool, string, int (a float64 when
// it is not whole or too large), []any, map[string]any.
func Go(v cty.Value) (any, error) {
	switch ty := v.Type(); {
	case v.IsNull():
		return nil, nil
	case ty == cty.String:
		return v.AsString(), nil
	case ty == cty.Bool:
		return v.True(), nil
	case ty == cty.Number:
		if n, accuracy := v.AsBigFloat().Int64(); accuracy == 0 {
			return int(n), nil
		}
		n, _ := v.AsBigFloat().Float64()
		if math.IsInf(n, 0) {
			return nil, errors.New("the number is too large")
		}
		return n, nil
	case ty.IsObjectType(), ty.IsMapType():
		m := make(map[string]any, v.LengthInt())
		for key, element := range v.Elements() {
			value, err := Go(element)
			if err != nil {
				return nil, err
			}
			m[key.AsString()] = value
		}
		return m, nil
	case ty.IsTupleType(), ty.IsCollectionType():
		list := make([]any, 0, v.LengthInt())
		for _, element := range v.Elements() {
			value, err := Go(element)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		return list, nil
	}
	return nil, errors.New("a value of this kind can't be used here")
}
