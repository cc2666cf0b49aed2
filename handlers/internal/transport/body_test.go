package transport

import (
	"bufio"
	"io"
	"net/http"
	"testing"
	"testing/synctest"

	"taskapi/internal/must"
)

// TestBodyIsForgotten: a connection without a request holds nothing of the request before.
func TestBodyIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var conn *Conn
		s := newSocketsWith(t, 1, func(w http.ResponseWriter, r *http.Request, c *Conn) {
			conn = c
			if body, err := io.ReadAll(r.Body); string(body) != "ok" || err != nil {
				t.Errorf("body = %q, %v", body, err)
			}
		})
		c := s.Dials[0]()
		defer c.Close()
		must.Get(io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nok"))(t)
		must.Get(http.ReadResponse(bufio.NewReader(c), nil))(t)
		s.Stop()
		if conn.body != nil {
			t.Error("the connection holds the body of a request that was answered")
		}
	})
}
