package bounded

import (
	"fmt"
	"strings"
	"testing"

	"taskapi/allocrunner/jobspec"
	"taskapi/internal/same"
)

// TestPlain says which texts a command reads without another process, and that it reads them as that process does. The
// texts of TestHostileTextsAreRefused are none.
func TestPlain(t *testing.T) {
	for name, c := range map[string]struct {
		locals, value string
		want          bool
	}{
		"literals":        {"", `"x ${NOMAD_META_a}-${attr.kernel.name} (y) $${for}"`, true},
		"a heredoc":       {"", "<<-E\n  a ${node.unique.id} (b) + c\n  E\n", true},
		"a call":          {"", `upper("a")`, false},
		"a call in text":  {"", `"${upper("a")}"`, false},
		"a loop":          {"", `[for a in ["b"] : a]`, false},
		"a loop in text":  {"", `"%{ for a in ["b"] }a%{ endfor }"`, false},
		"an operator":     {"", `"${1 + 1}"`, false},
		"a long number":   {"", `1e99`, false},
		"many digits":     {"", strings.Repeat("9", 2*plainDigits), false},
		"a local":         {`b = "c"`, "local.b", false},
		"a splat":         {"", `["a"][*]`, false},
		"deep":            {"", strings.Repeat("[", 2*plainDepth) + strings.Repeat("]", 2*plainDepth), false},
		"long":            {"", `"` + strings.Repeat("a", plainBytes) + `"`, false},
		"a wrong text":    {"", "\"a\nb\"", false},
		"a dynamic block": {"", "1\n}\ndynamic \"group\" {\nx = {", false},
	} {
		cfg := job(c.locals, c.value)
		if c.locals == "" {
			cfg.Body = []byte(strings.TrimPrefix(string(cfg.Body), "locals {\n\n}\n"))
		}
		same.As(t, c.want, plain(cfg), name)
		want, wantErr := Parse(t.Context(), cfg)
		got, err := ForCommand(t.Context(), cfg)
		same.As(t, fmt.Sprint(wantErr), fmt.Sprint(err), name)
		same.As(t, want, got, name)
	}
	for name, cfg := range map[string]jobspec.Config{
		"-var": {Vars: []string{"a=[for b in c: d]"}}, "-var-file": {VarFiles: []string{"x"}}, "var_text": {VarText: "a = b"},
	} {
		cfg.Body = []byte(`job "x" {}`)
		same.As(t, false, plain(cfg), name)
	}
}
