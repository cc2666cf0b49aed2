package jobspec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"taskapi/allocrunner/jobspec/internal/hcleval"
)

// Places finds the lines of a job file that messages are about. Its zero value, and that of a job in JSON, finds none.
type Places struct {
	name string
	job  *hclsyntax.Block
}

// NewPlaces reads a text that Parse has accepted.
func NewPlaces(cfg Config) Places {
	if IsJSON(cfg) {
		return Places{}
	}
	root, diags := hcleval.ParseBody(cfg.Body, cfg.Filename)
	if diags.HasErrors() {
		return Places{}
	}
	for _, block := range root.Blocks {
		if block.Type == "job" {
			return Places{cfg.Filename, block}
		}
	}
	return Places{}
}

// Of returns "FILE:LINE" of an argument or a block. path names the blocks around it as a review does: `group "web" >
// task "x"`. The last word of feature is the argument's name; the word before it may be a block's. If the argument is
// not written, the place is that of the innermost block that is. Of returns an empty text when it finds nothing.
func (p Places) Of(path, feature string) string {
	if p.job == nil {
		return ""
	}
	body, at := p.job.Body, p.job.DefRange()
	for rest := path; rest != ""; {
		var kind, name string
		kind, name, rest = firstStep(rest)
		block := findBlock(body, kind, name)
		if block == nil {
			break
		}
		body, at = block.Body, block.DefRange()
	}
	words := strings.Fields(feature)
	for i, word := range words {
		if attr := findAttribute(body, word); attr != nil && i == len(words)-1 {
			at = attr.NameRange
		} else if block := findBlock(body, word, ""); block != nil {
			body, at = block.Body, block.DefRange()
		}
	}
	return fmt.Sprintf("%s:%d", p.name, at.Start.Line)
}

// firstStep cuts `kind "name"` off a path. The name may be left out.
func firstStep(path string) (kind, name, rest string) {
	kind, rest = path, ""
	if i := strings.IndexAny(path, " "); i >= 0 {
		kind, rest = path[:i], path[i+1:]
	}
	if quoted, err := strconv.QuotedPrefix(rest); err == nil {
		name, _ = strconv.Unquote(quoted)
		rest = rest[len(quoted):]
	}
	rest = strings.TrimPrefix(strings.TrimPrefix(rest, " "), "> ")
	return kind, name, rest
}

// withoutLabel are blocks whose content belongs to the block around them.
var withoutLabel = []string{"config", "network", "resources", "restart", "update", "logs", "lifecycle",
	"ephemeral_disk", "check_restart"}

// inner returns the bodies in which the arguments of a body may be.
func inner(body *hclsyntax.Body) []*hclsyntax.Body {
	all := []*hclsyntax.Body{body}
	for _, block := range body.Blocks {
		if slices.Contains(withoutLabel, block.Type) {
			all = append(all, block.Body)
		}
	}
	return all
}

// findBlock returns the block of a type and a name, which is a label or an argument. An empty name stands for any.
func findBlock(body *hclsyntax.Body, kind, name string) *hclsyntax.Block {
	for _, in := range inner(body) {
		for _, block := range in.Blocks {
			named := slices.Contains(block.Labels, name) || literal(block.Body, "name") == name ||
				literal(block.Body, "destination") == name || // a template
				literal(block.Body, "source") == name // an artifact
			if block.Type == kind && (name == "" || named) {
				return block
			}
		}
	}
	return nil
}

func findAttribute(body *hclsyntax.Body, name string) *hclsyntax.Attribute {
	for _, in := range inner(body) {
		if attr := in.Attributes[name]; attr != nil {
			return attr
		}
	}
	return nil
}

// literal returns the text of an argument without references.
func literal(body *hclsyntax.Body, name string) string {
	attr := body.Attributes[name]
	if attr == nil {
		return ""
	}
	v, diags := attr.Expr.Value(nil)
	if diags.HasErrors() || v.IsNull() || v.Type() != cty.String || !v.IsKnown() {
		return ""
	}
	return v.AsString()
}
