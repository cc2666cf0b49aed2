package socket_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"taskapi/internal/must"
	"taskapi/socket"
)

type peerKey struct{}

// The package serves net/http: the peer reaches the handler, and a refusal is an answer that its client understands.
func TestServesHTTP(t *testing.T) {
	const refusal = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
	path := filepath.Join(t.TempDir(), "api.sock")
	l := newListener(t, socket.Config{Path: path, MaxConns: 1, Refusal: []byte(refusal)})
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, r.Context().Value(peerKey{}).(socket.Peer).PID)
		}),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, c.(*socket.Conn).Peer())
		},
	}
	served := make(chan error)
	go func() { served <- srv.Serve(l) }()

	first, second := newHTTPClient(path), newHTTPClient(path)
	for range 2 {
		if status, body := get(t, first); status != http.StatusOK || body != fmt.Sprint(os.Getpid()) {
			t.Errorf("got %d %q, want the pid of this process", status, body)
		}
	}
	refused := uint64(1)
	began := time.Now()
	resp, err := second.Get("http://socket/")
	for ; err != nil && time.Since(began) > socket.RequestTime; refused++ { // a busy machine has delayed the request
		began = time.Now()
		resp, err = second.Get("http://socket/")
	}
	must.OK(t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("over the cap: %d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	first.CloseIdleConnections()
	second.CloseIdleConnections()
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve: %v", err)
	}
	// the connection is being closed, which Shutdown does not wait for when the client has closed it
	for l.Stats().Open > 0 {
		time.Sleep(time.Millisecond)
	}
	if got, want := l.Stats(), (socket.Stats{Accepted: 1, Refused: refused}); got != want {
		t.Errorf("Stats() = %+v, want %+v", got, want)
	}
}

func newHTTPClient(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return socket.Dial(ctx, path) },
	}}
}

func get(t *testing.T, c *http.Client) (int, string) {
	t.Helper()
	resp := must.Get(c.Get("http://socket/"))(t)
	defer resp.Body.Close()
	body := must.Get(io.ReadAll(resp.Body))(t)
	return resp.StatusCode, string(body)
}
