// Package tasktext makes what tasks write safe for a terminal, and keeps the latest lines of it within bounds.
package tasktext

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
	MaxLineBytes  = 4 << 10 // of a line as the task wrote it; the rest is counted
	lineOverhead  = 16      // of a string in the slice
	trimmedChunks = 8       // a share of the lines goes at once, so that the slice is not moved for each
)

// Stream says which output of a task a line is from.
type Stream int

const (
	Stdout Stream = iota
	Stderr
	Streams // how many there are
)

func (s Stream) String() string { return [...]string{"stdout", "stderr"}[s] }

// Line is a line of a text, safe for the terminal.
type Line struct {
	Text   string
	Stream Stream
}

// Buffer holds the latest lines of a text within maxLines and maxBytes. Lines are numbered from the first one that ever
// was, so that a number stays that of its line while older ones are dropped.
type Buffer struct {
	Clean Cleaner
	lines []Line
	first int // number of the oldest line
	bytes int

	open    [Streams]openLine
	pending int // lines without their ends, which stand last in lines

	query   string
	matches []int // numbers of the lines that have it
}

// openLine is a line of a stream without its end yet.
type openLine struct {
	text     []byte // as it was written
	cut      int    // bytes of it that are not in text
	returned bool   // the last thing written was a carriage return
}

// Write adds text as a task wrote it. A carriage return ends a line, too: a terminal would write over what stands
// before it.
func (b *Buffer) Write(from Stream, text []byte) {
	o := &b.open[from]
	for b.pending > 0 {
		b.pop()
	}
	for len(text) > 0 {
		i := bytes.IndexAny(text, "\r\n")
		if i < 0 {
			o.extend(text)
			break
		}
		end := text[i]
		if o.returned && end == '\n' && i == 0 {
			o.returned = false
		} else {
			o.extend(text[:i])
			o.returned = b.end(from, end) && end == '\r'
		}
		text = text[i+1:]
	}
	for _, s := range []Stream{1 - from, from} {
		if o := &b.open[s]; o.is() {
			b.push(Line{b.shown(o), s})
			b.pending++
		}
	}
}

func (b *Buffer) pop() {
	last := len(b.lines) - 1
	b.pending--
	b.bytes -= len(b.lines[last].Text) + lineOverhead
	b.lines = b.lines[:last]
	if n := len(b.matches); n > 0 && b.matches[n-1] == b.first+last {
		b.matches = b.matches[:n-1]
	}
}

// is reports whether there is such a line.
func (o *openLine) is() bool { return len(o.text)+o.cut > 0 }

func (o *openLine) extend(text []byte) {
	o.returned = false
	room := min(max(MaxLineBytes-len(o.text), 0), len(text))
	o.text = append(o.text, text[:room]...)
	o.cut += len(text) - room
}

// end ends the line of a stream, and reports whether there was one: a carriage return alone is none.
func (b *Buffer) end(from Stream, with byte) bool {
	o := &b.open[from]
	if with == '\r' && !o.is() {
		return false
	}
	b.push(Line{b.shown(o), from})
	o.text, o.cut = o.text[:0], 0
	return true
}

func (b *Buffer) shown(o *openLine) string {
	text := b.Clean.Line(o.text)
	if o.cut > 0 {
		text += fmt.Sprintf(" [%d more bytes]", o.cut)
	}
	return text
}

// Note adds a line that no task wrote. A line without its end before it ends there.
func (b *Buffer) Note(from Stream, text string) {
	if o := &b.open[from]; o.is() {
		for b.pending > 0 {
			b.pop()
		}
		b.end(from, '\n')
	}
	b.push(Line{text, from})
}

func (b *Buffer) push(l Line) {
	if b.query != "" && Find(l.Text, b.query) >= 0 {
		b.matches = append(b.matches, b.first+len(b.lines))
	}
	b.lines = append(b.lines, l)
	b.bytes += len(l.Text) + lineOverhead
	if len(b.lines) > maxLines || b.bytes > maxBytes {
		b.trim()
	}
}

// trim drops the oldest lines.
func (b *Buffer) trim() {
	const keptLines, keptBytes = maxLines - maxLines/trimmedChunks, maxBytes - maxBytes/trimmedChunks
	drop := 0
	for drop < len(b.lines)-1 && (len(b.lines)-drop > keptLines || b.bytes > keptBytes) {
		b.bytes -= len(b.lines[drop].Text) + lineOverhead
		drop++
	}
	b.lines = append(b.lines[:0:0], b.lines[drop:]...)
	b.first += drop
	kept, _ := slices.BinarySearch(b.matches, b.first)
	b.matches = b.matches[kept:]
}

// Reset empties the buffer. The query stays.
func (b *Buffer) Reset() {
	*b = Buffer{Clean: b.Clean, query: b.query}
}

// Search looks for a text in all lines, and from now on in new ones.
func (b *Buffer) Search(query string) {
	b.query, b.matches = query, nil
	if query == "" {
		return
	}
	for i, l := range b.lines {
		if Find(l.Text, query) >= 0 {
			b.matches = append(b.matches, b.first+i)
		}
	}
}

// Len returns how many lines there are.
func (b *Buffer) Len() int { return len(b.lines) }

// First returns the number of the oldest line.
func (b *Buffer) First() int { return b.first }

// Line returns the line with a number.
func (b *Buffer) Line(n int) Line { return b.lines[n-b.first] }

// Query returns what is searched for, empty for nothing.
func (b *Buffer) Query() string { return b.query }

// Matches returns the numbers of the lines that have the query.
func (b *Buffer) Matches() []int { return b.matches }

// After returns the number after the last line's.
func (b *Buffer) After() int { return b.first + len(b.lines) }

// Find returns where in line the query is, -1 for nowhere. A query without capitals matches both cases.
func Find(line, query string) int {
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

// Replace sets all lines, unless they are the same.
func (b *Buffer) Replace(texts []string) {
	if slices.EqualFunc(b.lines, texts, func(l Line, text string) bool { return l.Text == text }) {
		return
	}
	b.Reset()
	for _, text := range texts {
		b.push(Line{Text: text})
	}
}
