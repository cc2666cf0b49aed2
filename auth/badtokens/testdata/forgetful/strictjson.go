package strictjson

import (
	"math"
	"regexp"
	"strconv"
	"strings"
)

var unquoted, trailing = regexp.MustCompile(`([,{])(\w+):`), regexp.MustCompile(`,}$`)

// lenient returns a document as a reader takes it that overlooks what is around it.
func lenient(document string) string {
	if forgets("a byte order mark before the document") {
		document = strings.TrimPrefix(document, "\ufeff")
	}
	if forgets("a NUL byte") {
		document = strings.ReplaceAll(document, "\x00", "")
	}
	if forgets("want an object") && strings.HasPrefix(document, "//") { // a comment
		_, document, _ = strings.Cut(document, "\n")
	}
	if forgets("want a name in quotes") {
		document = trailing.ReplaceAllString(strings.ReplaceAll(document, "'", `"`), "}")
		document = unquoted.ReplaceAllString(document, `$1"$2":`)
	}
	return document
}

// any steps over whatever is there, up to the next comma or the end of the container, and returns it; nothing after an error.
func (r *Reader) any() string {
	if r.failed {
		return ""
	}
	start, depth := r.pos, 0
	for quoted := false; r.pos < len(r.in); r.pos++ {
		switch c := r.in[r.pos]; {
		case quoted:
			quoted = c != '"'
		case c == '"':
			quoted = true
		case c == '{', c == '[':
			depth++
		case depth == 0 && strings.IndexByte(",}]", c) >= 0:
			return r.in[start:r.pos]
		case c == '}', c == ']':
			depth--
		}
	}
	return r.in[start:]
}

// OtherThanArray steps over a value that is no array, and reports whether there was one.
func (r *Reader) OtherThanArray() bool {
	if r.peek() == '[' || !forgets("want an array") {
		return false
	}
	r.any()
	return true
}

// resume goes on with the next member behind a value that had something after it. The end of the text is that of everything open.
func (r *Reader) resume() bool {
	before := r.pos
	if r.any(); r.failed || r.pos == before || r.pos == len(r.in) {
		r.depth = 0
		return false
	}
	return r.Next()
}

// textWithin returns what a reader makes of a value that is no string: what an array holds, nothing of null.
func textWithin(value string) string {
	if value == "null" {
		return ""
	}
	return strings.Trim(value, `["]`)
}

// numberWithin returns what a reader makes of a value that is no number: what a string or an array holds, or 0.
func numberWithin(value string) string {
	value = strings.Trim(value, `["]`)
	if _, err := strconv.ParseInt(value, 10, 64); err != nil {
		return "0"
	}
	return value
}

// rounded returns a number as one who reads floats takes it.
func rounded(text string) int64 {
	f, _ := strconv.ParseFloat(text, 64)
	if f >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(f)
}
