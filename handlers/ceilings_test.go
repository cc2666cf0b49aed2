package handlers_test

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/handlers/internal/transport"
	"taskapi/handlers/internal/transport/transporttest"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// bubbled serves the allocation in memory and returns what dials it and what stops it.
func bubbled(t *testing.T, alloc *fakeAlloc, change ...func(*handlers.Config)) (dial func() net.Conn, stop func()) {
	return bubbledBy(t, alloc, handlers.NewWithTestRoutes, change...)
}

// bubbledBy is bubbled with an API that a function makes.
func bubbledBy(t *testing.T, alloc *fakeAlloc, newAPI func(handlers.Config) *handlers.API,
	change ...func(*handlers.Config)) (dial func() net.Conn, stop func()) {
	log := new(polltest.Log)
	config := handlers.Config{Server: handlers.Server{
		Authenticator: fakeAuthenticator{}, Allocs: allocs{alloc}, Logger: slog.New(slog.NewTextHandler(log, nil)),
		PeerOf: func(net.Conn) (auth.Peer, error) { return peer, nil },
	}}
	for _, f := range change {
		f(&config)
	}
	a := newAPI(config)
	s := transporttest.Serve(t, 1, "", func(ctx context.Context, l net.Listener) error {
		return a.Serve(ctx, l, taskSocket)
	})
	stop = func() {
		s.Stop()
		if text := log.String(); text != "" { // a bad client and a late one are no faults of the server
			t.Errorf("the log holds\n%s", text)
		}
	}
	return s.Dials[0], stop
}

// cutAfter returns how long the server keeps a connection on which no answer comes.
func cutAfter(t *testing.T, c net.Conn) time.Duration {
	t.Helper()
	start := time.Now()
	if text, err := io.ReadAll(c); err != nil || len(text) != 0 {
		t.Errorf("read %q, %v; want the connection closed", text, err)
	}
	return time.Since(start)
}

// answer reads a status.
func answer(t *testing.T, c net.Conn) int {
	t.Helper()
	response := must.Get(http.ReadResponse(bufio.NewReader(c), nil))(t)
	return readReply(t, response).Status
}

