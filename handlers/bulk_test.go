package handlers_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/handlers/internal/transport/transporttest"
)

// countedFiles has one name of 4 MB, and counts how often it was listed.
type countedFiles struct {
	*fakeFiles
	lists *atomic.Int64
}

func (f countedFiles) List(_ string, most int) ([]*api.AllocFileInfo, error) {
	if most < 4_000_000 {
		return nil, &interfaces.FileError{Path: "alloc", Err: interfaces.ErrTooManyEntries}
	}
	f.lists.Add(1)
	return []*api.AllocFileInfo{{Name: strings.Repeat("x", 4_000_000)}}, nil
}

// asker sends requests whose answers nobody reads.
type asker struct {
	*testing.T
	dial func() net.Conn
}

func (a asker) ask(method, path, head, body string) net.Conn {
	token := goodToken
	if method != http.MethodGet {
		token = operator
	}
	c := a.dial()
	a.Cleanup(func() { c.Close() })
	go func() { // what nobody reads can't be written
		_, _ = fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: %s\r\nConnection: close\r\n%s\r\n%s", method, path,
			token, head, body)
	}()
	synctest.Wait()
	return c
}

func (a asker) get(path string) net.Conn { return a.ask("GET", path, "", "") }

// What long answers may take: those of all sockets together, and of each besides.
const (
	sharedBytes = 24 << 20
	ownBytes    = 512 << 10
)

// TestLongLists: however many clients ask for long lists that they don't read, memory is bounded. Other requests don't
// wait, and who reads has its answer when the others are cut off. Nothing is made for those who have gone.
func TestLongLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := quietAlloc(t)
		var lists atomic.Int64
		alloc.files = func(*interfaces.Reader) interfaces.Files { return countedFiles{&fakeFiles{}, &lists} }
		dial, stop := bubbled(t, alloc)
		defer stop()
		a := asker{t, dial}
		for range 20 {
			a.get(fsPath + "ls/" + allocID)
		}
		made := lists.Load()
		if made < 4 || made*4_000_000 > sharedBytes {
			t.Errorf("%d lists of 4 MB were made while nobody read; want several, and at most %d bytes", made, sharedBytes)
		}
		start := time.Now()
		if got := answer(t, a.get(fsPath+"stat/"+allocID+"?path=file")); got != http.StatusOK || time.Since(start) != 0 {
			t.Errorf("another request got %d after %v, want 200 at once", got, time.Since(start))
		}
		a.get(fsPath + "ls/" + allocID).Close()
		time.Sleep(33 * time.Second) // the first are cut off
		synctest.Wait()
		if again := lists.Load(); again <= made || again > 2*made {
			t.Errorf("%d lists were made, want more than %d, and at most twice as many", again, made)
		}
		c := a.get(fsPath + "ls/" + allocID)
		if got := answer(t, c); got != http.StatusOK && got != http.StatusTooManyRequests {
			t.Errorf("who reads got %d, want 200, or 429 behind so many", got)
		}
	})
}

// TestNoMemoryForALongAnswer: who waits for too long is told so, and when to try again: others are cut off by then.
func TestNoMemoryForALongAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := quietAlloc(t)
		block := make(chan struct{})
		alloc.files = func(*interfaces.Reader) interfaces.Files {
			return blockedFiles{countedFiles{&fakeFiles{}, new(atomic.Int64)}, block}
		}
		dial, stop := bubbled(t, alloc)
		defer stop()
		defer close(block)
		a := asker{t, dial}
		for range 4 {
			a.get(fsPath + "ls/" + allocID)
		}
		c := a.get(fsPath + "ls/" + allocID)
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

// blockedFiles lists nothing until it may.
type blockedFiles struct {
	countedFiles
	until chan struct{}
}

func (f blockedFiles) List(path string, most int) ([]*api.AllocFileInfo, error) {
	if most > 4_000_000 {
		<-f.until
	}
	return f.countedFiles.List(path, most)
}

// countedServices counts the lists that were made.
type countedServices struct {
	*fakeServices
	lists *atomic.Int64
}

func (c countedServices) Services(
	ctx context.Context, namespace, name string,
) ([]*api.ServiceRegistration, uint64, error) {
	c.lists.Add(1)
	return c.fakeServices.Services(ctx, namespace, name)
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

// heapBytes returns how much of the heap is in use.
func heapBytes() int {
	var memory runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memory)
	return int(memory.HeapAlloc)
}

// TestLongAnswers: of other long answers, too, no more are kept than there is memory for. The others are made when it
// is their turn, and those that have waited for a change don't wait for another one then.
func TestLongAnswers(t *testing.T) {
	for _, path := range []string{
		"/v1/services", "/v1/service/web", "/v1/allocation/" + allocID +
			"/services", "/v1/job/demo/services", "/v1/var/nomad/jobs/demo",
	} {
		synctest.Test(t, func(t *testing.T) {
			var uses atomic.Int64
			services := newFakeServices(instance("default", "web", allocID, 8080, strings.Repeat("x", 1<<20)))
			kept := newFakeVariables("nomad/jobs/demo")
			kept.kept["default/nomad/jobs/demo"].Items["k"] = strings.Repeat("x", 1<<20)
			dial, stop := bubbled(t, quietAlloc(t), func(c *handlers.Config) {
				c.Services, c.Variables = countedServices{services, &uses}, countedVariables{kept, &uses}
			})
			defer stop()
			a, heap := asker{t, dial}, heapBytes()
			const fit = sharedBytes/(1<<20) - 1 // each has some bytes more than a MiB
			var first net.Conn
			for i := range fit + 3 {
				if c := a.get(path); i == 0 {
					first = c
				}
			}
			a.get(path + "?index=1000&wait=10s")
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if n := uses.Load(); n != fit+1 {
				t.Errorf("%s: made %d times, want as many as there is memory for, and one that waits for memory", path, n)
			}
			const others = 100
			for range others {
				a.get(path)
			}
			if before, now := heap, heapBytes(); now > before+2*sharedBytes {
				t.Errorf("%s: %d MiB are in use for those who wait for memory", path, (now-before)>>20)
			}
			first.Close()
			synctest.Wait()
			if n := uses.Load(); n != fit+2 {
				t.Errorf("%s: made %d times, want one more when there is memory for one", path, n)
			}
		})
	}
}

