package handlers_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers"
)

// countedFiles counts the lists that were made.
type countedFiles struct {
	*fakeFiles
	lists *atomic.Int64
}

func (f countedFiles) List(string) ([]*api.AllocFileInfo, error) {
	f.lists.Add(1)
	return []*api.AllocFileInfo{{Name: strings.Repeat("x", 1<<20)}}, nil // more than net/http buffers
}

// TestBulkyAnswers: however many clients ask for long answers that they don't read, a socket makes two at a time. Other requests don't wait, and
// neither does a client that reads for longer than the others are given.
func TestBulkyAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := quietAlloc(t)
		var lists atomic.Int64
		alloc.files = func(*auth.Peer) handlers.Files { return countedFiles{&fakeFiles{}, &lists} }
		dial, stop := bubbled(t, alloc)
		defer stop()
		ask := func(path string) net.Conn {
			c := dial()
			if _, err := fmt.Fprintf(c, "GET %s%s HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: good\r\nConnection: close\r\n\r\n", fsPath, path); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return c
		}
		status := func(c net.Conn) int {
			response, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			_, _ = io.Copy(io.Discard, response.Body)
			return response.StatusCode
		}

		for range 2 { // which read nothing
			defer ask("ls/" + allocID).Close()
		}
		gone := ask("ls/" + allocID)
		waiting := ask("ls/" + allocID)
		if n := lists.Load(); n != 2 {
			t.Errorf("%d lists were made while nobody read, want 2", n)
		}
		gone.Close()
		start := time.Now()
		if got := status(ask("stat/" + allocID + "?path=file")); got != http.StatusOK || time.Since(start) != 0 {
			t.Errorf("another request got %d after %v, want 200 at once", got, time.Since(start))
		}
		if got := status(waiting); got != http.StatusOK || time.Since(start) > 35*time.Second {
			t.Errorf("the client that reads got %d after %v, want 200 when the others are cut off", got, time.Since(start))
		}
		if n := lists.Load(); n != 3 {
			t.Errorf("%d lists were made, want 3: none for the client that has gone", n)
		}
	})
}

// countedServices counts the lists that were made.
type countedServices struct {
	*fakeServices
	lists *atomic.Int64
}

func (c countedServices) Services(ctx context.Context, namespace, name string) ([]*api.ServiceRegistration, uint64, error) {
	c.lists.Add(1)
	return c.fakeServices.Services(ctx, namespace, name)
}

// TestServicesAreBulky: of a machine with many services, too, two answers are made at a time, and a query that waits is none of them.
func TestServicesAreBulky(t *testing.T) {
	for _, path := range []string{"/v1/services", "/v1/service/web", "/v1/allocation/" + allocID + "/services", "/v1/job/demo/services"} {
		synctest.Test(t, func(t *testing.T) {
			services := newFakeServices(instance("default", "web", allocID, 8080, strings.Repeat("x", 1<<20)))
			var lists atomic.Int64
			dial, stop := bubbled(t, quietAlloc(t), func(c *handlers.Config) { c.Services = countedServices{services, &lists} })
			defer stop()
			ask := func(query string) {
				c := dial()
				t.Cleanup(func() { c.Close() })
				if _, err := fmt.Fprintf(c, "GET %s%s HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: good\r\n\r\n", path, query); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			for range 3 {
				ask("?index=1000&wait=9m")
			}
			for i := range 5 {
				ask("")
				if n := lists.Load(); n != int64(min(i+1, 2)) {
					t.Errorf("%s: %d lists were made for %d who read nothing", path, n, i+1)
				}
			}
		})
	}
}

// countedVariables counts the variables that were read, written or deleted.
type countedVariables struct {
	*fakeVariables
	uses *atomic.Int64
}

func (c countedVariables) Put(ctx context.Context, v *api.Variable, check *uint64) (*api.Variable, uint64, error) {
	c.uses.Add(1)
	return c.fakeVariables.Put(ctx, v, check)
}

func (c countedVariables) Delete(ctx context.Context, namespace, path string, check *uint64) (uint64, error) {
	c.uses.Add(1)
	return c.fakeVariables.Delete(ctx, namespace, path, check)
}

func (c countedVariables) Read(ctx context.Context, namespace, path string) (*api.Variable, uint64, error) {
	c.uses.Add(1)
	return c.fakeVariables.Read(ctx, namespace, path)
}

// TestVariablesAreBulky: so are a task's variables, whether a query waits, could have, or has no index.
func TestVariablesAreBulky(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := newFakeVariables("nomad/jobs/demo")
		kept.kept["default/nomad/jobs/demo"].Items["k"] = strings.Repeat("x", 1<<20)
		var reads atomic.Int64
		dial, stop := bubbled(t, quietAlloc(t), func(c *handlers.Config) { c.Variables = countedVariables{kept, &reads} })
		defer stop()
		for i, query := range []string{"?index=1000", "?index=1000", "?index=1000", "", "?index=1", "?index=1", ""} {
			c := dial()
			defer c.Close()
			if _, err := fmt.Fprintf(c, "GET /v1/var/nomad/jobs/demo%s HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: good\r\n\r\n", query); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if n := reads.Load(); n != int64(min(max(i-2, 0), 2)) {
				t.Errorf("%d were read for %d who read nothing", n, i-2)
			}
		}
	})
}

