package settings

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"taskapi/examples/doctest"
)

// TestSettingsAreDocumented holds docs/settings.md to the list of keys.
func TestSettingsAreDocumented(t *testing.T) {
	var want strings.Builder
	want.WriteString("| setting | default | is |\n|---|---|---|\n")
	for _, k := range Keys() {
		standard := cmp.Or(k.Default, "-")
		if k.Env != "" {
			standard = "$" + k.Env
		}
		if standard != "-" {
			standard = "`" + standard + "`"
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s |\n", k.Name, standard, k.Doc)
	}
	doctest.Table(t, "../../../../docs/settings.md", "cmd/taskapi/internal/settings", want.String())
}
