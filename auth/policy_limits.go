package auth

import (
	"cmp"
	"maps"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"taskapi/auth/limitset"
)

// limitSetting is one limit that a policy sets.
type limitSetting struct{ name, value string }

// Limits returns the limits with what the policy sets of them.
func (p *Policy) Limits(set limitset.Set) limitset.Set {
	if p != nil {
		for _, l := range p.limits {
			_ = set.Put(l.name, l.value) // which ParsePolicy has tried
		}
	}
	return set
}

// parseLimits parses a limits block: NAME = VALUE, with a string or a number.
func (p *Policy) parseLimits(block *hcl.Block) hcl.Diagnostics {
	attributes, diags := block.Body.JustAttributes()
	if p.limits != nil {
		diags = append(diags, mistake(block.DefRange, "a second limits block; write one for all"))
	}
	if len(attributes) == 0 && !diags.HasErrors() {
		diags = append(diags, mistake(block.DefRange, "the block says nothing; write connections = 64, say"))
	}
	inFile := slices.SortedFunc(maps.Values(attributes), func(a, b *hcl.Attribute) int { return cmp.Compare(a.Range.Start.Byte, b.Range.Start.Byte) })
	for _, attr := range inFile {
		value, more := attr.Expr.Value(nil)
		diags = append(diags, more...)
		if more.HasErrors() {
			continue
		}
		word, err := convert.Convert(value, cty.String)
		if err != nil || word.IsNull() || !word.IsKnown() {
			diags = append(diags, mistake(attr.Expr.Range(), `neither a number nor a string; write 64 or "10/s:20"`))
			continue
		}
		set := limitset.Default()
		if err := set.Put(attr.Name, word.AsString()); err != nil {
			diags = append(diags, mistake(attr.Range, "%v", err))
		}
		p.limits = append(p.limits, limitSetting{attr.Name, word.AsString()})
	}
	return diags
}
