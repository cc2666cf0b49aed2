package handlers_test

import (
	"fmt"
	"strings"
	"testing"

	"taskapi/auth"
	"taskapi/examples/doctest"
	"taskapi/handlers"
)

// TestRoutesAreDocumented holds docs/api.md to the table of routes.
func TestRoutesAreDocumented(t *testing.T) {
	var want strings.Builder
	want.WriteString("| request | answer | capability | |\n|---|---|---|---|\n")
	for _, r := range handlers.Routes() {
		fmt.Fprintf(&want, "| `%s %s` | %s | %s | %s |\n", r.Methods[0], r.Pattern, r.Answer, needs(r.AnyOf), r.Doc)
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
