package review_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"taskapi/allocrunner/jobspec/review"
	"taskapi/examples/doctest"
)

// TestRowsAreDocumented holds docs/jobfiles.md to the table of what a review knows.
func TestRowsAreDocumented(t *testing.T) {
	var want strings.Builder
	rows := review.Rows()
	for _, block := range blocks(rows) {
		fmt.Fprintf(&want, "\n### %s\n\n| | | |\n|---|---|---|\n", block)
		for _, r := range rows {
			if r.Block == block {
				fmt.Fprintf(&want, "| `%s` | %s | %s |\n", r.Attribute, r.Severity, strings.ReplaceAll(r.Words, "|", `\|`))
			}
		}
	}
	want.WriteString("\n")
	doctest.Table(t, "../../../docs/jobfiles.md", "allocrunner/jobspec/review", want.String())
}

// blocks returns the blocks that rows are about, each once, in their order.
func blocks(rows []review.Row) []string {
	var list []string
	for _, r := range rows {
		if !slices.Contains(list, r.Block) {
			list = append(list, r.Block)
		}
	}
	return list
}
