package auth_test

import (
	"encoding/base64"
	"reflect"
	"strings"
	"testing"

	"taskapi/internal/must"
)

// The caches hold no byte of a token's signature: not as text, not decoded. A reader of the process's memory finds the
// claims, which are no secret, and useless without the signature.
func TestSignaturesAreNotKept(t *testing.T) {
	w := newFixture(t)
	var tokens []string
	for n := range 20 {
		token := w.token(web)
		if n%2 == 1 { // with the signature of another
			other := w.token(web)
			token = token[:strings.LastIndexByte(token, '.')] + other[strings.LastIndexByte(other, '.'):]
		}
		w.ask(token, web)
		w.ask(token, web)
		tokens = append(tokens, token)
	}
	if s := w.authenticator.Stats(); s.Cached.Good != 10 || s.Cached.Bad != 10 {
		t.Fatalf("remembered: %+v", s.Cached)
	}
	seen := newWalk()
	seen.value(reflect.ValueOf(w.authenticator))
	kept := seen.text.String()
	if !strings.Contains(kept, claimsOf(web).Subject) {
		t.Fatal("the walk does not find what is there")
	}
	for _, token := range tokens {
		text := token[strings.LastIndexByte(token, '.')+1:]
		raw := must.Get(base64.RawURLEncoding.DecodeString(text))(t)
		for i := range 8 {
			if strings.Contains(kept, text[i*8:i*8+16]) || strings.Contains(kept, string(raw[i*8:i*8+8])) {
				t.Fatal("a part of a signature is kept")
			}
		}
	}
}

// walk collects all text and bytes that can be reached from a value.
type walk struct {
	text strings.Builder
	been map[reach]bool
}

type reach struct {
	at uintptr
	as reflect.Type
}

func newWalk() *walk { return &walk{been: map[reach]bool{}} }

func (w *walk) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		w.text.WriteString(v.String() + "\n")
	case reflect.Pointer:
		if at := (reach{v.Pointer(), v.Type()}); !v.IsNil() && !w.been[at] {
			w.been[at] = true
			w.value(v.Elem())
		}
	case reflect.Interface:
		w.value(v.Elem())
	case reflect.Struct:
		for _, field := range v.Fields() {
			w.value(field)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if v.Index(i).Kind() == reflect.Uint8 {
				w.text.WriteByte(byte(v.Index(i).Uint()))
			} else {
				w.value(v.Index(i))
			}
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next(); {
			w.value(entries.Key())
			w.value(entries.Value())
		}
	default: // numbers, functions, channels
	}
}
