// Package strictjson reads small JSON documents of strangers on which a decision depends: token headers, token claims,
// key sets. There is only one way to read a document that it accepts. The document is RFC 8259 text in UTF-8, without a
// byte order mark, NUL, unpaired surrogates or anything after it. Names in an object differ by more than their case,
// whereas encoding/json takes "EXP" for "exp", and the last of two. Numbers are read as integers only where the caller
// wants one, and never rounded. Depth, open names and names in all are bounded. Blanks between values are legal.
//
// The reader builds no tree, allocates nothing for text without escapes, since strings are parts of the input, and
// quotes no input in an error.
package strictjson

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth bounds Limits.Depth, since the reader holds its frames in an array. Nothing that taskapi reads nests deeper
// than four.
const maxDepth = 8

// openNames bounds the names of the objects that are open at a time. They are held in an array, and each new one is
// compared with those before it in its object. Nomad writes about twelve.
const openNames = 64

// Limits bound one document.
type Limits struct {
	Depth int // nested containers, the outermost included; at most 8
	Names int // names of all objects together
}

// Error says what is wrong with a document, and where. It holds no byte of the document.
type Error struct {
	Offset int // where reading stopped, in bytes
	Msg    string
}

func (e *Error) Error() string { return fmt.Sprintf("%s (at byte %d)", e.Msg, e.Offset) }

// Reader walks one document. After the first error every call does nothing and returns a zero value, so a caller checks
// the error once, at the end:
//
//	var r strictjson.Reader
//	r.Reset(text, limits)
//	for r.Object(); r.Next(); {
//		switch r.Name() {
//		case "exp":
//			exp = r.Int()
//		default:
//			r.Skip()
//		}
//	}
//	err := r.End()
//
// Each member must be read or skipped exactly once.
type Reader struct {
	in     string
	pos    int
	limits Limits
	name   string
	names  [openNames]string // of the objects that are open, outermost first
	open   int               // how many of them
	total  int               // names so far, those of closed objects too
	frames [maxDepth]frame
	depth  int
	failed bool
	err    Error
}

// frame is one open object or array.
type frame struct {
	closer byte
	begun  bool // a member or element was read
	base   int  // where the object's names begin
}

// Reset starts reading a document.
func (r *Reader) Reset(document string, limits Limits) {
	*r = Reader{in: document, limits: limits}
	r.limits.Depth = min(limits.Depth, maxDepth)
	switch {
	case !utf8.ValidString(document):
		r.fail("not valid UTF-8")
	case strings.HasPrefix(document, "\ufeff"):
		r.fail("a byte order mark before the document")
	case strings.IndexByte(document, 0) >= 0:
		r.fail("a NUL byte")
	}
}

// fail keeps the first error.
func (r *Reader) fail(msg string) {
	if !r.failed {
		r.failed, r.err = true, Error{Offset: r.pos, Msg: msg}
	}
}

// End returns the first error. Anything but blanks after the document is an error.
func (r *Reader) End() *Error {
	if r.peek(); !r.failed && (r.depth != 0 || r.pos != len(r.in)) {
		r.fail("data after the document")
	}
	if !r.failed {
		return nil
	}
	err := r.err // not the reader, which would escape to the heap with it
	return &err
}

// Object enters an object. Next then walks its members.
func (r *Reader) Object() { r.enter('{', '}', "want an object") }

// Array enters an array. Next then walks its elements.
func (r *Reader) Array() { r.enter('[', ']', "want an array") }

func (r *Reader) enter(opener, closer byte, want string) {
	if r.peek() != opener {
		r.fail(want)
		return
	}
	if r.depth >= r.limits.Depth {
		r.fail("nested too deep")
		return
	}
	r.pos++
	r.frames[r.depth] = frame{closer: closer, base: r.open}
	r.depth++
}

