package strictjson_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskapi/identity/internal/strictjson"
	"taskapi/internal/must"
)

var limits = strictjson.Limits{Depth: 4, Names: 100}

func TestReaderWalks(t *testing.T) {
	var r strictjson.Reader
	r.Reset(" { \"s\" : \"a\\u00e9\\n\" , \"i\": -12 ,\"list\":[ \"x\" "+
		",\"y\"],\"o\":{\"i\":7},\"skipped\":[{\"a\":[1.5e-3]},null] }\n", limits)
	var got []string
	for r.Object(); r.Next(); {
		switch name := r.Name(); name {
		case "s":
			got = append(got, name+fmt.Sprint(r.IsString(), r.Text()))
		case "i":
			got = append(got, name+fmt.Sprint(r.IsString(), r.Int()))
		case "list":
			for r.Array(); r.Next(); {
				got = append(got, r.Text())
			}
		case "o":
			for r.Object(); r.Next(); {
				got = append(got, name+"."+r.Name()+fmt.Sprint(r.Int()))
			}
		default:
			r.Skip()
		}
	}
	must.OK(t, r.End())
	want := []string{"strueaé\n", "ifalse -12", "x", "y", "o.i7"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}

func TestErrorsSayWhere(t *testing.T) {
	for document, want := range map[string]strictjson.Error{
		``:                            {Offset: 0, Msg: "not valid JSON"},
		`{"a":1,"a":2}`:               {Offset: 10, Msg: "a name given twice, or in two cases"},
		`{"a":1} x`:                   {Offset: 9, Msg: "not valid JSON"},
		`[[[[[]]]]]`:                  {Offset: 4, Msg: "nested too deep"},
		"{\"a\":\"\x00\"}":            {Offset: 7, Msg: "not valid JSON"},
		`{"a":"\ud83d"}`:              {Offset: 13, Msg: "half of a surrogate pair"},
		`["` + strings.Repeat("a", 9): {Offset: 11, Msg: "not valid JSON"},
	} {
		var r strictjson.Reader
		r.Reset(document, limits)
		r.Skip()
		err := r.End()
		if diff := cmp.Diff(&want, err); diff != "" {
			t.Errorf("%q (-want +got):\n%s", document, diff)
		}
	}
}

// TestSurrogates: halves of a surrogate pair are refused wherever they stand, and what only looks like one is not.
func TestSurrogates(t *testing.T) {
	for text, want := range map[string]bool{
		`\ud83d\ude00`: true, `\\ud800`: true, `a\\\\ude00`: true, `\uD83D\uDE00\n`: true, `\u0041\ud7ff\ue000`: true,
		`\uFFFD`: true,
		`\ud800`: false, `\ude00`: false, `\ude00\ud83d`: false, `\ud83d\u0041`: false, `\ud83d\\ude00`: false,
		`\ud83d\ud83d\ude00`: false,
		`\ud83d\ude00\ude00`: false, `\\\udfff`: false, `\uDBFFa\uDFFF`: false, `\ud800 \\ufffd`: false,
	} {
		var r strictjson.Reader
		r.Reset(`["`+text+`"]`, limits)
		r.Skip()
		if err := r.End(); (err == nil) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestUnreadValues: a caller that forgets to read a value gets an error.
func TestUnreadValues(t *testing.T) {
	for _, document := range []string{`{"a":"x","b":1}`, `{"a":1}`, `{"a":{"b":1}}`, `[1]`} {
		var r strictjson.Reader
		r.Reset(document, limits)
		if document[0] == '{' {
			r.Object()
			r.Next()
			r.Next()
		}
		if r.End() == nil {
			t.Errorf("%s: no error", document)
		}
	}
}

func TestAfterAnErrorNothingIsRead(t *testing.T) {
	var r strictjson.Reader
	r.Reset(`{"a":1}`, limits)
	r.Array()
	first := r.End()
	r.Object()
	if r.Next() || r.Int() != 0 || r.Text() != "" {
		t.Error("something was read after an error")
	}
	r.Skip()
	if diff := cmp.Diff(first, r.End()); diff != "" {
		t.Errorf("error (-first +last):\n%s", diff)
	}
}

// FuzzReader skips through a document and, where it is an object of strings, reads it. What it accepts encoding/json
// accepts too and reads alike.
func FuzzReader(f *testing.F) {
	for _, seed := range []string{
		`{"a":1,"b":[true,false,null],"c":{"d":"e"}}`, `{"x":"\ud83d\ude00\u00e9\/"}`, `[1e5,-0,0.5,12]`, `"a"`, ` [ ] `,
		`{"a":"b","A":"c"}`, `{"a":"\u0000"}`, "{\"\xff\":1}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, document string) {
		var r strictjson.Reader
		r.Reset(document, limits)
		r.Skip()
		if r.End() != nil {
			return
		}
		if !json.Valid([]byte(document)) {
			t.Fatal("accepted what encoding/json refuses")
		}
		want := map[string]string{}
		if json.Unmarshal([]byte(document), &want) != nil || strings.Contains(document, "null") {
			return // null reads as an empty string there
		}
		got := map[string]string{}
		r.Reset(document, limits)
		for r.Object(); r.Next(); {
			name := r.Name()
			got[name] = r.Text()
		}
		must.OK(t, r.End())
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("values (-encoding/json +ours):\n%s", diff)
		}
	})
}
