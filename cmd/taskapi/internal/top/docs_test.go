package top

import (
	"fmt"
	"strings"
	"testing"

	"taskapi/examples/doctest"
)

// TestKeysAreDocumented holds the table of keys to the bindings.
func TestKeysAreDocumented(t *testing.T) {
	var want strings.Builder
	want.WriteString("| key | does |\n|---|---|\n")
	for _, b := range bindings {
		keys := strings.Fields(strings.ReplaceAll(b.show, "^", "Ctrl-"))
		fmt.Fprintf(&want, "| `%s` | %s |\n", strings.Join(keys, "` `"), b.does)
	}
	doctest.Table(t, "../../../../docs/top.md", "cmd/taskapi/internal/top", want.String())
}
