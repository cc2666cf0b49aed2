package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/internal/wake"
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
		_ = wake.Sleep(r.Context(), wait)
	}
	w.Header().Set("X-Nomad-Index", "5")
	w.Header().Set("X-Nomad-LastContact", "3")
	_, _ = io.WriteString(w, r.URL.Path)
}

// TestQueriesEndUnasked: a resource for which nobody asks is followed for a short time, and then leaves the cache.
func TestQueriesEndUnasked(t *testing.T) {
	inBubble(t, quiet, func(t *testing.T, c *cache, _ *pipes, queries *atomic.Int64) {
		v, age, err := c.read(t.Context(), ofCache{resource{path: "/v1/jobs"}, "token"}, read{})
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
		of := ofCache{resource{path: "/v1/jobs"}, "token"}
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

// TestUnconfirmed: an answer that no query has confirmed for a long time, as when this process was stopped, says so.
func TestUnconfirmed(t *testing.T) {
	inBubble(t, quiet, func(t *testing.T, c *cache, _ *pipes, _ *atomic.Int64) {
		of := ofCache{resource{path: "/v1/jobs"}, "token"}
		e := &entry{of: of, cache: c, changed: make(chan struct{})} // nobody follows it
		e.now.value, e.now.confirmed = &value{index: 5}, time.Now()
		c.entries[of] = e
		time.Sleep(trusted)
		if _, age, err := c.read(t.Context(), of, read{}); err != nil || age != 0 {
			t.Errorf("in time: %v, %v", age, err)
		}
		time.Sleep(time.Second)
		if _, age, err := c.read(t.Context(), of, read{}); err != nil || age != trusted+time.Second {
			t.Errorf("late: %v, %v", age, err)
		}
		time.Sleep(staleFor)
		if _, _, err := c.read(t.Context(), of, read{}); err == nil {
			t.Error("too late: an answer")
		}
	})
}

// TestSlowAgent: an agent that sends a byte a second has the time of a query, and no more.
func TestSlowAgent(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Nomad-Index", "5")
		for http.NewResponseController(w).Flush() == nil && r.Context().Err() == nil {
			_ = wake.Sleep(r.Context(), time.Second)
			_, _ = io.WriteString(w, "x")
		}
	}
	inBubble(t, slow, func(t *testing.T, c *cache, _ *pipes, queries *atomic.Int64) {
		began := time.Now()
		_, _, err := c.read(t.Context(), ofCache{resource{path: "/v1/jobs"}, "token"}, read{})
		if _, away := errors.AsType[awayError](err); !away || time.Since(began) != queryWait {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if n := queries.Load(); n != 1 {
			t.Errorf("%d queries", n)
		}
	})
}

// TestRestlessAgent: an agent whose index goes up and down all the time has a bounded number of queries, and a reader
// who waits gets an answer.
func TestRestlessAgent(t *testing.T) {
	var n atomic.Int64
	restless := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Nomad-Index", strconv.FormatInt(5+n.Add(1)%2, 10))
	}
	inBubble(t, restless, func(t *testing.T, c *cache, _ *pipes, queries *atomic.Int64) {
		of := ofCache{resource{path: "/v1/jobs"}, "token"}
		if _, _, err := c.read(t.Context(), of, read{after: 1 << 62, wait: time.Hour}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if most := int64(time.Second/leastBetween) + 5; queries.Load() > most {
			t.Errorf("%d queries in a second, want at most %d", queries.Load(), most)
		}
	})
}

// TestComing: answers that come at the same time take a bounded part of memory, and all of it is given back.
func TestComing(t *testing.T) {
	long := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("index") != "" {
			quiet(w, r)
			return
		}
		w.Header().Set("X-Nomad-Index", "5")
		_, _ = w.Write(make([]byte, longest))
		_ = http.NewResponseController(w).Flush()
		_ = wake.Sleep(r.Context(), time.Second)
	}
	inBubble(t, long, func(t *testing.T, c *cache, _ *pipes, _ *atomic.Int64) {
		var readers sync.WaitGroup
		var passed atomic.Int64
		for i := range 2 * mostBytes / longest {
			readers.Go(func() {
				_, _, err := c.read(t.Context(), ofCache{resource{path: fmt.Sprint("/v1/job/", i)}, "token"}, read{})
				if errors.Is(err, errPassOn) {
					passed.Add(1)
				}
			})
		}
		time.Sleep(time.Second / 2) // all are sent, and none has ended
		if n := c.coming.Load(); n > mostBytes {
			t.Errorf("%d bytes come", n)
		}
		readers.Wait()
		c.mu.Lock()
		kept := c.bytes
		c.mu.Unlock()
		if passed.Load() == 0 || kept > mostBytes {
			t.Errorf("%d reads were passed on; %d bytes are kept", passed.Load(), kept)
		}
		time.Sleep(unasked + 2*queryWait)
		if n := c.coming.Load(); n != 0 {
			t.Errorf("nothing comes, and %d bytes are counted", n)
		}
	})
}

// TestChangesAllTheTime: a reader gets an answer even if changes and other readers come faster than the agent answers.
func TestChangesAllTheTime(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) {
		_ = wake.Sleep(r.Context(), 5*time.Millisecond)
		quiet(w, r)
	}
	inBubble(t, slow, func(t *testing.T, c *cache, _ *pipes, _ *atomic.Int64) {
		of := ofCache{resource{path: "/v1/jobs"}, "token"}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var readers sync.WaitGroup
		readers.Go(func() {
			for ctx.Err() == nil {
				c.epoch.Add(1)
				readers.Go(func() { _, _, _ = c.read(ctx, of, read{}) })
				_ = wake.Sleep(ctx, time.Millisecond)
			}
		})
		for range 10 {
			began := time.Now()
			if _, _, err := c.read(ctx, of, read{}); err != nil {
				t.Errorf("after %v: %v", time.Since(began), err)
				break
			}
		}
		cancel()
		readers.Wait()
	})
}

// TestBooks: whatever readers, changes and an agent in trouble do at the same time, each reader gets an answer for its
// own resource and token, and the cache stays within its bounds and counts right.
func TestBooks(t *testing.T) {
	random := func(w http.ResponseWriter, r *http.Request) {
		switch rand.IntN(10) {
		case 0:
			panic(http.ErrAbortHandler)
		case 1:
			w.WriteHeader(http.StatusInternalServerError)
		case 2:
			w.WriteHeader(http.StatusForbidden)
		case 3:
			_ = wake.Sleep(r.Context(), time.Duration(rand.IntN(20))*time.Second)
		}
		w.Header().Set("X-Nomad-Index", strconv.Itoa(1+rand.IntN(5)))
		_, _ = io.WriteString(w, r.URL.Path+" "+r.Header.Get("X-Nomad-Token")+strings.Repeat(" ", rand.IntN(1<<10)))
	}
	inBubble(t, random, func(t *testing.T, c *cache, _ *pipes, _ *atomic.Int64) {
		var readers sync.WaitGroup
		for i := range 30 {
			readers.Go(func() {
				for range 30 {
					of := ofCache{resource{path: fmt.Sprint("/v1/job/", rand.IntN(2*mostResources))}, strconv.Itoa(i % 2)}
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(5000))*time.Millisecond)
					v, _, _ := c.read(ctx, of, read{after: uint64(rand.IntN(5))})
					cancel()
					if v != nil && strings.TrimRight(string(v.body), " ") != of.path+" "+of.token {
						t.Errorf("%v: %s", of, v.body)
					}
					if rand.IntN(10) == 0 {
						c.epoch.Add(1)
					}
				}
			})
		}
		readers.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		bytes := 0
		for of, e := range c.entries {
			bytes += e.now.size()
			if e.of != of || e.waiting != 0 || e.now.over != nil {
				t.Errorf("%v: %+v", of, e)
			}
		}
		if bytes != c.bytes || len(c.entries) > mostResources {
			t.Errorf("%d resources with %d bytes, %d counted", len(c.entries), bytes, c.bytes)
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
			of := ofCache{resource{path: "/v1/jobs"}, "token"}
			if _, _, err := c.read(t.Context(), of, read{}); !errors.Is(err, errPassOn) {
				t.Fatal(err)
			}
		}
		if n := queries.Load(); n != 1 {
			t.Errorf("a long answer was asked for %d times", n)
		}
		for i := range 2 * mostResources {
			of := ofCache{resource{path: fmt.Sprint("/v1/job/", i)}, "token"}
			if _, _, err := c.read(t.Context(), of, read{}); err != nil {
				t.Fatal(i, err)
			}
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.entries) != mostResources || c.entries[ofCache{resource{path: "/v1/job/0"}, "token"}] != nil {
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
		if _, _, err := c.read(t.Context(), ofCache{resource{path: "/v1/jobs"}, "token"}, read{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if n := queries.Load(); n > 5 {
			t.Errorf("%d queries in a second", n)
		}
	})
}
