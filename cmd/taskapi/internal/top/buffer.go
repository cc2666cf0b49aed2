package top

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The bounds of a buffer: enough to scroll through, in some megabytes.
const (
	maxLines      = 5000
	maxBytes      = 2 << 20
	maxLineBytes  = 4 << 10 // of a line as the task wrote it; the rest is counted
	lineOverhead  = 16      // of a string in the slice
	trimmedChunks = 8       // a share of the lines goes at once, so that the slice is not moved for each
)

// buffer holds the latest lines of a text, made safe for the terminal, within maxLines and maxBytes. Lines are
// numbered from the first one that ever was, so that a number stays that of its line while older ones are dropped.
type buffer struct {
	clean cleaner
	lines []string
	first int // number of the oldest line
	bytes int

	open     []byte // a line without its end yet, as it was written
	cut      int    // bytes of it that are not in open
	pending  bool   // there is such a line, and it stands last in lines
	returned bool   // the last thing written was a carriage return

	query   string
	matches []int // numbers of the lines that have it
}

// write adds text as a task wrote it. A carriage return ends a line, too: a terminal would write over what stands
// before it.
func (b *buffer) write(text []byte) {
	for len(text) > 0 {
		i := bytes.IndexAny(text, "\r\n")
		if i < 0 {
			b.extend(text)
			break
		}
		end := text[i]
		if b.returned && end == '\n' && i == 0 {
			b.returned = false
		} else {
			b.extend(text[:i])
			b.returned = b.end(end) && end == '\r'
		}
		text = text[i+1:]
	}
	if !b.pending && len(b.open)+b.cut > 0 {
		b.push(b.openLine())
		b.pending = true
	}
}

// extend adds to the line that has not ended.
func (b *buffer) extend(line []byte) {
	b.returned = false
	if last := len(b.lines) - 1; b.pending { // it is replaced
		b.pending = false
		b.bytes -= len(b.lines[last]) + lineOverhead
		b.lines = b.lines[:last]
		if n := len(b.matches); n > 0 && b.matches[n-1] == b.first+last {
			b.matches = b.matches[:n-1]
		}
	}
	room := min(max(maxLineBytes-len(b.open), 0), len(line))
	b.open = append(b.open, line[:room]...)
	b.cut += len(line) - room
}

// end ends the line, and reports whether there was one: a carriage return alone is none.
func (b *buffer) end(with byte) bool {
	if with == '\r' && len(b.open)+b.cut == 0 {
		return false
	}
	b.push(b.openLine())
	b.open, b.cut = b.open[:0], 0
	return true
}

func (b *buffer) openLine() string {
	line := b.clean.line(b.open)
	if b.cut > 0 {
		line += fmt.Sprintf(" [%d more bytes]", b.cut)
	}
	return line
}

// note adds a line that no task wrote.
func (b *buffer) note(line string) {
	if b.pending {
		b.pending = false
		b.open, b.cut = b.open[:0], 0
	}
	b.push(line)
}

func (b *buffer) push(line string) {
	if b.query != "" && matchIn(line, b.query) >= 0 {
		b.matches = append(b.matches, b.first+len(b.lines))
	}
	b.lines = append(b.lines, line)
	b.bytes += len(line) + lineOverhead
	if len(b.lines) > maxLines || b.bytes > maxBytes {
		b.trim()
	}
}

// trim drops the oldest lines.
func (b *buffer) trim() {
	const keptLines, keptBytes = maxLines - maxLines/trimmedChunks, maxBytes - maxBytes/trimmedChunks
	drop := 0
	for drop < len(b.lines)-1 && (len(b.lines)-drop > keptLines || b.bytes > keptBytes) {
		b.bytes -= len(b.lines[drop]) + lineOverhead
		drop++
	}
	b.lines = append(b.lines[:0:0], b.lines[drop:]...)
	b.first += drop
	kept, _ := slices.BinarySearch(b.matches, b.first)
	b.matches = b.matches[kept:]
}

// reset empties the buffer. The query stays.
func (b *buffer) reset() {
	*b = buffer{clean: b.clean, query: b.query}
}

// search looks for a text in all lines, and from now on in new ones.
func (b *buffer) search(query string) {
	b.query, b.matches = query, nil
	if query == "" {
		return
	}
	for i, line := range b.lines {
		if matchIn(line, query) >= 0 {
			b.matches = append(b.matches, b.first+i)
		}
	}
}

// after returns the number after the last line's.
func (b *buffer) after() int { return b.first + len(b.lines) }

// matchIn returns where in line the query is, -1 for nowhere. A query without capitals matches both cases.
func matchIn(line, query string) int {
	if !strings.ContainsFunc(query, unicode.IsUpper) {
		line = strings.Map(func(r rune) rune {
			if lower := unicode.ToLower(r); utf8.RuneLen(lower) == utf8.RuneLen(r) { // so that indices stay
				return lower
			}
			return r
		}, line)
	}
	return strings.Index(line, query)
}

// replace sets all lines, unless they are the same.
func (b *buffer) replace(lines []string) {
	if slices.Equal(b.lines, lines) {
		return
	}
	b.reset()
	for _, line := range lines {
		b.push(line)
	}
}
