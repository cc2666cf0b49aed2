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

// stream says which output of a task a line is from.
type stream int

const (
	fromStdout stream = iota
	fromStderr
	streamCount
)

func (s stream) String() string { return [...]string{"stdout", "stderr"}[s] }

// line is a line of a text, safe for the terminal.
type line struct {
	text   string
	stream stream
}

// buffer holds the latest lines of a text within maxLines and maxBytes. Lines are numbered from the first one that ever
// was, so that a number stays that of its line while older ones are dropped.
type buffer struct {
	clean cleaner
	lines []line
	first int // number of the oldest line
	bytes int

	open    [streamCount]openLine
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

// write adds text as a task wrote it. A carriage return ends a line, too: a terminal would write over what stands
// before it.
func (b *buffer) write(from stream, text []byte) {
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
	for _, s := range []stream{1 - from, from} {
		if o := &b.open[s]; o.is() {
			b.push(line{b.shown(o), s})
			b.pending++
		}
	}
}

// pop removes the last line, which is pending.
func (b *buffer) pop() {
	last := len(b.lines) - 1
	b.pending--
	b.bytes -= len(b.lines[last].text) + lineOverhead
	b.lines = b.lines[:last]
	if n := len(b.matches); n > 0 && b.matches[n-1] == b.first+last {
		b.matches = b.matches[:n-1]
	}
}

// is reports whether there is such a line.
func (o *openLine) is() bool { return len(o.text)+o.cut > 0 }

// extend adds to the line.
func (o *openLine) extend(text []byte) {
	o.returned = false
	room := min(max(maxLineBytes-len(o.text), 0), len(text))
	o.text = append(o.text, text[:room]...)
	o.cut += len(text) - room
}

// end ends the line of a stream, and reports whether there was one: a carriage return alone is none.
func (b *buffer) end(from stream, with byte) bool {
	o := &b.open[from]
	if with == '\r' && !o.is() {
		return false
	}
	b.push(line{b.shown(o), from})
	o.text, o.cut = o.text[:0], 0
	return true
}

func (b *buffer) shown(o *openLine) string {
	text := b.clean.line(o.text)
	if o.cut > 0 {
		text += fmt.Sprintf(" [%d more bytes]", o.cut)
	}
	return text
}

// note adds a line that no task wrote. A line without its end before it ends there.
func (b *buffer) note(from stream, text string) {
	if o := &b.open[from]; o.is() {
		for b.pending > 0 {
			b.pop()
		}
		b.end(from, '\n')
	}
	b.push(line{text, from})
}

func (b *buffer) push(l line) {
	if b.query != "" && matchIn(l.text, b.query) >= 0 {
		b.matches = append(b.matches, b.first+len(b.lines))
	}
	b.lines = append(b.lines, l)
	b.bytes += len(l.text) + lineOverhead
	if len(b.lines) > maxLines || b.bytes > maxBytes {
		b.trim()
	}
}

// trim drops the oldest lines.
func (b *buffer) trim() {
	const keptLines, keptBytes = maxLines - maxLines/trimmedChunks, maxBytes - maxBytes/trimmedChunks
	drop := 0
	for drop < len(b.lines)-1 && (len(b.lines)-drop > keptLines || b.bytes > keptBytes) {
		b.bytes -= len(b.lines[drop].text) + lineOverhead
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
	for i, l := range b.lines {
		if matchIn(l.text, query) >= 0 {
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
func (b *buffer) replace(texts []string) {
	if slices.EqualFunc(b.lines, texts, func(l line, text string) bool { return l.text == text }) {
		return
	}
	b.reset()
	for _, text := range texts {
		b.push(line{text: text})
	}
}
