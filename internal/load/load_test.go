package load_test

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"taskapi/internal/load"
	"taskapi/internal/must"
)

var request = [][]byte{[]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")}

// listen serves the handler on a Unix socket and returns the socket's path.
func listen(t *testing.T, handler http.Handler) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	listener := must.Get(net.Listen("unix", socket))(t)
	server := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0)}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return socket
}

func TestRunCountsEveryReply(t *testing.T) {
	var served, reused atomic.Int64
	body := strings.Repeat("x", 1500)
	socket := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		if r.Header.Get("X-Nomad-Token") == "t" {
			reused.Add(1)
		}
		io.WriteString(w, body)
	}))
	requests := append([][]byte{[]byte("GET / HTTP/1.1\r\nHost: localhost\r\nX-Nomad-Token: t\r\n\r\n")}, request...)
	got := must.Get(load.Run(t.Context(), load.Config{
		Socket: socket, Connections: 3, Requests: requests, Warmup: 10 * time.Millisecond, For: time.Second,
	}))(t)
	if got.Replies == 0 || got.Statuses[200] != got.Replies || len(got.Latencies) != got.Replies {
		t.Errorf("got %d replies, %d latencies, statuses %v; want as many 200s and latencies as replies", got.Replies,
			len(got.Latencies), got.Statuses)
	}
	if int64(got.Replies) > served.Load() {
		t.Errorf("got %d replies of %d served", got.Replies, served.Load())
	}
	// At the end three requests may be on their way, and three handlers may not have counted theirs twice.
	if half := served.Load() / 2; reused.Load() < half-5 || reused.Load() > half+5 {
		t.Errorf("%d of %d requests carried the token, want every second one", reused.Load(), served.Load())
	}
	if p50, p99 := got.Percentile(50), got.Percentile(99); p50 <= 0 || p99 < p50 {
		t.Errorf("p50 %v, p99 %v: want positive and ascending", p50, p99)
	}
}

func TestRunRefusesWhatIsNoGoodReply(t *testing.T) {
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"a status": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) },
			"status 403"},
		"chunked": {func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() },
			"without a Content-Length"},
		"a closed one": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			"closed the connection"},
		"another protocol":  {raw("SSH-2.0-x\r\n\r\n"), "does not begin with HTTP/1.1"},
		"no status":         {raw("HTTP/1.1 OK\r\n\r\n"), "three digits"},
		"no number":         {raw("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"), "no number"},
		"a huge reply":      {raw("HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n"), "more than"},
		"an unending head":  {raw("HTTP/1.1 200 OK\r\n" + strings.Repeat("x", 70_000)), "more than"},
		"surplus bytes":     {raw("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab"), "more bytes than"},
		"an overlong count": {raw("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n"), "no number"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load.Run(t.Context(), load.Config{Socket: listen(t, test.handler), Connections: 1, Requests: request,
				For: time.Hour}) // the error ends it
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
		})
	}
}

// raw answers with these very bytes.
func raw(reply string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			io.WriteString(conn, reply)
		}
	}
}

func TestRunHostileGoesOn(t *testing.T) {
	var served atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	socket := listen(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch n := served.Add(1); {
		case n == 100:
			cancel()
		case n%2 == 0:
			w.Header().Set("Connection", "close")
		}
		http.Error(w, "no", http.StatusTooManyRequests)
	}))
	got := must.Get(load.Run(ctx, load.Config{Socket: socket, Connections: 2, Requests: request, For: time.Hour,
		Hostile: true}))(t)
	if got.Statuses[429] == 0 || got.Reopened == 0 {
		t.Errorf("got statuses %v and %d reopened, want 429s and closed connections", got.Statuses, got.Reopened)
	}
}

func TestRunNamesTheSocketThatIsMissing(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none")
	_, err := load.Run(t.Context(), load.Config{Socket: socket, Connections: 1, Requests: request, For: time.Second})
	if err == nil || !strings.Contains(err.Error(), socket) {
		t.Errorf("got error %v, want one that names %s", err, socket)
	}
}
