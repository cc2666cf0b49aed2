package transport

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
)

// ambiguous returns the number of the first head in a text that gives its length twice, 0 for none, when it comes in
// pieces.
func ambiguous(pieces ...[]byte) int64 {
	var f framing
	for _, piece := range pieces {
		f.feed(piece)
	}
	return f.bad.Load()
}

// FuzzFraming compares what is seen of the requests on a connection with what net/http reads of them.
func FuzzFraming(f *testing.F) {
	for _, seed := range []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}" +
			"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\n{}\r\n0\r\nA: b\r\n\r\n" +
			"POST / HTTP/1.1\nHost: x\ntransfer-encoding: chunked\ncontent-length: 0\n\n0\r\n\r\n",
		"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nX: y\r\n Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	} {
		f.Add([]byte(seed), uint16(20))
	}
	f.Fuzz(func(t *testing.T, text []byte, at uint16) {
		middle := min(int(at), len(text))
		got := ambiguous(text[:middle], text[middle:])
		if whole := ambiguous(text); whole != got {
			t.Fatalf("whole: %d, in pieces: %d", whole, got)
		}
		source := bytes.NewReader(text)
		reader := bufio.NewReader(source)
		for number := int64(1); ; number++ {
			begin := len(text) - source.Len() - reader.Buffered()
			r, err := http.ReadRequest(reader)
			if err != nil {
				return // net/http ends the connection
			}
			raw := string(text[begin : len(text)-source.Len()-reader.Buffered()])
			length, coding := false, false
			for line := range strings.Lines(raw) {
				length = length || strings.HasPrefix(strings.ToLower(line), "content-length:")
				coding = coding || strings.HasPrefix(strings.ToLower(line), "transfer-encoding:")
			}
			if coding && (length || r.ProtoMinor == 0) && r.ProtoMajor == 1 {
				if got != number {
					t.Fatalf("request %d is ambiguous, and %d is taken for it", number, got)
				}
				return
			}
			if got == number {
				t.Fatalf("request %d is taken for an ambiguous one", number)
			}
			if _, err := io.Copy(io.Discard, r.Body); err != nil || r.Close {
				return
			}
		}
	})
}
