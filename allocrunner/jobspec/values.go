package jobspec

import (
	"math"
	"math/big"
	"reflect"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/gocty"

	"taskapi/allocrunner/jobspec/internal/hcleval"
)

// attribute evaluates an argument into a field, and reports whether there was a value. An argument that is null counts
// as left out.
func (d *decoder) attribute(attr *hcl.Attribute, ctx *hcl.EvalContext, target reflect.Value) bool {
	v, fromFile, diags := d.eval.Plain(attr.Expr, ctx)
	d.add(diags...)
	if diags.HasErrors() || v.IsNull() {
		return false
	}
	if err := setValue(v, target); err != nil {
		hint := ""
		if !fromFile && v.Type() == cty.String && strings.Contains(v.AsString(), "${") { // the most common cause
			hint = " The reference " + v.AsString() +
				" gets its value only when the task runs, and this is needed before."
		}
		d.add(hcleval.ErrorAt(attr.Expr.Range(), "Unsuitable value", "Argument %q: %s.%s", attr.Name, err, hint))
		return false
	}
	return true
}

func setValue(v cty.Value, target reflect.Value) error {
	if target.Kind() == reflect.Pointer {
		value := reflect.New(target.Type().Elem())
		if err := setValue(v, value.Elem()); err != nil {
			return err
		}
		target.Set(value)
		return nil
	}
	if target.Type() == durationType {
		return setDuration(v, target)
	}
	if target.Kind() == reflect.Map && target.Type().Elem().Kind() == reflect.Interface {
		return setFreeMap(v, target)
	}
	want, err := gocty.ImpliedType(reflect.Zero(target.Type()).Interface())
	if err != nil {
		return err
	}
	if v, err = convert.Convert(v, want); err != nil {
		return err
	}
	return gocty.FromCtyValue(v, target.Addr().Interface())
}

type valueError string

func (e valueError) Error() string { return string(e) }

// setDuration takes text like "1m30s", or a number of nanoseconds.
func setDuration(v cty.Value, target reflect.Value) error {
	const want = valueError(`a duration is needed, like "30s" or "1h15m"`)
	switch v.Type() {
	case cty.String:
		duration, err := time.ParseDuration(v.AsString())
		if err != nil {
			return want
		}
		target.SetInt(int64(duration))
		return nil
	case cty.Number:
		var ns int64
		if err := gocty.FromCtyValue(v, &ns); err != nil {
			return want
		}
		target.SetInt(ns)
		return nil
	}
	return want
}

func setFreeMap(v cty.Value, target reflect.Value) error {
	if ty := v.Type(); !ty.IsObjectType() && !ty.IsMapType() {
		return valueError("a map of values is needed")
	}
	m, err := freeValue(v)
	if err != nil {
		return err
	}
	target.Set(reflect.ValueOf(m))
	return nil
}

// freeValue returns a value for a map[string]any, in the types that a JSON job has after decoding: nil, bool, string,
// int (a float64 when it is not whole or too large), []any, map[string]any.
func freeValue(v cty.Value) (any, error) {
	switch ty := v.Type(); {
	case v.IsNull():
		return nil, nil
	case ty == cty.String:
		return v.AsString(), nil
	case ty == cty.Bool:
		return v.True(), nil
	case ty == cty.Number:
		return freeNumber(v.AsBigFloat())
	case ty.IsObjectType(), ty.IsMapType():
		m := make(map[string]any, v.LengthInt())
		for key, element := range v.AsValueMap() {
			value, err := freeValue(element)
			if err != nil {
				return nil, err
			}
			m[key] = value
		}
		return m, nil
	case ty.IsTupleType(), ty.IsCollectionType():
		list := make([]any, 0, v.LengthInt())
		for _, element := range v.AsValueSlice() {
			value, err := freeValue(element)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		return list, nil
	}
	return nil, valueError("a value of this kind can't be used here")
}

func freeNumber(f *big.Float) (any, error) {
	if n, accuracy := f.Int64(); accuracy == big.Exact {
		return int(n), nil
	}
	n, _ := f.Float64()
	if math.IsInf(n, 0) {
		return nil, valueError("the number is too large")
	}
	return n, nil
}
