package hcleval

import (
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

const (
	// maxDepth bounds brackets, blocks, quotes and template sequences inside one another. HCL's parser and evaluator
	// recurse for each; the deepest real job file has about 20.
	maxDepth = 100

	// maxOperators bounds the operators and indexes of a file: a chain of them is a tree as deep as the chain is long.
	// At about 1 kB of stack for each this stays far below Go's limit of 1 GB.
	maxOperators = 20_000
)

// checkNesting refuses tokens that would make the parser or the evaluator recurse too deep.
func checkNesting(tokens hclsyntax.Tokens) *hcl.Diagnostic {
	depth, operators := 0, 0
	for _, token := range tokens {
		depth += nestingStep(token.Type)
		if isOperator(token.Type) {
			operators++
		}
		if depth > maxDepth {
			return ErrorAt(token.Range, "Too complex",
				"Blocks, brackets and templates are nested more than %d deep here.", maxDepth)
		}
		if operators > maxOperators {
			return ErrorAt(token.Range, "Too complex", "There are more than %d operators and indexes in this text.",
				maxOperators)
		}
	}
	return nil
}

func nestingStep(t hclsyntax.TokenType) int {
	switch t {
	case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenOQuote,
		hclsyntax.TokenOHeredoc,
		hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
		return 1
	case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenCQuote,
		hclsyntax.TokenCHeredoc,
		hclsyntax.TokenTemplateSeqEnd:
		return -1
	}
	return 0
}

func isOperator(t hclsyntax.TokenType) bool {
	switch t {
	case hclsyntax.TokenPlus, hclsyntax.TokenMinus, hclsyntax.TokenStar, hclsyntax.TokenSlash, hclsyntax.TokenPercent,
		hclsyntax.TokenEqualOp, hclsyntax.TokenNotEqual, hclsyntax.TokenLessThan, hclsyntax.TokenLessThanEq,
		hclsyntax.TokenGreaterThan, hclsyntax.TokenGreaterThanEq, hclsyntax.TokenAnd, hclsyntax.TokenOr, hclsyntax.TokenBang,
		hclsyntax.TokenQuestion, hclsyntax.TokenOBrack, hclsyntax.TokenTemplateControl:
		return true
	}
	return false
}
