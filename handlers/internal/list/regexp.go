package list

import (
	"errors"
	"fmt"
	"regexp/syntax"
)

// addRegexp counts the instructions of a regular expression.
func (f *filter) addRegexp(text string) error {
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return fmt.Errorf("matches: %w", err)
	}
	if f.regexps += size(tree); f.regexps > maxRegexp {
		return errors.New("matches: the regular expression is too large: its repetitions multiply")
	}
	return nil
}

// size returns about how many instructions a regular expression is compiled to. It stops counting soon after maxRegexp.
func size(tree *syntax.Regexp) int {
	n := 1 + len(tree.Rune)
	for _, sub := range tree.Sub {
		if n += size(sub); n > maxRegexp {
			return n
		}
	}
	if tree.Op == syntax.OpRepeat {
		n *= max(1, tree.Min, tree.Max)
	}
	return n
}
