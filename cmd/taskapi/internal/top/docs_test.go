package top

import (
	"fmt"
	"strings"
	"testing"

	"taskapi/examples/doctest"
	"taskapi/internal/must"
)

// TestKeysAreDocumented holds the table of keys to the bindings.
func TestKeysAreDocumented(t *testing.T) {
	var want strings.Builder
	want.WriteString("| key | does |\n|---|---|\n")
	for _, b := range bindings() {
		keys := strings.Fields(strings.ReplaceAll(b.show, "^", "Ctrl-"))
		fmt.Fprintf(&want, "| `%s` | %s |\n", strings.Join(keys, "` `"), b.does)
	}
	doctest.Table(t, "../../../../docs/top.md", "cmd/taskapi/internal/top", want.String())
}

// TestDocsShowTheScreen: the screen in the page about top is one that a terminal shows.
func TestDocsShowTheScreen(t *testing.T) {
	page := must.Read(t, "../../../../docs/top.md")
	screen := must.Read(t, "testdata/terminal/inside-80x24.txt")
	if !strings.Contains(string(page), "$ taskapi top shop\n"+string(screen)+"```\n") {
		t.Errorf("docs/top.md does not show\n%s", screen)
	}
}
