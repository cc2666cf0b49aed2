package taskenv

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
	"github.com/zclconf/go-cty/cty/gocty"

	"taskapi/internal/ctyvalue"
)

// ConfigError is an error about a driver configuration that refers to unknown names, or is no valid HCL template. Its
// text is that of Nomad's Failed Validation event, with the position of each problem.
type ConfigError struct {
	Problems []string // one sentence each, never empty
	Syntax   []string // those of them that no environment can solve
}

func (e *ConfigError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d errors occurred:\n\t* failed to parse config: ", len(e.Problems)+1)
	for _, p := range e.Problems {
		b.WriteString("\n\t* " + p)
	}
	return b.String()
}

// EvalConfig evaluates every string of a driver's configuration as an HCL template. The templates can use the
// environment (${NAME}, ${env["NAME"]}) and the node facts (${attr.kernel.name}, ${node.datacenter}, ${meta.x}). The
// value of a template that consists of one ${...} keeps its type: string, bool, int, float64, []any or
// map[string]any. The configuration itself does not change. Errors: *ConfigError, with all problems.
func (e *Env) EvalConfig(config map[string]any) (map[string]any, error) {
	ev := evaluator{env: e}
	out, _ := ev.value("", config).(map[string]any)
	if len(ev.problems) > 0 {
		return nil, &ConfigError{Problems: ev.problems, Syntax: ev.syntax}
	}
	return out, nil
}

// functions are the functions that Nomad's client evaluates in a driver's configuration. All others are evaluated with
// the job file.
var functions = map[string]function.Function{
	"abs": stdlib.AbsoluteFunc, "coalesce": stdlib.CoalesceFunc, "concat": stdlib.ConcatFunc,
	"hasindex": stdlib.HasIndexFunc, "int": stdlib.IntFunc, "jsondecode": stdlib.JSONDecodeFunc,
	"jsonencode": stdlib.JSONEncodeFunc, "length": stdlib.LengthFunc, "lower": stdlib.LowerFunc,
	"max": stdlib.MaxFunc, "min": stdlib.MinFunc, "reverse": stdlib.ReverseFunc,
	"strlen": stdlib.StrlenFunc, "substr": stdlib.SubstrFunc, "upper": stdlib.UpperFunc,
}

type evaluator struct {
	env      *Env
	ctx      *hcl.EvalContext // nil before the first template: most configurations have none
	problems []string
	syntax   []string // those of templates that can't be read
}

// value evaluates the strings in v. at is its position, for errors.
func (ev *evaluator) value(at string, v any) any {
	switch v := v.(type) {
	case string:
		return ev.template(at, v)
	case []string, []any, []map[string]any:
		list := reflect.ValueOf(v)
		out := make([]any, list.Len())
		for i := range out {
			out[i] = ev.value(fmt.Sprintf("%s[%d]", at, i), list.Index(i).Interface())
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) { // in order, so that problems are
			out[k] = ev.value(strings.TrimPrefix(at+"."+k, "."), v[k])
		}
		return out
	}
	return v
}

func (ev *evaluator) template(at, s string) any {
	if !strings.Contains(s, "${") && !strings.Contains(s, "%{") {
		return s
	}
	expr, diags := hclsyntax.ParseTemplate([]byte(s), at, hcl.InitialPos)
	if diags.HasErrors() {
		before := len(ev.problems)
		ev.fail(at, diags)
		ev.syntax = append(ev.syntax, ev.problems[before:]...)
		return nil
	}
	if ev.ctx == nil {
		ev.ctx = &hcl.EvalContext{Variables: ev.env.variables(), Functions: functions}
	}
	val, diags := expr.Value(ev.ctx)
	if diags.HasErrors() {
		return ev.fail(at, diags)
	}
	if hasNull(val) {
		ev.problems = append(ev.problems, fmt.Sprintf("Invalid value: the expression gives null. In config %s.", at))
		return nil
	}
	out, err := ctyvalue.Go(val)
	if err != nil {
		ev.problems = append(ev.problems, fmt.Sprintf("Invalid value: %v. In config %s.", err, at))
	}
	return out
}

// hasNull reports whether a value, or a part of it, is null or unknown.
func hasNull(v cty.Value) (found bool) {
	_ = cty.Walk(v, func(_ cty.Path, part cty.Value) (bool, error) {
		found = found || part.IsNull() || !part.IsKnown()
		return !found, nil
	})
	return found
}

func (ev *evaluator) fail(at string, diags hcl.Diagnostics) any {
	for _, d := range diags {
		if d.Severity == hcl.DiagError {
			ev.problems = append(ev.problems, fmt.Sprintf("%s: %s In config %s.", d.Summary, d.Detail, at))
		}
	}
	return nil
}

// variables returns the environment and the node facts for HCL: names with dots are nested objects.
func (e *Env) variables() map[string]cty.Value {
	tree := map[string]any{}
	for _, layer := range []map[string]string{e.node, e.vars} {
		for _, k := range slices.Sorted(maps.Keys(layer)) {
			nest(tree, k, layer[k])
		}
	}
	out := ctyTree(tree).AsValueMap()                             // never empty: each environment has NOMAD_ALLOC_ID
	out["env"], _ = gocty.ToCtyValue(e.vars, cty.Map(cty.String)) // fails for other types alone
	return out
}

// nest puts value at the dotted path. A path that can't be nested (a..b, or a.b if a has a value) is left out:
// env["..."] still has a variable of such a name.
func nest(tree map[string]any, path, value string) {
	parts := strings.Split(path, ".")
	for _, p := range parts[:len(parts)-1] {
		if p == "" {
			return
		}
		next, ok := tree[p].(map[string]any)
		if _, taken := tree[p]; !ok && taken {
			return
		}
		if !ok {
			next = map[string]any{}
			tree[p] = next
		}
		tree = next
	}
	last := parts[len(parts)-1]
	if _, taken := tree[last]; !taken && last != "" {
		tree[last] = value
	}
}

func ctyTree(v any) cty.Value {
	tree, ok := v.(map[string]any)
	if !ok {
		return cty.StringVal(v.(string))
	}
	out := make(map[string]cty.Value, len(tree))
	for k, sub := range tree {
		out[k] = ctyTree(sub)
	}
	return cty.ObjectVal(out)
}
