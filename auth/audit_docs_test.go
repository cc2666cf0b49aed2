package auth_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"taskapi/examples/doctest"
	"taskapi/internal/must"
)

// TestAuditFieldsAreDocumented holds the table of fields in docs/security.md to the comments of Record's fields.
func TestAuditFieldsAreDocumented(t *testing.T) {
	file := must.Get(parser.ParseFile(token.NewFileSet(), "audit_record.go", nil, parser.ParseComments))(t)
	var want strings.Builder
	want.WriteString("| field | is |\n|---|---|\n")
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name != "Record" {
			return true
		}
		for _, field := range spec.Type.(*ast.StructType).Fields.List {
			tag := must.Get(strconv.Unquote(field.Tag.Value))(t)
			name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
			words := strings.Join(strings.Fields(field.Doc.Text()), " ")
			if words == "" {
				t.Errorf("the field %s has no comment", name)
			}
			fmt.Fprintf(&want, "| `%s` | %s |\n", name, strings.TrimSuffix(words, "."))
		}
		return false
	})
	doctest.Table(t, "../docs/security.md", "auth", want.String())
}
