package upstream

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// readAll reads a body of at most longest bytes. Errors: errPassOn for a longer one.
func readAll(from io.Reader, length int64) ([]byte, error) {
	var b bytes.Buffer
	if length > 0 {
		b.Grow(int(length) + bytes.MinRead)
	}
	_, err := b.ReadFrom(io.LimitReader(from, longest+1))
	if err == nil && b.Len() > longest {
		err = errPassOn
	}
	return b.Bytes(), err
}

// The names of headers as net/http writes them.
const (
	indexHeader   = "X-Nomad-Index"
	contactHeader = "X-Nomad-Lastcontact"
	leaderHeader  = "X-Nomad-Knownleader"
)

// passedHeader returns what a kept answer says of its body. Nothing that is about the agent's connection is in it.
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

var noLeader = []string{"false"}

// write sends the answer. age is how long the agent has been away: the leader is then not known.
func (v *value) write(w http.ResponseWriter, age time.Duration) {
	h := w.Header()
	maps.Copy(h, v.header)
	if age > 0 {
		h[contactHeader] = []string{strconv.FormatUint(v.contact+uint64(max(1, age.Milliseconds())), 10)}
		h[leaderHeader] = noLeader
	}
	h["Content-Length"] = []string{strconv.Itoa(len(v.body))}
	w.WriteHeader(v.status)
	_, _ = w.Write(v.body) // a client that has gone needs no answer
}