// TestOwnMemory: clients of one socket who read nothing keep no other socket from an answer that fits into that
// socket's own memory.
func TestOwnMemory(t *testing.T) {
	const path = "/v1/var/nomad/jobs/demo"
	synctest.Test(t, func(t *testing.T) {
		kept := newFakeVariables("nomad/jobs/demo")
		api := handlers.New(handlers.Config{
			Server: handlers.Server{
				Authenticator: fakeAuthenticator{}, Allocs: allocs{quietAlloc(t)}, Logger: discard(),
				PeerOf: func(net.Conn) (auth.Peer, error) { return peer, nil },
			},
			Variables: kept,
		})
		s := transporttest.Serve(t, 2, "", func(ctx context.Context, l net.Listener) error {
			return api.Serve(ctx, l, taskSocket)
		})
		defer s.Stop()
		value := func(bytes int) { kept.kept["default/nomad/jobs/demo"].Items["k"] = strings.Repeat("x", bytes) }
		value(ownBytes + 1)
		for range sharedBytes/ownBytes + 10 {
			asker{t, s.Dials[0]}.get(path)
		}
		value(ownBytes - 1000)
		unread := asker{t, s.Dials[1]}.get(path)
		reader, start := asker{t, s.Dials[1]}.get(path), time.Now()
		unread.Close()
		if got := answer(t, reader); got != http.StatusOK || time.Since(start) != 0 {
			t.Errorf("another socket got %d after %v, want 200 as soon as its own memory is free", got, time.Since(start))
		}
	})
}

// TestWhoWaitsIsInNobodysWay: a query that waits for a change has no turn to make a long answer, so others on its
// socket are answered.
func TestWhoWaitsIsInNobodysWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		variables := newFakeVariables("nomad/jobs/demo")
		alloc := quietAlloc(t)
		alloc.wait = func(ctx context.Context, _ uint64) *api.Allocation {
			<-ctx.Done()
			return alloc.snapshot()
		}
		dial, stop := bubbled(t, alloc, withVariables(variables), func(c *handlers.Config) {
			c.Services = newFakeServices(instance("default", "web", allocID, 8080))
		})
		defer stop()
		a := asker{t, dial}
		paths := []string{"/v1/vars", "/v1/var/nomad/jobs/demo", "/v1/services", "/v1/job/demo/versions"}
		for _, path := range paths {
			a.get(path + "?index=1000&wait=1m")
		}
		start := time.Now()
		for _, path := range paths {
			if got := answer(t, a.get(path)); got != http.StatusOK || time.Since(start) != 0 {
				t.Errorf("%s: %d after %v, want 200 at once", path, got, time.Since(start))
			}
		}
	})
}

// TestLongBodies: so are long bodies, and those answers that show what there is; what is done with a lock does not wait
// for them. A client has as long as ever for its body when its turn has come.
func TestLongBodies(t *testing.T) {
	const path = "/v1/var/nomad/jobs/demo"
	long := fmt.Sprintf(`{"Items":{"k":%q}}`, strings.Repeat("x", 64<<10))
	length := func(body string) string { return fmt.Sprintf("Content-Length: %d\r\n", len(body)) }
	for _, c := range []struct {
		method, query, head, body string
		most                      int64 // more than there is memory for
	}{
		{"PUT", "", length(long), long, 550},
		{"PUT", "?cas=1", length(`{"Items":{"k":"v"}}`), `{"Items":{"k":"v"}}`, 100},
		{"DELETE", "?cas=1", "", "", 100},
		{"PUT", "", "Transfer-Encoding: chunked\r\n", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(long), long), 550},
	} {
		synctest.Test(t, func(t *testing.T) {
			kept := newFakeVariables("nomad/jobs/demo")
			kept.kept["default/nomad/jobs/demo"].Items["k"] = strings.Repeat("x", 512<<10)
			var uses atomic.Int64
			dial, stop := bubbled(t, quietAlloc(t), func(config *handlers.Config) {
				config.Variables = countedVariables{kept, &uses}
			})
			defer stop()
			a := asker{t, dial}
			send := func() net.Conn { return a.ask(c.method, path+c.query, c.head, c.body) }
			for range c.most { // which read nothing
				send()
			}
			if n := uses.Load(); n == 0 || n == c.most {
				t.Errorf("%s %s: %d of %d were done for clients who read nothing", c.method, c.query, n, c.most)
			}
			start := time.Now()
			if got := answer(t, a.ask("PUT", path+"?lock-renew", length(`{"Lock":{"ID":"x"}}`),
				`{"Lock":{"ID":"x"}}`)); got != http.StatusConflict || time.Since(start) != 0 {
				t.Errorf("a renewal got %d after %v, want 409 at once", got, time.Since(start))
			}
		})
	}
}
