package render_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/Masterminds/sprig/v3"

	"taskapi/internal/must"
)

// theirFunctions returns the names of consul-template's functions, which only its source lists.
func theirFunctions(t *testing.T) []string {
	t.Helper()
	dir := must.Get(exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}",
		"github.com/hashicorp/consul-template/template").Output())(t)
	source := filepath.Join(strings.TrimSpace(string(dir)), "template.go")
	parsed := must.Get(parser.ParseFile(token.NewFileSet(), source, nil, 0))(t)
	var names []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		if f, ok := n.(*ast.FuncDecl); ok && f.Name.Name != "funcMap" {
			return false
		}
		if pair, ok := n.(*ast.KeyValueExpr); ok {
			if key, ok := pair.Key.(*ast.BasicLit); ok {
				name, _ := strconv.Unquote(key.Value)
				names = append(names, name)
			}
		}
		return true
	})
	if len(names) < 80 {
		t.Fatalf("found only %v", names)
	}
	for name := range sprig.HermeticTxtFuncMap() {
		names = append(names, "sprig_"+name)
	}
	return names
}
