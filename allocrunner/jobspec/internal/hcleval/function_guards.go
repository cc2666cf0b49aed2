package hcleval

import (
	"fmt"
	"regexp"
	"strings"

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

	// maxYAMLAliases bounds the aliases of a YAML text, each of which repeats what it stands for.
	maxYAMLAliases = 64
)

// guarded calls f only when check allows its arguments.
func guarded(f function.Function, check func(args []cty.Value) error) function.Function {
	return function.New(&function.Spec{
		Params:   f.Params(),
		VarParam: f.VarParam(),
		Type:     f.ReturnTypeForValues,
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			if err := check(args); err != nil {
				return cty.DynamicVal, err
			}
			return f.Call(args)
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

var wideVerb = regexp.MustCompile(`%[^%a-zA-Z]*[0-9]{4}`)

func formatGuard(args []cty.Value) error {
	spec := text(args, 0)
	if wideVerb.MatchString(spec) {
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

// replaceGuard counts a replacement before each character and after the last; each "$" may repeat all of the string once.
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

var yamlAlias = regexp.MustCompile(`(^|[\s\[{,:-])\*[^\s*]`)

func yamlGuard(args []cty.Value) error {
	if len(yamlAlias.FindAllStringIndex(text(args, 0), maxYAMLAliases+1)) > maxYAMLAliases {
		return fmt.Errorf("the text has more than %d aliases", maxYAMLAliases)
	}
	return nil
}