func TestSlowClients(t *testing.T) {
	put := "PUT " + restartPath + " HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: good\r\n"
	t.Run("silent from the start", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			dial, stop := bubbled(t, newAlloc(t))
			defer stop()
			if got := cutAfter(t, dial()); got < 10*time.Second || got > 11*time.Second {
				t.Errorf("cut off after %v, want 10s to 11s", got)
			}
		})
	})
	t.Run("a head in drops", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			dial, stop := bubbled(t, newAlloc(t))
			defer stop()
			c, start := dial(), time.Now()
			last := make(chan string)
			go func() {
				text, _ := io.ReadAll(c)
				last <- string(text)
			}()
			for i := 0; ; i++ {
				if _, err := c.Write([]byte(put[i%len(put):][:1])); err != nil {
					break
				}
				time.Sleep(time.Second)
			}
			if got := time.Since(start); got > 12*time.Second {
				t.Errorf("cut off after %v, want 10s to 11s or one drop more", got)
			}
			if text := <-last; strings.Contains(text, "200 OK") {
				t.Errorf("answered %q, want no more than a reproach", text)
			}
		})
	})
	t.Run("a body that stops", func(t *testing.T) {
		for _, method := range []string{"PUT", "GET"} { // also where no handler reads it
			synctest.Test(t, func(t *testing.T) {
				dial, stop := bubbled(t, newAlloc(t))
				defer stop()
				c, start := dial(), time.Now()
				text := strings.Replace(put, "PUT", method, 1) + "Content-Length: 10\r\n\r\n{"
				go func() { _, _ = io.WriteString(c, text) }()
				_, _ = io.ReadAll(c)
				if got, want := time.Since(start), 11*time.Second; got > want {
					t.Errorf("%s: cut off after %v, want 10s", method, got)
				}
			})
		}
	})
	t.Run("a body that nobody wants", func(t *testing.T) {
		for header, want := range map[string]time.Duration{
			"X-Nomad-Token: bad\r\n":                          time.Second,
			"X-Nomad-Token: poor\r\n":                         time.Second,
			"X-Nomad-Token: bad\r\nExpect: 100-continue\r\n":  0,
			"X-Nomad-Token: poor\r\nExpect: 100-continue\r\n": 0,
		} {
			synctest.Test(t, func(t *testing.T) {
				dial, stop := bubbled(t, newAlloc(t))
				defer stop()
				c, start := dial(), time.Now()
				defer c.Close()
				go func() {
					_, _ = io.WriteString(c, "PUT "+restartPath+" HTTP/1.1\r\nHost: x\r\n"+header+"Content-Length: 10\r\n\r\n")
				}()
				if status := answer(t, c); status != http.StatusForbidden {
					t.Errorf("%q: %d, want 403", header, status)
				}
				if got := time.Since(start); got > want {
					t.Errorf("%q: answered after %v, want %v", header, got, want)
				}
			})
		}
	})
	t.Run("a client that does not read", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			dial, stop := bubbled(t, newAlloc(t))
			defer stop()
			c, start := dial(), time.Now()
			_, _ = io.WriteString(c, head("GET", checksPath, goodToken, ""))
			for {
				if _, err := c.Write([]byte("x")); err != nil { // the server reads ahead by a byte, then no more
					break
				}
			}
			if got, want := time.Since(start), 31*time.Second; got > want {
				t.Errorf("cut off after %v, want 30s", got)
			}
		})
	})
	t.Run("idle for long", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			dial, stop := bubbled(t, newAlloc(t))
			defer stop()
			c := dial()
			defer c.Close()
			for range 3 {
				go func() { _, _ = io.WriteString(c, head("GET", checksPath, goodToken, "")) }()
				if got := answer(t, c); got != 200 {
					t.Errorf("after idling = %d, want 200", got)
				}
				time.Sleep(9 * time.Minute)
			}
		})
	})
}

// TestWaits: a blocking query waits as long as it says, five minutes by default and ten at most, and its answer then
// has the whole time of an answer.
func TestWaits(t *testing.T) {
	for query, want := range map[string]time.Duration{
		"?index=34&wait=10s":         10 * time.Second,
		"?index=34&wait=90000ms":     90 * time.Second,
		"?index=34":                  5 * time.Minute,
		"?index=34&wait=0s":          5 * time.Minute,
		"?index=99999999&wait=1000h": 10 * time.Minute,
		"?index=33&wait=10s":         0,
		"?index=0&wait=10s":          0,
		"?wait=10s":                  0,
	} {
		synctest.Test(t, func(t *testing.T) {
			alloc := newAlloc(t)
			alloc.wait = func(ctx context.Context, _ uint64) *api.Allocation { <-ctx.Done(); return alloc.snapshot() }
			dial, stop := bubbled(t, alloc)
			defer stop()
			c, start := dial(), time.Now()
			defer c.Close()
			go func() { _, _ = io.WriteString(c, head("GET", "/v1/allocation/"+allocID+query, goodToken, "")) }()
			if got := answer(t, c); got != 200 {
				t.Errorf("%s = %d, want 200", query, got)
			}
			if got := time.Since(start); got != want {
				t.Errorf("%s took %v, want %v", query, got, want)
			}
		})
	}
}

// TestLongAction: an action may take longer than an answer or a body may, and the connection is as good as new after
// it.
func TestLongAction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := newAlloc(t)
		alloc.restartRunning = func(ctx context.Context) error {
			select {
			case <-time.After(2 * time.Minute):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		alloc.wait = func(ctx context.Context, _ uint64) *api.Allocation { <-ctx.Done(); return alloc.snapshot() }
		dial, stop := bubbled(t, alloc)
		defer stop()
		c := dial()
		defer c.Close()
		go func() { _, _ = io.WriteString(c, head("PUT", restartPath, goodToken, "{}")) }()
		if got := answer(t, c); got != 200 {
			t.Errorf("a restart of two minutes = %d, want 200", got)
		}
		start := time.Now()
		go func() { _, _ = io.WriteString(c, head("GET", "/v1/allocations?index=34&wait=20s", goodToken, "")) }()
		if got, took := answer(t, c), time.Since(start); got != 200 || took != 20*time.Second {
			t.Errorf("the connection's next request, a wait of 20s = %d after %v", got, took)
		}
	})
}

