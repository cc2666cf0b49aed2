package handlers

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

// boundBody bounds a request's body in size and time. It returns nil for a request without one.
func boundBody(w http.ResponseWriter, r *http.Request) *requestBody {
	if r.Body == http.NoBody {
		return nil
	}
	b := &requestBody{ReadCloser: r.Body}
	r.Body = http.MaxBytesReader(w, b, maxBody)
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(requestTimeout)) // net/http lifts it once the body is read
	return b
}

// renewBodyTime restarts the time for the body, after a wait that the client did not cause.
func (r *request) renewBodyTime() {
	if r.Body != http.NoBody {
		_ = http.NewResponseController(r.w).SetReadDeadline(time.Now().Add(requestTimeout))
	}
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read = b.read || err == io.EOF
	return n, err
}

// leave shortens the wait for the rest of a body that nobody reads: before net/http answers it reads the rest, so that the connection can
// be used again, or closes it. A client that waits for 100 Continue is answered at once.
func (b *requestBody) leave(w http.ResponseWriter, r *http.Request) {
	if b == nil || b.read {
		return
	}
	r.Body = b.ReadCloser // net/http looks for its own
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(leftoverTimeout))
}
