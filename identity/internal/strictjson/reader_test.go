package strictjson_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskapi/identity/internal/strictjson"
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
	if err := r.End(); err != nil {
		t.Fatal(err)
	}
	want := []string{"strueaé\n", "ifalse -12", "x", "y", "o.i7"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}

func TestErrorsSayWhere(t *testing.T) {
	for document, want := range map[string]strictjson.Error{
		``:                            {Offset: 0, Msg: "want a value"},
		`{"a":1,"a":2}`:               {Offset: 10, Msg: "a name given twice, or in two cases"},
		`{"a":1} x`:                   {Offset: 8, Msg: "data after the document"},
		`[[[[[]]]]]`:                  {Offset: 4, Msg: "nested too deep"},
		"{\"a\":\"\x00\"}":            {Offset: 0, Msg: "a NUL byte"},
		`{"a":"\ud83d"}`:              {Offset: 12, Msg: "half of a surrogate pair"},
		`["` + strings.Repeat("a", 9): {Offset: 11, Msg: "a string without an end"},
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
		if err := r.End(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("values (-encoding/json +ours):\n%s", diff)
		}
	})
}
