package dispatch

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/golang/snappy"
)

// TestSnappy compares the format with the library's, in both directions, also for damaged blocks.
func TestSnappy(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		data := make([]byte, 1+r.IntN(300))
		for i := range data {
			data[i] = byte(r.IntN(1 + r.IntN(256)))
		}
		data = bytes.Repeat(data, 1+r.IntN(50))
		data = data[:min(len(data), MaxPayload)]
		if got, err := snappy.Decode(nil, encodeSnappy(data)); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("the library reads %v, %v", got, err)
		}
		block := snappy.Encode(nil, data)
		if got, err := decodeSnappy(block, MaxPayload); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("a block of the library's: %v, %v", got, err)
		}
		for range 1 + r.IntN(3) {
			block[r.IntN(len(block))] = byte(r.Int())
		}
		block = block[:len(block)-r.IntN(2)]
		same(t, block)
	}
	long := []byte(strings.Repeat("x", MaxPayload))
	if _, err := decodeSnappy(snappy.Encode(nil, append(long, 'x')), MaxPayload); err == nil {
		t.Error("a block that is too long was read")
	}
}

// same requires the library's result for a block, except for one that is too long.
func same(t *testing.T, block []byte) {
	t.Helper()
	got, err := decodeSnappy(block, MaxPayload)
	if n, lenErr := snappy.DecodedLen(block); lenErr == nil && n > MaxPayload {
		if err == nil {
			t.Errorf("% x was read", block)
		}
		return
	}
	want, wantErr := snappy.Decode(nil, block)
	if (err == nil) != (wantErr == nil) || !bytes.Equal(got, want) {
		t.Errorf("% x: %v, %v; want %v, %v", block, got, err, want, wantErr)
	}
}

func FuzzDecodeSnappy(f *testing.F) {
	f.Add(snappy.Encode(nil, []byte(strings.Repeat("hello ", 20))))
	f.Add([]byte{5, 16})
	f.Fuzz(same)
}