// TestCutOff: what does not end when the server stops is cut off after its grace, and Serve returns when it has ended.
func TestCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc, started := newAlloc(t), make(chan struct{})
		alloc.restartRunning = func(ctx context.Context) error {
			close(started)
			<-ctx.Done()
			time.Sleep(time.Minute)
			return ctx.Err()
		}
		dial, stop := bubbled(t, alloc)
		c := dial()
		go func() { _, _ = io.WriteString(c, head("PUT", restartPath, goodToken, "{}")) }()
		<-started
		start := time.Now()
		stop()
		if got, want := time.Since(start), 63*time.Second; got < want || got > want+time.Second {
			t.Errorf("stopped after %v, want %v", got, want)
		}
		if text, _ := io.ReadAll(c); strings.Contains(string(text), " 200 ") {
			t.Errorf("answered %q, want no success of what was not done", text)
		}
	})
}

// TestSilentConnectionsDelayNoEnd: a server that stops waits for requests, and hardly for connections on which none has
// come, or only a part of a head.
func TestSilentConnectionsDelayNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial, stop := bubbled(t, newAlloc(t))
		c, half := dial(), dial()
		defer c.Close()
		defer half.Close()
		must.Get(io.WriteString(half, "GET /v1/"))(t)
		synctest.Wait() // both are read from now
		start := time.Now()
		stop()
		if got := time.Since(start); got > 2*transport.SilentGrace { // net/http looks for the end of connections by a clock
			t.Errorf("stopped after %v, want %v", got, transport.SilentGrace)
		}
	})
}

// TestRequestAtTheEnd: a client that has just connected when the server stops, or has sent half a head, is answered.
func TestRequestAtTheEnd(t *testing.T) {
	request := head("GET", "/v1/allocation/"+allocID, goodToken, "")
	for _, before := range []int{0, 20} {
		synctest.Test(t, func(t *testing.T) {
			dial, stop := bubbled(t, newAlloc(t))
			c := dial()
			defer c.Close()
			must.Get(io.WriteString(c, request[:before]))(t)
			synctest.Wait() // it is read
			stopped := make(chan struct{})
			go func() { defer close(stopped); stop() }()
			time.Sleep(transport.SilentGrace / 2)
			must.Get(io.WriteString(c, request[before:]))(t)
			response := must.Get(http.ReadResponse(bufio.NewReader(c), nil))(t)
			if got := readReply(t, response); got.Status != 200 {
				t.Errorf("%d bytes sent before: answered %d %q, want 200", before, got.Status, got.Body)
			}
			<-stopped
		})
	}
}

// TestActionOutlivesItsClient: a task that restarts itself is gone before the restart is done, and restarted all the
// same.
func TestActionOutlivesItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc, started, gone, ended := newAlloc(t), make(chan struct{}), make(chan struct{}), make(chan error, 1)
		alloc.restartTask = func(ctx context.Context, _ string) error {
			close(started)
			<-gone
			ended <- ctx.Err()
			return nil
		}
		dial, stop := bubbled(t, alloc)
		defer stop()
		c := dial()
		go func() { _, _ = io.WriteString(c, head("PUT", restartPath, goodToken, `{"TaskName":"server"}`)) }()
		<-started
		_ = c.Close()
		synctest.Wait() // the server has seen the end of the connection
		close(gone)
		if err := <-ended; err != nil {
			t.Errorf("the restart's context ended with its client: %v", err)
		}
	})
}
