package auth

import (
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// pathsSchema is a variables block's, pathSchema that of a path in it.
var (
	pathsSchema = &hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "path", LabelNames: []string{"path"}}}}
	pathSchema  = &hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "capabilities", Required: true}}}
)

// The label of a path: what the path of a variable is made of, and *.
const (
	pathLetters   = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_~/*"
	maxPathLength = 128
)

func isPathLabel(label string) bool {
	return label != "" && len(label) <= maxPathLength && strings.Trim(label, pathLetters) == ""
}

// parsePaths parses a variables block.
func parsePaths(block *hcl.Block) (paths []pathRule, diags hcl.Diagnostics) {
	content, diags := block.Body.Content(pathsSchema)
	if len(content.Blocks) == 0 && !diags.HasErrors() {
		diags = append(diags, mistake(block.DefRange, `the block says nothing; write path "PATH" { capabilities = ["read"] } in it`))
	}
	for _, b := range content.Blocks {
		rule := pathRule{path: b.Labels[0]}
		switch {
		case !isPathLabel(rule.path):
			diags = append(diags, mistake(b.LabelRanges[0], "no variable has a path like %q: it is made of at most %d of a-z, A-Z, 0-9, -, _, ~ and /, and * stands for any of them",
				rule.path, maxPathLength))
		case slices.ContainsFunc(paths, func(other pathRule) bool { return other.path == rule.path }):
			diags = append(diags, mistake(b.LabelRanges[0], "path %q has a block already; write one for both", rule.path))
		}
		inner, more := b.Body.Content(pathSchema)
		diags = append(diags, more...)
		if attr := inner.Attributes["capabilities"]; attr != nil {
			rule.rights, more = parseRights(attr.Expr)
			diags = append(diags, more...)
		}
		paths = append(paths, rule)
	}
	return paths, diags
}

// parseRights parses a list of rights on variables.
func parseRights(expr hcl.Expression) (rights VariableRight, diags hcl.Diagnostics) {
	denied := false
	names, diags := texts(expr, `["read", "write"]`)
	for _, name := range names {
		right, known := variableRights[name.text]
		if !known {
			diags = append(diags, mistake(name.at, "unknown capability %q of variables; there are read, list, write, destroy and deny", name.text))
		}
		denied, rights = denied || name.text == "deny", rights|right
	}
	if len(names) == 0 && !diags.HasErrors() {
		diags = append(diags, mistake(expr.Range(), `an empty list; to refuse the path, write ["deny"]`))
	}
	if denied {
		rights = noVariableRight
	}
	return rights, diags
}
