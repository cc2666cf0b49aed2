package hcleval

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	ctyyaml "github.com/zclconf/go-cty-yaml"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
)

const (
	// maxResult bounds what one call may make, in bytes, where the result can be far larger than the arguments.
	maxResult = 16 << 20

	// maxProduct bounds the elements of a setproduct.
	maxProduct = 100_000

	// maxBcryptCost keeps one call below some seconds; each step doubles it.
	maxBcryptCost = 14
)

// errHidden replaces the error of a call whose arguments come from a file: many errors quote their arguments.
var errHidden = errors.New("it fails with what was read from a file, which this error does not show")

// guarded calls f only if check, which may be nil, allows its arguments. Its errors never quote text that was read from
// a file.
func guarded(f function.Function, check func(args []cty.Value) error) function.Function {
	params, rest := f.Params(), f.VarParam()
	for i := range params {
		params[i].AllowMarked = true
	}
	if rest != nil {
		rest.AllowMarked = true
	}
	visible := func(args []cty.Value, err error) error {
		if err != nil && slices.ContainsFunc(args, cty.Value.ContainsMarked) {
			return errHidden
		}
		return err
	}
	return function.New(&function.Spec{
		Params:   params,
		VarParam: rest,
		Type: func(args []cty.Value) (cty.Type, error) { // which decodes a text already
			if check != nil {
				plain := make([]cty.Value, len(args))
				for i, arg := range args {
					plain[i], _ = arg.UnmarkDeep()
				}
				if err := check(plain); err != nil {
					return cty.DynamicPseudoType, err
				}
			}
			ty, err := f.ReturnTypeForValues(args)
			return ty, visible(args, err)
		},
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			v, err := f.Call(args)
			return v, visible(args, err)
		},
	})
}

func text(args []cty.Value, i int) string {
	if i >= len(args) || args[i].IsNull() || !args[i].IsKnown() || args[i].Type() != cty.String {
		return ""
	}
	return args[i].AsString()
}

func count(v cty.Value) int {
	if v.IsNull() || !v.IsKnown() || !v.CanIterateElements() {
		return 1
	}
	return max(v.LengthInt(), 1)
}

func within(n int) error {
	if n < 0 || n > maxResult {
		return fmt.Errorf("the result would be larger than %d MiB", maxResult>>20)
	}
	return nil
}

var wideVerb = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`%[^%a-zA-Z]*[0-9]{4}`) })

func formatGuard(args []cty.Value) error {
	spec := text(args, 0)
	if wideVerb().MatchString(spec) {
		return fmt.Errorf("widths and precisions are limited to three digits")
	}
	longest := 1
	for _, arg := range args[1:] {
		longest = max(longest, count(arg))
	}
	return within(len(spec) * longest)
}

func indentGuard(args []cty.Value) error {
	f := args[0].AsBigFloat()
	spaces, _ := f.Int64()
	if spaces < 0 || spaces > 1000 {
		return fmt.Errorf("the number of spaces must be 0 to 1000")
	}
	return within(int(spaces) * (1 + strings.Count(text(args, 1), "\n")))
}

func joinGuard(args []cty.Value) error {
	n := 0
	for _, arg := range args[1:] {
		n += count(arg)
	}
	return within(n * len(text(args, 0)))
}

// replaceGuard counts a replacement before each character and after the last; each "$" may repeat all of the string
// once.
func replaceGuard(args []cty.Value) error {
	str, repl := text(args, 0), text(args, 2)
	return within((len(str)+1)*len(repl) + len(str)*strings.Count(repl, "$"))
}

func setProductGuard(args []cty.Value) error {
	n := 1
	for _, arg := range args {
		if n *= count(arg); n > maxProduct {
			return fmt.Errorf("the product would have more than %d elements", maxProduct)
		}
	}
	return nil
}

func bcryptGuard(args []cty.Value) error {
	for _, arg := range args[1:] {
		if cost, _ := arg.AsBigFloat().Int64(); cost > maxBcryptCost {
			return fmt.Errorf("the cost is limited to %d", maxBcryptCost)
		}
	}
	return nil
}

// The guards of decoders count the values in a text, and how deep they nest, before they exist. Decoders recurse
// without a limit, or with one of 10,000.

func (b *budget) yamlGuard(args []cty.Value) error {
	ty, err := ctyyaml.Standard.ImpliedType([]byte(text(args, 0))) // its aliases share what they stand for
	if err != nil {
		return nil //nolint:nilerr // the decoder reports it
	}
	left := b.values()
	return countValues(ty, &left, 0)
}

// countValues takes each value of a decoded type off left.
func countValues(ty cty.Type, left *int64, depth int) error {
	if *left--; *left < 0 {
		return errTooManyValues
	}
	if depth > maxDepth {
		return errTooDeep
	}
	switch {
	case ty.IsTupleType():
		for _, element := range ty.TupleElementTypes() {
			if err := countValues(element, left, depth+1); err != nil {
				return err
			}
		}
	case ty.IsObjectType():
		for _, attribute := range ty.AttributeTypes() {
			if err := countValues(attribute, left, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *budget) jsonGuard(args []cty.Value) error {
	left, depth, inString := b.values(), 0, false
	src := text(args, 0)
	for i := 0; i < len(src); i++ {
		switch c := src[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '[', c == '{':
			depth++
			left--
		case c == ']', c == '}':
			depth--
		case c == ',':
			left--
		}
		if depth > maxDepth {
			return errTooDeep
		}
		if left < 0 {
			return errTooManyValues
		}
	}
	return nil
}

func (b *budget) csvGuard(args []cty.Value) error {
	if src := text(args, 0); int64(strings.Count(src, ",")+strings.Count(src, "\n")) > b.values() {
		return errTooManyValues
	}
	return nil
}

var (
	errTooManyValues = fmt.Errorf("with the text's values this file's would come to more than %d MiB", allowance>>20)
	errTooDeep       = fmt.Errorf("values are nested more than %d deep in the text", maxDepth)
)