// TestBulkyWrites: so are long bodies, and those answers that show what there is; what is done with a lock does not wait for them. A client has as
// long as ever for its body when its turn has come.
func TestBulkyWrites(t *testing.T) {
	const path = "/v1/var/nomad/jobs/demo"
	long := fmt.Sprintf(`{"Items":{"k":%q}}`, strings.Repeat("x", 64<<10))
	for _, c := range []struct{ method, query, body string }{
		{"PUT", "", long}, {"PUT", "?cas=1", `{"Items":{"k":"v"}}`}, {"DELETE", "?cas=1", ""}, {"PUT", "", "chunked"},
	} {
		synctest.Test(t, func(t *testing.T) {
			kept := newFakeVariables("nomad/jobs/demo")
			kept.kept["default/nomad/jobs/demo"].Items["k"] = strings.Repeat("x", 1<<20)
			var uses atomic.Int64
			dial, stop := bubbled(t, quietAlloc(t), func(config *handlers.Config) { config.Variables = countedVariables{kept, &uses} })
			defer stop()
			send := func(method, query, body string) net.Conn {
				conn := dial()
				t.Cleanup(func() { conn.Close() })
				if body == "chunked" {
					body = fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(long), long)
				} else {
					body = fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
				}
				go func() { // what nobody reads can't be written
					_, _ = fmt.Fprintf(conn, "%s %s%s HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: %s\r\nConnection: close\r\n%s", method, path, query, operator, body)
				}()
				synctest.Wait()
				return conn
			}
			for i := range 4 { // which read nothing
				conn := send(c.method, c.query, c.body)
				if n := uses.Load(); n != int64(min(i+1, 2)) {
					t.Errorf("%s %s: %d were done for %d who read nothing", c.method, c.query, n, i+1)
				}
				if i >= 2 {
					conn.Close()
				}
			}
			start := time.Now()
			if got := answer(t, send("PUT", "?lock-renew", `{"Lock":{"ID":"x"}}`)); got != http.StatusConflict || time.Since(start) != 0 {
				t.Errorf("a renewal got %d after %v, want 409 at once", got, time.Since(start))
			}
			if got := answer(t, send(c.method, c.query, c.body)); got != http.StatusOK && got != http.StatusConflict || time.Since(start) == 0 {
				t.Errorf("%s %s: the next got %d after %v, want its answer when others are cut off", c.method, c.query, got, time.Since(start))
			}
		})
	}
}

// TestTooManyBulkyAnswers: who waits behind many is told so.
func TestTooManyBulkyAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := quietAlloc(t)
		block := make(chan struct{})
		alloc.files = func(*auth.Peer) handlers.Files {
			<-block
			return &fakeFiles{}
		}
		dial, stop := bubbled(t, alloc)
		defer stop()
		defer close(block)
		for range 2 {
			c := dial()
			defer c.Close()
			fmt.Fprintf(c, "GET %sls/%s HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: good\r\n\r\n", fsPath, allocID)
		}
		synctest.Wait()
		c := dial()
		defer c.Close()
		fmt.Fprintf(c, "GET %sls/%s HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: good\r\n\r\n", fsPath, allocID)
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		response, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusTooManyRequests || response.Header.Get("Retry-After") == "" {
			t.Errorf("answered %d with %v, want 429 with a Retry-After", response.StatusCode, response.Header)
		}
	})
}
