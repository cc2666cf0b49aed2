package render

import (
	"cmp"
	"fmt"
	"reflect"
)

type number interface{ int64 | uint64 | float64 }

func addOf[T number](a, b T) T      { return a + b }
func subtractOf[T number](a, b T) T { return a - b }
func multiplyOf[T number](a, b T) T { return a * b }
func divideOf[T number](a, b T) T   { return a / b }

// operation is a function of two numbers. A nil function is for a kind that it does not take.
type operation struct {
	name   string
	ints   func(a, b int64) int64
	uints  func(a, b uint64) uint64
	floats func(a, b float64) float64
}

// arithmetic returns a template's function for an operation. The second operand comes first, so that the first can be
// piped. Of two kinds, a float wins, and then an int.
func arithmetic(o operation) func(b, a any) (any, error) {
	return func(b, a any) (any, error) {
		for _, v := range []any{a, b} {
			if k := kindOf(v); k == noNumber || k == aFloat && o.floats == nil {
				return nil, fmt.Errorf("%s: unknown type %T", o.name, v)
			}
		}
		switch max(kindOf(a), kindOf(b)) {
		case aUint:
			return o.uints(reflect.ValueOf(a).Uint(), reflect.ValueOf(b).Uint()), nil
		case anInt:
			return o.ints(toInt(a), toInt(b)), nil
		}
		return o.floats(toFloat(a), toFloat(b)), nil
	}
}

// extreme returns the function that returns the lesser of two numbers, or the greater one.
func extreme(name string, sign int) func(b, a any) (any, error) {
	return func(b, a any) (any, error) {
		for _, v := range []any{a, b} {
			if kindOf(v) == noNumber {
				return nil, fmt.Errorf("%s: unknown type %T", name, v)
			}
		}
		var order int
		switch max(kindOf(a), kindOf(b)) {
		case aUint:
			order = cmp.Compare(reflect.ValueOf(a).Uint(), reflect.ValueOf(b).Uint())
		case anInt:
			order = cmp.Compare(toInt(a), toInt(b))
		default:
			order = cmp.Compare(toFloat(a), toFloat(b))
		}
		if order*sign > 0 {
			return widest(a), nil
		}
		return widest(b), nil
	}
}

// kind is a kind of number; of two, the greater is the kind of the result.
type kind int

const (
	noNumber kind = iota
	aUint
	anInt
	aFloat
)

func kindOf(v any) kind {
	switch r := reflect.ValueOf(v); {
	case r.CanInt():
		return anInt
	case r.CanUint() && r.Kind() != reflect.Uintptr:
		return aUint
	case r.CanFloat():
		return aFloat
	}
	return noNumber
}

func toInt(v any) int64 {
	if kindOf(v) == aUint {
		return int64(reflect.ValueOf(v).Uint()) //nolint:gosec // as consul-template does
	}
	return reflect.ValueOf(v).Int()
}

func toFloat(v any) float64 {
	if kindOf(v) == aFloat {
		return reflect.ValueOf(v).Float()
	}
	if kindOf(v) == aUint {
		return float64(reflect.ValueOf(v).Uint())
	}
	return float64(reflect.ValueOf(v).Int())
}

// widest returns a number with 64 bits.
func widest(v any) any {
	switch kindOf(v) {
	case anInt:
		return toInt(v)
	case aUint:
		return reflect.ValueOf(v).Uint()
	}
	return toFloat(v)
}
