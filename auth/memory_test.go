package auth_test

import (
	"bytes"
	"encoding/base64"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

// What the door remembers of a token holds no byte of its signature: not as text, not decoded. The claims are known to whoever
// looks into the process; they are no secret, and useless without the signature.
func TestSignaturesAreNotKept(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's own memory is not what is tested")
	}
	w := newWorld(t)
	var hidden [][]byte // the signatures as text, each byte inverted, so that the test itself does not keep them
	use := func() {
		for n := range 20 {
			token := w.token(web)
			if n%2 == 1 {
				token = forge(token, n)
			}
			w.ask(token, web)
			w.ask(token, web)
			hidden = append(hidden, inverted([]byte(token[strings.LastIndexByte(token, '.')+1:])))
		}
	}
	use()
	if s := w.door.Stats(); s.Cached.Good != 10 || s.Cached.Bad != 10 {
		t.Fatalf("remembered: %+v", s.Cached)
	}
	kept := inverted(hidden[0]) // one is kept by the test, to see that the search finds it
	heap := heapDump(t)
	if !bytes.Contains(heap, kept) {
		t.Error("the search does not find what is there")
	}
	for _, h := range hidden[1:] {
		text := inverted(h)
		raw := make([]byte, 64)
		if _, err := base64.RawURLEncoding.Decode(raw, text); err != nil {
			t.Fatal(err)
		}
		for _, part := range [][]byte{text[:16], text[16:32], text[70:], raw[:16], raw[32:48]} {
			if bytes.Contains(heap, part) && !bytes.Equal(part, make([]byte, 16)) {
				t.Fatal("a part of a signature is in memory")
			}
		}
	}
	runtime.KeepAlive(kept)
	runtime.KeepAlive(w)
}

func inverted(b []byte) []byte {
	out := make([]byte, len(b))
	for i := range b {
		out[i] = ^b[i]
	}
	return out
}

// heapDump is every live object of the process.
func heapDump(t *testing.T) []byte {
	t.Helper()
	f, err := os.Create(t.TempDir() + "/heap")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	runtime.GC() // twice: pools keep what they have through one collection
	runtime.GC()
	debug.WriteHeapDump(f.Fd())
	heap, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return heap
}
