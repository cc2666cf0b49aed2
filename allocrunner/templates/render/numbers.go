package render

import (
	"cmp"
	"fmt"
	"reflect"
)

// numbers are the types of results. Of two, the later wins.
var numbers = []reflect.Type{reflect.TypeFor[uint64](), reflect.TypeFor[int64](), reflect.TypeFor[float64]()}

// kindOf returns the index of the type of a number; -1 for none.
func kindOf(v any) int {
	switch r := reflect.ValueOf(v); {
	case r.CanUint() && r.Kind() != reflect.Uintptr:
		return 0
	case r.CanInt():
		return 1
	case r.CanFloat():
		return 2
	}
	return -1
}

// alike returns two numbers as the same type.
func alike(function string, a, b any) (x, y reflect.Value, err error) {
	for _, v := range []any{a, b} {
		if kindOf(v) < 0 {
			return x, y, fmt.Errorf("%s: unknown type %T", function, v)
		}
	}
	t := numbers[max(kindOf(a), kindOf(b))]
	return reflect.ValueOf(a).Convert(t), reflect.ValueOf(b).Convert(t), nil
}

func calculate[T uint64 | int64 | float64](function string, a, b T) T {
	switch function {
	case "add":
		return a + b
	case "subtract":
		return a - b
	case "multiply":
		return a * b
	case "divide":
		return a / b
	}
	return a - a/b*b // modulo, which takes integers
}

// arithmetic returns a template's function of that name. The second operand comes first: a template pipes the first.
func arithmetic(function string) func(b, a any) (any, error) {
	return func(b, a any) (any, error) {
		x, y, err := alike(function, a, b)
		switch {
		case err != nil:
			return nil, err
		case x.CanUint():
			return calculate(function, x.Uint(), y.Uint()), nil
		case x.CanInt():
			return calculate(function, x.Int(), y.Int()), nil
		case function == "modulo":
			return nil, fmt.Errorf("modulo: %v and %v are not both integers", a, b)
		}
		return calculate(function, x.Float(), y.Float()), nil
	}
}

// extreme returns the function that returns the lesser of two numbers, or the greater one, with 64 bits.
func extreme(function string, sign int) func(b, a any) (any, error) {
	return func(b, a any) (any, error) {
		x, y, err := alike(function, a, b)
		var order int
		switch {
		case err != nil:
			return nil, err
		case x.CanUint():
			order = cmp.Compare(x.Uint(), y.Uint())
		case x.CanInt():
			order = cmp.Compare(x.Int(), y.Int())
		default:
			order = cmp.Compare(x.Float(), y.Float())
		}
		if order*sign <= 0 {
			a = b
		}
		return reflect.ValueOf(a).Convert(numbers[kindOf(a)]).Interface(), nil
	}
}
