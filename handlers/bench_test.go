package handlers_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/identity"
	"taskapi/internal/must"
)

// openAuthenticator lets everybody in at no cost, so that what the benchmark shows is this package.
type openAuthenticator struct{ principal *auth.Principal }

func (d openAuthenticator) Authenticate(*http.Request, auth.Owner, auth.Peer) (*auth.Principal, *auth.Denial) {
	return d.principal, nil
}
func (openAuthenticator) Recheck(*http.Request, *auth.Principal, auth.Owner, auth.Peer) *auth.Denial {
	return nil
}
func (openAuthenticator) Authorize(*auth.Principal, auth.CapabilitySet) *auth.Denial { return nil }

// BenchmarkChecks is an authenticated GET of the checks over kept-alive unix sockets, beside the floor: net/http with
// nothing around it, answering a body of the same size to the same request. Compare the two at each number of
// connections.
func BenchmarkChecks(b *testing.B) {
	claims := identity.Claims{AllocationID: allocID, Task: "server"}
	open := openAuthenticator{&auth.Principal{Claims: claims, Capabilities: ^auth.CapabilitySet(0)}}
	ours := newServer(b, newAlloc(b), func(c *handlers.Config) { c.Authenticator = open })
	body := ours.do(b, http.MethodGet, checksPath, goodToken, "").Body
	floor := newFloor(b, body)
	for _, connections := range []int{1, 8, 16} {
		for _, server := range []struct{ name, path string }{{"floor", floor}, {"taskapi", ours.path}} {
			b.Run(fmt.Sprintf("%s/connections=%d", server.name, connections), func(b *testing.B) {
				load(b, server.path, connections)
			})
		}
	}
}

// newFloor returns the bare server; it answers any request with the body.
func newFloor(b *testing.B, body string) (path string) {
	dir := must.Get(os.MkdirTemp("", "floor"))(b)
	path = filepath.Join(dir, "api.sock")
	listener := must.Get(net.Listen("unix", path))(b)
	content := []byte(body)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = w.Write(content)
	})}
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	b.Cleanup(func() {
		_ = server.Shutdown(context.Background())
		wg.Wait()
		_ = os.RemoveAll(dir)
	})
	return path
}

// load sends b.N requests over the connections. It only frames: every answer is as long as the first.
func load(b *testing.B, path string, connections int) {
	request := []byte("GET " + checksPath + " HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\nX-Nomad-Token: " +
		string(bytes.Repeat([]byte("a"), 560)) + "\r\n\r\n") // 560: about what a token has
	b.ReportAllocs()
	var wg sync.WaitGroup
	var share = b.N/connections + 1
	for range connections {
		conn := must.Get(net.Dial("unix", path))(b)
		wg.Go(func() {
			defer conn.Close()
			buffer := make([]byte, 64<<10)
			size := 0
			for i := range share {
				if _, err := conn.Write(request); err != nil {
					b.Error(err)
					return
				}
				n, err := conn.Read(buffer)
				if i == 0 {
					size = n
				}
				if err == nil && n < size {
					_, err = io.ReadFull(conn, buffer[n:size])
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
			if !bytes.HasPrefix(buffer, []byte("HTTP/1.1 200 OK\r\n")) {
				b.Errorf("answer: %.100s", buffer)
			}
		})
	}
	wg.Wait()
}
