package handlers_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/internal/must"
)

const ambiguousLength = "the length of the body must be given by Content-Length or by Transfer-Encoding, in " +
	"HTTP/1.1, and not by both"

// framed returns a request with these headers and this body.
func framed(proto, headers, body string) string {
	return "POST " + restartPath + " " + proto + "\r\nHost: x\r\nX-Nomad-Token: good\r\n" + headers + "\r\n" + body
}

// answers sends a text in pieces of so many bytes, and returns the statuses of all answers until the server closes the
// connection or none comes any more.
func answers(t *testing.T, c net.Conn, text string, piece int) []int {
	t.Helper()
	go func() {
		for len(text) > 0 {
			n := min(piece, len(text))
			if _, err := io.WriteString(c, text[:n]); err != nil {
				return // it was closed
			}
			text = text[n:]
		}
	}()
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	var statuses []int
	for reader := bufio.NewReader(c); ; {
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			return statuses
		}
		content := must.Get(io.ReadAll(response.Body))(t)
		// that is net/http's
		if text := string(content); response.StatusCode == 400 && text != ambiguousLength && text != "400 Bad Request" {
			t.Errorf("400 %q, want %q", content, ambiguousLength)
		}
		statuses = append(statuses, response.StatusCode)
	}
}

// TestAmbiguousLength: a request with Content-Length and Transfer-Encoding is refused and ends its connection, wherever
// it comes in a row of requests and however the bytes arrive; what only looks like it is answered.
func TestAmbiguousLength(t *testing.T) {
	const one = "HTTP/1.1"
	get := head("GET", "/v1/agent/health", goodToken, "")
	sized := framed(one, "Content-Length: 2\r\n", "{}")
	chunked := framed(one, "Transfer-Encoding: chunked\r\n", "2;x=Content-Length: 3\r\n{}\r\n0\r\n\r\n")
	trailer := framed(one, "transfer-encoding:chunked\r\nTrailer: X\r\n",
		"1\r\n{\r\n1\r\n}\r\n0\r\nX: 1\r\nContent-Length: 7\r\n\r\n")
	inside := "\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
	decoy := framed(one, fmt.Sprintf("Content-Length: %d\r\n", 2+len(inside)), "{}"+inside)
	decoyChunk := framed(one, "Transfer-Encoding: chunked\r\n",
		fmt.Sprintf("2\r\n{}\r\n%x\r\n%s\r\n0\r\n\r\n", len(inside), inside))
	both := framed(one, "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "2\r\n{}\r\n0\r\n\r\n")
	for name, test := range map[string]struct {
		text string
		want []int
	}{
		"neither":    {get + get, []int{200, 200}},
		"each alone": {sized + chunked + get + trailer + sized, []int{200, 200, 200, 200, 200}},
		"both":       {both + get, []int{400}},
		"the other order": {framed(one, "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
			"2\r\n{}\r\n0\r\n\r\n") + get, []int{400}},
		"in another case": {framed(one, "tRANSFER-eNCODING: CHUNKED\r\ncONTENT-lENGTH:2\r\n",
			"2\r\n{}\r\n0\r\n\r\n") + get, []int{400}},
		"bare line feeds": {strings.ReplaceAll(framed(one, "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
			""), "\r\n", "\n") + "2\r\n{}\r\n0\r\n\r\n" + get, []int{400}},
		"a length that is no number": {framed(one, "Content-Length: x\r\nTransfer-Encoding: chunked\r\n",
			"2\r\n{}\r\n0\r\n\r\n") + get, []int{400}},
		"after a body":                {sized + both + get, []int{200, 400}},
		"after chunks":                {chunked + both + get, []int{200, 400}},
		"after a trailer":             {trailer + both + get, []int{200, 400}},
		"after a request without one": {get + get + both + get, []int{200, 200, 400}},
		"in HTTP/1.0": {framed("HTTP/1.0", "Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n",
			"2\r\n{}\r\n0\r\n\r\n"), []int{400}},
		"an empty line after a body": {sized + "\r\n" + both + get, []int{200, 400}},
	} {
		for _, piece := range []int{1, 2, 7, 100, 4096} {
			synctest.Test(t, func(t *testing.T) {
				alloc := quietAlloc(t)
				dial, stop := bubbled(t, alloc)
				c := dial()
				if got := answers(t, c, test.text, piece); fmt.Sprint(got) != fmt.Sprint(test.want) {
					t.Errorf("%s, in pieces of %d: answered %d, want %d", name, piece, got, test.want)
				}
				_ = c.Close()
				stop()
			})
		}
	}
	// A body that looks like it is a body: these are refused by the handler, which takes one JSON value, or ignored by
	// it.
	for name, text := range map[string]string{"in a body": decoy, "in a chunk": decoyChunk} {
		s := newServer(t, quietAlloc(t))
		c := s.dial(t)
		if got := c.send(t, "POST", text); got.Body == ambiguousLength {
			t.Errorf("%s: %d %q", name, got.Status, got.Body)
		}
		if got := c.send(t, "GET", get); got.Status != 200 {
			t.Errorf("after one %s: %d %q", name, got.Status, got.Body)
		}
	}
}
