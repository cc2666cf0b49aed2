package handlers_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"taskapi/auth"
	"taskapi/examples/doctest"
	"taskapi/handlers"
	"taskapi/handlers/internal/route"
)

// TestRoutesAreDocumented holds docs/api.md to the table of routes.
func TestRoutesAreDocumented(t *testing.T) {
	var want strings.Builder
	want.WriteString("| request | answer | capability | |\n|---|---|---|---|\n")
	for _, r := range handlers.Routes() {
		if r.Answer == route.Absent {
			continue
		}
		fmt.Fprintf(&want, "| `%s %s` | %s | %s | %s |\n", r.Methods[0], r.Pattern, r.Answer, needs(r.AnyOf), r.Doc)
	}
	doctest.Table(t, "../docs/api.md", "handlers", want.String())
}

// TestAbsentRoutesAreDocumented holds docs/api.md to the table of what is absent.
func TestAbsentRoutesAreDocumented(t *testing.T) {
	var reasons []string
	rows := map[string][]string{}
	for _, r := range handlers.Routes() {
		if r.Answer != route.Absent {
			continue
		}
		if rows[r.Doc] == nil {
			reasons = append(reasons, r.Doc)
		}
		row := r.Pattern
		if !slices.Contains(r.Methods, http.MethodGet) { // others are served, or there are none
			methods := slices.DeleteFunc(slices.Clone(r.Methods), func(m string) bool { return m == http.MethodPost })
			row = strings.Join(methods, ", ") + " " + row
		}
		rows[r.Doc] = append(rows[r.Doc], "`"+row+"`")
	}
	var want strings.Builder
	want.WriteString("| what | 501 |\n|---|---|\n")
	for _, reason := range reasons {
		fmt.Fprintf(&want, "| %s | %s |\n", strings.Join(rows[reason], ", "), reason)
	}
	doctest.Table(t, "../docs/api.md", "handlers", want.String())
}

// needs says which capability a caller must have.
func needs(anyOf auth.CapabilitySet) string {
	var words []string
	for _, c := range anyOf.List() {
		switch c {
		case auth.Authenticated:
			words = append(words, "any valid token")
		case auth.OperatorOnly:
			words = append(words, "the operator")
		default:
			words = append(words, c.String())
		}
	}
	return strings.Join(words, " or ")
}
