package tasktext

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

const (
	tabStop  = 8
	maxMarks = 2 // combining characters after one another: more of them climb over the lines above
)

// Cleaner makes text that a task wrote safe for the terminal: what it returns has no control characters, so that no
// escape sequence reaches the terminal, and each of its characters has a width. Control characters are shown as ^X,
// other invisible ones as <hex>, so that nothing hides; colours are removed.
type Cleaner struct {
	ASCII bool // the terminal shows nothing else: other characters become question marks
}

// Line returns a line of text.
func (c Cleaner) Line(text []byte) string {
	if plain(text) {
		return string(text)
	}
	var out strings.Builder
	out.Grow(len(text) + len(text)/8)
	for column, marks := 0, 0; len(text) > 0; {
		if skip := colour(text); skip > 0 {
			text = text[skip:]
			continue
		}
		r, size := utf8.DecodeRune(text)
		text = text[size:]
		if unicode.Is(unicode.M, r) {
			marks++
		} else {
			marks = 0
		}
		shown := c.shown(r, column, marks)
		out.WriteString(shown)
		column += ansi.StringWidthWc(shown)
	}
	return out.String()
}

// Text is Line for a string of any length and number of lines, which become one.
func (c Cleaner) Text(s string) string {
	cut := ""
	if len(s) > MaxLineBytes {
		s, cut = strings.ToValidUTF8(s[:MaxLineBytes], ""), " [...]"
	}
	return c.Line([]byte(strings.Join(strings.Fields(s), " "))) + cut
}

// shown returns what stands for a character. column is where it will be. A byte that is no UTF-8 is read as the
// replacement character.
func (c Cleaner) shown(r rune, column, marks int) string {
	switch {
	case r == '\t':
		return strings.Repeat(" ", tabStop-column%tabStop)
	case r < ' ':
		return "^" + string('@'+r)
	case r == 0x7f:
		return "^?"
	case c.ASCII && r > 0x7f:
		return "?"
	case r == 0x200d, unicode.Is(unicode.Variation_Selector, r), marks > maxMarks, marks > column:
		return "" // joiners only change how their neighbours look; a mark at the beginning has no character to stand on
	case !unicode.IsGraphic(r):
		return fmt.Sprintf("<%x>", r)
	}
	return string(r)
}

// plain reports whether text is printable ASCII.
func plain(text []byte) bool {
	for _, b := range text {
		if b < ' ' || b > '~' {
			return false
		}
	}
	return true
}

// colour returns the length of the sequence at the beginning of text that sets colours and the like (SGR), 0 for
// anything else.
func colour(text []byte) int {
	if len(text) < 3 || text[0] != 0x1b || text[1] != '[' {
		return 0
	}
	for i, b := range text[2:] {
		switch {
		case b == 'm':
			return i + 3
		case (b < '0' || b > '9') && b != ';' && b != ':':
			return 0
		}
	}
	return 0
}
