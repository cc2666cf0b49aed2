package jobspec

import (
	"errors"
	"reflect"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/gocty"

	"taskapi/allocrunner/jobspec/internal/hcleval"
	"taskapi/internal/ctyvalue"
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
		} else if !fromFile && v.Type() == cty.String && err != errDuration { //nolint:errorlint // setValue returns it
			hint = numberIn(attr.Name, v.AsString())
		}
		d.add(hcleval.ErrorAt(attr.Expr.Range(), "Unsuitable value", "Argument %q: %s.%s", attr.Name, err, hint))
		return false
	}
	return true
}

func setValue(v cty.Value, target reflect.Value) error {
	if target.Kind() == reflect.Pointer {
		target.Set(reflect.New(target.Type().Elem()))
		target = target.Elem()
	}
	if target.Type() == durationType {
		return setDuration(v, target)
	}
	if target.Kind() == reflect.Map && target.Type().Elem().Kind() == reflect.Interface {
		if ty := v.Type(); !ty.IsObjectType() && !ty.IsMapType() {
			return errors.New("a map of values is needed")
		}
		m, err := ctyvalue.Go(v)
		if err == nil {
			target.Set(reflect.ValueOf(m))
		}
		return err
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

var errDuration = errors.New(`a duration is needed, like "30s" or "1h15m"`)

// setDuration takes text like "1m30s", or a number of nanoseconds.
func setDuration(v cty.Value, target reflect.Value) error {
	switch v.Type() {
	case cty.String:
		if duration, err := time.ParseDuration(v.AsString()); err == nil {
			target.SetInt(int64(duration))
			return nil
		}
	case cty.Number:
		if gocty.FromCtyValue(v, target.Addr().Interface()) == nil {
			return nil
		}
	}
	return errDuration
}