// Next steps to the next member or element of the innermost container, and reports whether there is one. At the end, or
// after an error, the container is left.
func (r *Reader) Next() bool {
	if r.failed || r.depth == 0 {
		return false
	}
	f := &r.frames[r.depth-1]
	c := r.peek()
	if c == f.closer {
		r.pos++
		r.depth--
		r.open = f.base
		return false
	}
	if f.begun {
		if c != ',' {
			r.fail("want a comma or the end of the object or array")
			return false
		}
		r.pos++
	}
	f.begun = true
	if f.closer == '}' {
		r.member(f.base)
	}
	return !r.failed
}

// member reads a name and its colon.
func (r *Reader) member(base int) {
	if r.peek() != '"' {
		r.fail("want a name in quotes")
		return
	}
	name := r.Text()
	for _, other := range r.names[base:r.open] {
		if strings.EqualFold(other, name) {
			r.fail("a name given twice, or in two cases")
			return
		}
	}
	if r.total++; r.total > r.limits.Names || r.open == openNames {
		r.fail("too many names")
		return
	}
	r.names[r.open] = name
	r.open++
	if r.peek() != ':' {
		r.fail("want a colon after a name")
		return
	}
	r.pos++
	r.name = name
}

// Name returns the name of the member that Next stepped to.
func (r *Reader) Name() string { return r.name }

// IsString reports whether the next value is a string.
func (r *Reader) IsString() bool { return r.peek() == '"' }

// peek skips blanks and returns the next byte, or 0 at the end.
func (r *Reader) peek() byte {
	for ; r.pos < len(r.in); r.pos++ {
		switch c := r.in[r.pos]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// Int reads an integer: digits with at most a minus before them, neither fraction nor exponent.
func (r *Reader) Int() int64 {
	text := r.number()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || text == "-0" {
		r.fail("want an integer that fits 64 bits, without fraction or exponent")
		return 0
	}
	return n
}

// Skip reads any value and forgets it. The same rules hold for it as for others.
func (r *Reader) Skip() {
	switch c := r.peek(); {
	case r.failed:
	case c == '{':
		for r.Object(); r.Next(); {
			r.Skip()
		}
	case c == '[':
		for r.Array(); r.Next(); {
			r.Skip()
		}
	case c == '"':
		r.Text()
	case c == 't':
		r.word("true")
	case c == 'f':
		r.word("false")
	case c == 'n':
		r.word("null")
	case c != '-' && (c < '0' || c > '9'):
		r.fail("want a value")
	default:
		if _, err := strconv.ParseFloat(r.number(), 64); err != nil {
			r.fail("a number that does not fit a float64")
		}
	}
}

func (r *Reader) word(w string) {
	if !strings.HasPrefix(r.in[r.pos:], w) {
		r.fail("want a value")
		return
	}
	r.pos += len(w)
}

// number reads a number by the grammar of RFC 8259 section 6 and returns its text.
func (r *Reader) number() string {
	r.peek()
	if r.failed {
		return ""
	}
	start := r.pos
	r.accept('-')
	if r.accept('0') {
		if r.digits() {
			r.fail("a number with a leading zero")
		}
	} else if !r.digits() {
		r.fail("want a number")
	}
	if r.accept('.') && !r.digits() {
		r.fail("want digits after the point")
	}
	if r.accept('e') || r.accept('E') {
		if !r.accept('+') {
			r.accept('-')
		}
		if !r.digits() {
			r.fail("want digits in the exponent")
		}
	}
	return r.in[start:r.pos]
}

// accept steps over c if it is next.
func (r *Reader) accept(c byte) bool {
	if r.pos >= len(r.in) || r.in[r.pos] != c {
		return false
	}
	r.pos++
	return true
}

// digits steps over decimal digits and reports whether there was one.
func (r *Reader) digits() bool {
	start := r.pos
	for r.pos < len(r.in) && '0' <= r.in[r.pos] && r.in[r.pos] <= '9' {
		r.pos++
	}
	return r.pos > start
}
