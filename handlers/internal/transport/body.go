package transport

import (
	"io"
	"net/http"
	"time"
)

// requestBody is a request's body that remembers whether it has been read to its end.
type requestBody struct {
	io.ReadCloser // net/http's
	read          bool
}

// boundBody bounds a request's body in size and time.
func (c *Conn) boundBody(w http.ResponseWriter, r *http.Request) {
	if r.Body == http.NoBody {
		return
	}
	c.body = &requestBody{ReadCloser: r.Body}
	r.Body = http.MaxBytesReader(w, c.body, MaxBody)
	// net/http lifts it once the body is read.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(RequestTimeout))
}

// LimitBody gives the body of the present request another ceiling than MaxBody.
func (c *Conn) LimitBody(w http.ResponseWriter, r *http.Request, most int64) {
	if c.body != nil {
		r.Body = http.MaxBytesReader(w, c.body, most)
	}
}

// RenewBodyTime restarts the time for a body, after a wait that the client did not cause.
func RenewBodyTime(w http.ResponseWriter, r *http.Request) {
	if r.Body != http.NoBody {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(RequestTimeout))
	}
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read = b.read || err == io.EOF
	return n, err
}

// LeaveBody shortens the wait for the rest of a body that nobody reads. Before net/http answers it reads the rest, so
// that the connection can be used again, or closes it. A client that waits for 100 Continue is answered at once. Call
// it before a long answer; it is called in any case when the handler returns.
func (c *Conn) LeaveBody(w http.ResponseWriter, r *http.Request) {
	if c.body == nil || c.body.read {
		return
	}
	r.Body = c.body.ReadCloser // net/http looks for its own
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(leftoverTimeout))
}
