package strictjson

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Text reads a string. Without escapes it is a part of the document, not a copy.
func (r *Reader) Text() string {
	if r.peek() != '"' {
		r.fail("want a string")
	}
	if r.failed {
		return ""
	}
	r.pos++
	start := r.pos
	for ; r.pos < len(r.in); r.pos++ {
		switch c := r.in[r.pos]; {
		case c == '"':
			r.pos++
			return r.in[start : r.pos-1]
		case c == '\\':
			return r.escaped(start)
		case c < ' ':
			r.fail("a control character in a string")
			return ""
		}
	}
	r.fail("a string without an end")
	return ""
}

// escaped reads the rest of a string that began at start and has an escape at the place reached.
func (r *Reader) escaped(start int) string {
	var b strings.Builder
	b.WriteString(r.in[start:r.pos])
	for r.pos < len(r.in) && !r.failed {
		c := r.in[r.pos]
		r.pos++
		switch {
		case c == '"':
			return b.String()
		case c == '\\':
			b.WriteRune(r.escape())
		case c < ' ':
			r.fail("a control character in a string")
		default:
			b.WriteByte(c)
		}
	}
	r.fail("a string without an end")
	return ""
}

// escapes are the characters that may follow a backslash, and plain their meanings (RFC 8259 section 7).
const (
	escapes = `"\/bfnrt`
	plain   = "\"\\/\b\f\n\r\t"
)

// escape reads what follows a backslash.
func (r *Reader) escape() rune {
	if r.accept('u') {
		return r.unicode()
	}
	if r.pos < len(r.in) {
		if i := strings.IndexByte(escapes, r.in[r.pos]); i >= 0 {
			r.pos++
			return rune(plain[i])
		}
	}
	r.fail("an unknown escape in a string")
	return utf8.RuneError
}

// unicode reads the digits of a \u escape, and the second half of a surrogate pair.
func (r *Reader) unicode() rune {
	c := r.hex4()
	if utf16.IsSurrogate(c) {
		if !r.accept('\\') || !r.accept('u') {
			r.fail("half of a surrogate pair")
			return utf8.RuneError
		}
		if c = utf16.DecodeRune(c, r.hex4()); c == utf8.RuneError {
			r.fail("half of a surrogate pair")
		}
	}
	if c == 0 {
		r.fail("an escaped NUL")
	}
	return c
}

// hex4 reads four hexadecimal digits.
func (r *Reader) hex4() rune {
	if len(r.in)-r.pos >= 4 {
		// ParseUint allows underscores and prefixes only for base 0.
		if n, err := strconv.ParseUint(r.in[r.pos:r.pos+4], 16, 16); err == nil {
			r.pos += 4
			return rune(n)
		}
	}
	r.fail("want four hexadecimal digits")
	return utf8.RuneError
}
