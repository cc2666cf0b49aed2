package upstream_test

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"
)

// double is a recorded agent: see testdata/README.md. It has one value for each path, all with one index.
type double struct {
	t    *testing.T
	path string // of its socket

	mu       sync.Mutex // guards the fields below
	index    uint64
	values   map[string]string
	changed  chan struct{}
	requests map[string]int // by method and path
	tokens   map[string]int // by token
	forbids  map[string]bool
	jwks     []byte
	instead  func(w http.ResponseWriter, r *http.Request) bool // answers in place of a value; nil for none
	server   *http.Server
	waiting  int
}

func newDouble(t *testing.T) *double {
	dir, err := os.MkdirTemp("", "double") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d := &double{
		t: t, path: filepath.Join(dir, "api.sock"), index: 10, values: map[string]string{}, changed: make(chan struct{}),
		requests: map[string]int{}, tokens: map[string]int{}, forbids: map[string]bool{},
	}
	d.start()
	t.Cleanup(d.kill)
	return d
}

// start lets the agent listen; kill ends it with every connection.
func (d *double) start() {
	d.t.Helper()
	_ = os.Remove(d.path)
	l, err := net.Listen("unix", d.path)
	if err != nil {
		d.t.Fatal(err)
	}
	server := &http.Server{Handler: d}
	d.mu.Lock()
	d.server = server
	d.mu.Unlock()
	go func() { _ = server.Serve(l) }()
}

func (d *double) kill() {
	d.mu.Lock()
	server := d.server
	d.mu.Unlock()
	_ = server.Close()
}

// set gives a path another value, and wakes the queries that wait.
func (d *double) set(path, value string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.values[path] = value
	d.index++
	close(d.changed)
	d.changed = make(chan struct{})
}

// answers has the agent call instead for every request but those for its keys. instead reports whether it answered.
func (d *double) answers(instead func(w http.ResponseWriter, r *http.Request) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.instead = instead
}

// count returns how many requests have come for a method and path.
func (d *double) count(request string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.requests[request]
}

func (d *double) waits() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waiting
}

func (d *double) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token := cmp.Or(r.Header.Get("X-Nomad-Token"), r.Header.Get("Authorization"))
	if token == "" {
		w.WriteHeader(http.StatusUnauthorized) // as the middleware of the Task API
		return
	}
	path := r.URL.EscapedPath()
	after, _ := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
	wait, err := time.ParseDuration(r.URL.Query().Get("wait"))
	if err != nil {
		wait = 5 * time.Minute
	}
	body, _ := io.ReadAll(r.Body)

	d.mu.Lock()
	d.requests[r.Method+" "+path]++
	d.tokens[token]++
	forbidden, instead := d.forbids[token], d.instead
	d.mu.Unlock()
	switch {
	case forbidden:
		http.Error(w, "Permission denied", http.StatusForbidden)
		return
	case instead != nil && path != "/.well-known/jwks.json" && instead(w, r):
		return
	case r.Method != http.MethodGet:
		d.set(path, string(body))
		_, _ = io.WriteString(w, "{}")
		return
	}
	d.await(r, after, wait)
	d.mu.Lock()
	value, ok := d.values[path]
	index, jwks := d.index, d.jwks
	d.mu.Unlock()
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Vary", "Accept-Encoding, Origin")
	h.Set("X-Nomad-Index", strconv.FormatUint(index, 10))
	h.Set("X-Nomad-KnownLeader", "true")
	h.Set("X-Nomad-LastContact", "0")
	switch {
	case path == "/.well-known/jwks.json":
		_, _ = w.Write(jwks)
	case !ok:
		h.Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "variable not found")
	default:
		_, _ = fmt.Fprintf(w, "%s", value)
	}
}

// await waits until the index is above after, as a blocking query does.
func (d *double) await(r *http.Request, after uint64, wait time.Duration) {
	over := time.NewTimer(wait)
	defer over.Stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	for after > 0 && d.index <= after {
		changed := d.changed
		d.waiting++
		d.mu.Unlock()
		ended := false
		select {
		case <-changed:
		case <-over.C:
			ended = true
		case <-r.Context().Done():
			ended = true
		}
		d.mu.Lock()
		d.waiting--
		if ended {
			return
		}
	}
}
