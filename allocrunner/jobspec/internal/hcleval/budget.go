package hcleval

import (
	"fmt"
	"math/big"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

const (
	// allowance limits the values computed for one job file, in bytes: 8 times the largest job file. Without it, nested
	// "for"s and locals that double one another could fill the memory from a few lines.
	allowance = 32 << 20

	// valueCost is charged for each element besides its text. It is about the size of a cty.Value and its place in a
	// list.
	valueCost = 64

	// maxExponent bounds numbers, in bits: text of 1e999999999 would have a billion digits.
	maxExponent = 4096
)

// budget counts down what a job file's expressions may still compute.
type budget struct{ left int64 }

// charge takes the size of v off the allowance. Once it has refused a value, it refuses all.
func (b *budget) charge(v cty.Value, at hcl.Range) *hcl.Diagnostic {
	if b.left < 0 {
		return tooLarge(at)
	}
	if err := b.spend(v); err != nil {
		return ErrorAt(at, "Number out of range", "%v", err)
	}
	if b.left < 0 {
		return tooLarge(at)
	}
	return nil
}

func tooLarge(at hcl.Range) *hcl.Diagnostic {
	return ErrorAt(at, "Too large", "The values that this file computes come to more than %d MiB.", allowance>>20)
}

// values returns how many more values without text there may be.
func (b *budget) values() int64 { return b.left / valueCost }

func (b *budget) spend(v cty.Value) error {
	b.left -= valueCost
	v, _ = v.Unmark()
	if b.left < 0 || v.IsNull() || !v.IsKnown() {
		return nil
	}
	switch ty := v.Type(); {
	case ty == cty.String:
		b.left -= int64(len(v.AsString()))
	case ty == cty.Number:
		return checkNumber(v.AsBigFloat())
	case ty.IsObjectType(), ty.IsTupleType(), ty.IsCollectionType():
		for it := v.ElementIterator(); it.Next() && b.left >= 0; {
			key, element := it.Element()
			if key.Type() == cty.String && key.IsKnown() && !key.IsNull() && !ty.IsSetType() {
				b.left -= int64(len(key.AsString()))
			}
			if err := b.spend(element); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkNumber(f *big.Float) error {
	if f.IsInf() {
		return fmt.Errorf("an infinite number can't be used here")
	}
	if exp := f.MantExp(nil); exp > maxExponent || exp < -maxExponent {
		return fmt.Errorf("numbers are limited to %d bits before and after the point", maxExponent)
	}
	return nil
}

// charged is an expression whose values are all charged. The parts of templates, the arguments of functions and the
// results of "for" are: there small text becomes a large value.
type charged struct {
	hclsyntax.Expression
	budget *budget
}

// Value evaluates the expression, unless the allowance is spent.
func (c *charged) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	if c.budget.left < 0 {
		return cty.DynamicVal, hcl.Diagnostics{tooLarge(c.Range())}
	}
	v, diags := c.Expression.Value(ctx)
	if diags.HasErrors() {
		return v, diags
	}
	if diag := c.budget.charge(v, c.Range()); diag != nil {
		return cty.DynamicVal, append(diags, diag)
	}
	return v, diags
}

// UnwrapExpression lets HCL see the expression itself where it asks for keywords or static lists.
func (c *charged) UnwrapExpression() hcl.Expression { return c.Expression }
