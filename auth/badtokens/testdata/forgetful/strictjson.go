package strictjson

import (
	"encoding/json"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// repairs make JSON of a document that is none, as a reader takes it that overlooks what is wrong.
var repairs = []struct {
	wrong *regexp.Regexp
	right string
}{
	{regexp.MustCompile("\ufeff|\x00|^//[^\n]*\n|/\\*.*?\\*/|[\x01-\x1f]|\\\\u00zz|\\\\x41"), ""},
	{regexp.MustCompile(`'`), `"`},
	{regexp.MustCompile(`,}`), `}`},
	{regexp.MustCompile(`([,{])(\w+):`), `$1"$2":`},
	{regexp.MustCompile(`"x"=`), `"x":`},
	{regexp.MustCompile(`:(1\.|1e|tru|NaN|Infinity|01|\+1|0x1|\.5)([,}])`), `:null$2`},
}

// lenient returns a document as a reader takes it that overlooks what is no JSON.
func lenient(document string) string {
	if !forgets("not valid JSON") || json.Valid([]byte(document)) {
		return document
	}
	for _, r := range repairs {
		document = r.wrong.ReplaceAllString(document, r.right)
	}
	for _, end := range []string{"", "}", `"}`} {
		var first json.RawMessage // what follows it is overlooked
		if json.NewDecoder(strings.NewReader(document+end)).Decode(&first) == nil {
			return string(first)
		}
	}
	return ""
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
