// Package strictjson reads small JSON documents of strangers on which a decision depends: token headers, token claims,
// key sets. There is only one way to read a document that it accepts. The document is RFC 8259 text in UTF-8, without a
// byte order mark, NUL, unpaired surrogates or anything after it. Names in an object differ by more than their case,
// whereas encoding/json takes "EXP" for "exp", and the last of two. Numbers are read as integers only where the caller
// wants one, and never rounded. Depth, open names and names in all are bounded. Blanks between values are legal.
//
// encoding/json says whether a document is JSON at all, and the rules above are the reader's. It builds no tree:
// strings without escapes are parts of the input. No error quotes the input.
package strictjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
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

type frame struct {
	closer byte
	base   int // where the object's names begin
}

// notRead is the mistake of a caller that leaves a member, or the rest of the document, unread.
const notRead = "a value was not read"

// Reset starts reading a document.
func (r *Reader) Reset(document string, limits Limits) {
	*r = Reader{in: document, limits: limits}
	r.limits.Depth = min(limits.Depth, maxDepth)
	if !utf8.ValidString(document) {
		r.fail("not valid UTF-8")
		return
	}
	// All that follows relies on this: where a value begins, there is a whole one.
	if text := []byte(document); !json.Valid(text) {
		r.fail("not valid JSON")
		if syntax, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(text, new(any))); ok {
			r.err.Offset = int(syntax.Offset)
		}
	}
}

// fail keeps the first error.
func (r *Reader) fail(msg string) {
	if !r.failed {
		r.failed, r.err = true, Error{Offset: r.pos, Msg: msg}
	}
}

// End returns the first error.
func (r *Reader) End() *Error {
	if r.peek(); r.depth != 0 || r.pos != len(r.in) {
		r.fail(notRead)
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
	f := r.frames[r.depth-1]
	if r.peek() == f.closer {
		r.pos++
		r.depth--
		r.open = f.base
		return false
	}
	if f.closer == '}' {
		r.member(f.base)
	}
	return !r.failed
}

// member reads a name and its colon.
func (r *Reader) member(base int) {
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
		r.fail(notRead)
	}
	r.pos++
	r.name = name
}

// Name returns the name of the member that Next stepped to.
func (r *Reader) Name() string { return r.name }

// IsString reports whether the next value is a string.
func (r *Reader) IsString() bool { return r.peek() == '"' }

// peek skips blanks and commas and returns the next byte, or 0 at the end.
func (r *Reader) peek() byte {
	for ; r.pos < len(r.in); r.pos++ {
		switch c := r.in[r.pos]; c {
		case ' ', '\t', '\n', '\r', ',':
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
	case 'a' <= c && c <= 'z': // true, false or null
		r.over("aeflnrstu")
	default:
		if _, err := strconv.ParseFloat(r.number(), 64); err != nil {
			r.fail("a number that does not fit a float64")
		}
	}
}

func (r *Reader) number() string {
	if c := r.peek(); c != '-' && (c < '0' || c > '9') {
		r.fail("want a number")
	}
	return r.over("+-.0123456789Ee")
}

// over steps over the bytes of a set and returns them; nothing after an error.
func (r *Reader) over(set string) string {
	start := r.pos
	for !r.failed && r.pos < len(r.in) && strings.IndexByte(set, r.in[r.pos]) >= 0 {
		r.pos++
	}
	return r.in[start:r.pos]
}

// Text reads a string. Without escapes it is a part of the document, not a copy.
func (r *Reader) Text() string {
	if r.peek() != '"' {
		r.fail("want a string")
	}
	if r.failed {
		return ""
	}
	start, escaped := r.pos, false
	for r.pos++; r.in[r.pos] != '"'; r.pos++ {
		if r.in[r.pos] == '\\' {
			escaped = true
			r.pos++
		}
	}
	r.pos++
	if !escaped {
		return r.in[start+1 : r.pos-1]
	}
	return r.unescaped(r.in[start:r.pos])
}

// whole matches an escape that is no half of a surrogate pair.
var whole = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\\(?:[^u]|u(?:[^dD]...|[dD][0-7]..|[dD][89abAB]..\\u[dD][c-fC-F]..))`)
})

// unescaped returns the text of a string with escapes. encoding/json would take another character for half of a
// surrogate pair.
func (r *Reader) unescaped(quoted string) (text string) {
	if strings.Contains(whole().ReplaceAllLiteralString(quoted, ""), `\`) {
		r.fail("half of a surrogate pair")
	}
	_ = json.Unmarshal([]byte(quoted), &text) // it is a string
	if strings.IndexByte(text, 0) >= 0 {
		r.fail("an escaped NUL")
	}
	return text
}
