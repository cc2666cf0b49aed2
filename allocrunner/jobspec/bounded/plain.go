package bounded

import (
	"context"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec"
)

// ForCommand is Parse for a command that runs nothing yet. It reads a text that computes nothing in this process, since
// another process takes 6 ms. A server calls Parse, so that no text can end it.
func ForCommand(ctx context.Context, cfg jobspec.Config) (*api.Job, error) {
	if plain(cfg) {
		return jobspec.Parse(cfg)
	}
	return Parse(ctx, cfg)
}

// A plain text is no longer and not nested deeper than this, and its numbers are no longer. Most job files are far
// below. The slowest such text, an indented heredoc, takes an eighth of a second.
const (
	plainBytes  = 32 << 10
	plainDepth  = 64
	plainDigits = 32
)

// plainTokens are those of blocks, attributes, literals and references.
var plainTokens = []hclsyntax.TokenType{
	hclsyntax.TokenOBrace, hclsyntax.TokenCBrace, hclsyntax.TokenOBrack, hclsyntax.TokenCBrack, hclsyntax.TokenEqual,
	hclsyntax.TokenComma, hclsyntax.TokenDot, hclsyntax.TokenIdent, hclsyntax.TokenNumberLit, hclsyntax.TokenOQuote,
	hclsyntax.TokenCQuote, hclsyntax.TokenQuotedLit, hclsyntax.TokenStringLit, hclsyntax.TokenOHeredoc,
	hclsyntax.TokenCHeredoc, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateSeqEnd, hclsyntax.TokenNewline,
	hclsyntax.TokenComment, hclsyntax.TokenEOF,
}

// plain reports whether reading a job file takes no more than a multiple of its size: it calls no function, and has no
// operator, no loop, and neither locals nor variables, which could double one another.
func plain(cfg jobspec.Config) bool {
	if len(cfg.Body) > plainBytes || len(cfg.Vars)+len(cfg.VarFiles)+len(cfg.VarText) > 0 {
		return false
	}
	tokens, diags := hclsyntax.LexConfig(cfg.Body, cfg.Filename, hcl.InitialPos)
	depth := 0
	for _, t := range tokens {
		text := string(t.Bytes)
		switch t.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenTemplateInterp:
			depth++
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenTemplateSeqEnd:
			depth--
		case hclsyntax.TokenIdent:
			if slices.Contains([]string{"dynamic", "for", "local", "locals", "variable", "variables"}, text) {
				return false
			}
		case hclsyntax.TokenNumberLit: // 1e9999 has ten thousand digits
			if len(text) > plainDigits || strings.ContainsAny(text, "eE") {
				return false
			}
		}
		if depth > plainDepth || !slices.Contains(plainTokens, t.Type) {
			return false
		}
	}
	return !diags.HasErrors()
}
