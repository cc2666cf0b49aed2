package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener whose connections are pipes, which synctest can follow.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	over  chan struct{}
	away  atomic.Bool
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.over) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if p.away.Load() {
		return nil, errors.New("away")
	}
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// inBubble calls test with a cache in front of an agent, under a clock that test moves.
func inBubble(
	t *testing.T, agent http.HandlerFunc, test func(t *testing.T, c *cache, p *pipes, queries *atomic.Int64),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{conns: make(chan net.Conn), over: make(chan struct{})}
		var queries atomic.Int64
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			queries.Add(1)
			agent(w, r)
		})}
		var running sync.WaitGroup
		running.Go(func() { _ = server.Serve(p) })
		a := &Agent{Address: Address{scheme: "http", host: "agent"}, queries: &http.Transport{DialContext: p.dial}}
		ctx, cancel := context.WithCancel(t.Context())
		c := newCache(ctx, a, new(atomic.Uint64), &running)
		test(t, c, p, &queries)
		cancel()
		a.queries.CloseIdleConnections()
		_ = server.Close()
		running.Wait()
	})
}

// quiet is an agent on which nothing changes.
func quiet(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("index") != "" {
		wait, _ := time.ParseDuration(r.URL.Query().Get("wait"))
		pause(r.Context(), wait)
	}
	w.Header().Set("X-Nomad-Index", "5")
	w.Header().Set("X-Nomad-LastContact", "3")
	_, _ = io.WriteString(w, r.URL.Path)
}

// TestQueriesEndUnasked: a resource for which nobody asks is followed for a short time, and then leaves the cache.
func TestQueriesEndUnasked(t *testing.T) {
	inBubble(t, quiet, func(t *testing.T, c *cache, _ *pipes, queries *atomic.Int64) {
		v, age, err := c.read(t.Context(), ofCache{"/v1/jobs", "token"}, read{})
		if err != nil || age != 0 || string(v.body) != "/v1/jobs" {
			t.Fatal(v, age, err)
		}
		time.Sleep(unasked + 2*queryWait)
		c.mu.Lock()
		left, bytes := len(c.entries), c.bytes
		c.mu.Unlock()
		if left != 0 || bytes != 0 || queries.Load() > 4 {
			t.Errorf("%d resources with %d bytes after %d queries", left, bytes, queries.Load())
		}
	})
}

// TestStaleFor: the answer of an agent that is away is good for staleFor, and says how old it is.
func TestStaleFor(t *testing.T) {
	inBubble(t, quiet, func(t *testing.T, c *cache, p *pipes, _ *atomic.Int64) {
		of := ofCache{"/v1/jobs", "token"}
		if _, _, err := c.read(t.Context(), of, read{}); err != nil {
			t.Fatal(err)
		}
		p.away.Store(true)
		c.agent.queries.CloseIdleConnections()
		began := time.Now()
		var last time.Duration
		for time.Since(began) < 2*staleFor {
			v, age, err := c.read(t.Context(), of, read{})
			if err != nil {
				if _, away := errors.AsType[awayError](err); !away {
					t.Fatal(err)
				}
				break
			}
			if age > staleFor || age < last && age > 0 {
				t.Fatalf("an answer that is %v old, after one of %v", age, last)
			}
			last = age
			if v == nil {
				t.Fatal("no answer")
			}
			time.Sleep(time.Second)
		}
		if last < staleFor/2 {
			t.Errorf("the oldest answer was %v old", last)
		}
		// A reader that waits learns of it as soon as the answer is too old.
		began = time.Now()
		_, _, err := c.read(t.Context(), of, read{after: 5, wait: time.Hour})
		if err == nil || time.Since(began) > staleFor {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		p.away.Store(false)
		if _, age, err := c.read(t.Context(), of, read{}); err != nil || age != 0 {
			t.Errorf("when the agent is back: %v, %v", age, err)
		}
	})
}

// TestBounds: the cache has a bounded number of resources, and the one that was read the longest time ago gives way. An
// answer that is too long is passed on, and not tried again for a while.
func TestBounds(t *testing.T) {
	long := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/jobs" {
			w.Header().Set("X-Nomad-Index", "5")
			w.Header().Set("Content-Length", strconv.Itoa(longest+1))
			_, _ = w.Write(bytes.Repeat([]byte("a"), 64<<10))
			return
		}
		quiet(w, r)
	}
	inBubble(t, long, func(t *testing.T, c *cache, _ *pipes, queries *atomic.Int64) {
		for range 5 {
			if _, _, err := c.read(t.Context(), ofCache{"/v1/jobs", "token"}, read{}); !errors.Is(err, errPassOn) {
				t.Fatal(err)
			}
		}
		if n := queries.Load(); n != 1 {
			t.Errorf("a long answer was asked for %d times", n)
		}
		for i := range 2 * mostResources {
			of := ofCache{fmt.Sprint("/v1/job/", i), "token"}
			if _, _, err := c.read(t.Context(), of, read{}); err != nil {
				t.Fatal(i, err)
			}
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.entries) != mostResources || c.entries[ofCache{"/v1/job/0", "token"}] != nil {
			t.Errorf("%d resources", len(c.entries))
		}
	})
}

// TestAnAgentThatDoesNotBlock: an agent that answers a blocking query at once is not asked again and again.
func TestAnAgentThatDoesNotBlock(t *testing.T) {
	at := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Nomad-Index", "5")
	}
	inBubble(t, at, func(t *testing.T, c *cache, _ *pipes, queries *atomic.Int64) {
		if _, _, err := c.read(t.Context(), ofCache{"/v1/jobs", "token"}, read{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if n := queries.Load(); n > 5 {
			t.Errorf("%d queries in a second", n)
		}
	})
}
