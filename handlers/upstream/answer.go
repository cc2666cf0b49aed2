package upstream

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// checkStatus refuses what can't be the status of an answer.
func checkStatus(status int) error {
	if status < http.StatusOK || status > 599 {
		return fmt.Errorf("the agent answered with status %d", status)
	}
	return nil
}

// whole reads a body. Errors: errPassOn for a body that is too long or encoded, and for one whose end can't be told
// from a broken connection.
func (c *cache) whole(response *http.Response) ([]byte, error) {
	length, encoded := response.ContentLength, response.Header["Content-Encoding"] != nil
	if length > longest || encoded || length < 0 && len(response.TransferEncoding) == 0 {
		return nil, errPassOn
	}
	body := &counted{from: response.Body, all: &c.coming}
	defer body.forget()
	var b bytes.Buffer
	_, err := b.ReadFrom(body)
	return b.Bytes(), err
}

// counted counts the bytes of a body while several bodies are read. Errors: errPassOn when there is no room.
type counted struct {
	from io.Reader
	read int64
	all  *atomic.Int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.from.Read(b)
	c.read += int64(n)
	if c.all.Add(int64(n)) > mostBytes || c.read > longest {
		return n, errPassOn
	}
	return n, err
}

func (c *counted) forget() { c.all.Add(-c.read) }

// The names of headers as net/http writes them.
const (
	indexHeader   = "X-Nomad-Index"
	contactHeader = "X-Nomad-Lastcontact"
	leaderHeader  = "X-Nomad-Knownleader"
)

// passedHeader returns the headers of an answer that describe the answer itself, not the connection to the agent.
func passedHeader(from http.Header) http.Header {
	to := http.Header{}
	for name, values := range from {
		switch {
		case strings.HasPrefix(name, "X-Nomad-"), name == "Content-Type", name == "Retry-After", name == "Location",
			name == "Www-Authenticate", name == "X-Content-Type-Options":
			to[name] = values
		}
	}
	return to
}

// write sends the answer. age is how long the agent has been away: after a while away, the leader is not known.
func (v *value) write(w http.ResponseWriter, age time.Duration) {
	h := w.Header()
	maps.Copy(h, v.header)
	if age > 0 {
		h[contactHeader] = []string{strconv.FormatUint(v.contact+uint64(max(1, age.Milliseconds())), 10)}
		h[leaderHeader] = []string{"false"}
	}
	h["Content-Length"] = []string{strconv.Itoa(len(v.body))}
	w.WriteHeader(v.status)
	_, _ = w.Write(v.body) // a client that has gone needs no answer
}
