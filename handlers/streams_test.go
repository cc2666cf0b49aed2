package handlers_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/handlers"
	"taskapi/handlers/events"
	"taskapi/internal/must"
)

// openStream sends the request for a stream and reads the answer's head.
func openStream(t *testing.T, c net.Conn) *http.Response {
	t.Helper()
	go func() { _, _ = io.WriteString(c, head("GET", streamPath, goodToken, "")) }()
	return must.Get(http.ReadResponse(bufio.NewReader(c), nil))(t)
}

const (
	slowConsumerEnd = `{"Error":"events were lost, because they were not read in time: connect again"}`
	unauthorizedEnd = `{"Error":"the token is not valid any more: connect again with a new one"}`
)

// TestStreamsEnd: with the token, by its clock or by its refusal.
func TestStreamsEnd(t *testing.T) {
	for name, c := range map[string]struct {
		authenticator func(start time.Time, refused *atomic.Pointer[auth.Denial]) *streamAuthenticator
		then          *auth.Denial // after 14.5 s
		lasts         time.Duration
		last          string
	}{
		"it expires": {func(start time.Time, _ *atomic.Pointer[auth.Denial]) *streamAuthenticator {
			return &streamAuthenticator{expires: start.Add(65 * time.Second).Unix()}
		}, nil, 65 * time.Second, unauthorizedEnd},
		"it is revoked": {func(_ time.Time, refused *atomic.Pointer[auth.Denial]) *streamAuthenticator {
			return &streamAuthenticator{expires: lasting, refuse: refused.Load}
		}, forbidden, 15 * time.Second, unauthorizedEnd},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var refused atomic.Pointer[auth.Denial]
				start := time.Now()
				dial, stop := bubbled(t, newAlloc(t), func(config *handlers.Config) {
					config.Authenticator, config.Events = c.authenticator(start, &refused), events.New()
				})
				defer stop()
				conn := dial()
				defer conn.Close()
				response := openStream(t, conn)
				time.AfterFunc(14500*time.Millisecond, func() { refused.Store(c.then) })
				text, err := io.ReadAll(response.Body)
				if got := time.Since(start); err != nil || got != c.lasts {
					t.Errorf("the stream lasted %v (%v), want %v", got, err, c.lasts)
				}
				lines := strings.Split(strings.TrimSpace(string(text)), "\n")
				beats := 2 + int((c.lasts-1)/(10*time.Second)) // with those before and after the events that there were
				if got := lines[len(lines)-1]; got != c.last || len(lines) != beats+1 {
					t.Errorf("%d lines, the last %q; want %d and %q", len(lines), got, beats+1, c.last)
				}
			})
		})
	}
}

// TestSlowConsumer: who does not read is neither waited for nor left without a word when he reads again in time.
func TestSlowConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := events.New()
		dial, stop := bubbled(t, newAlloc(t), streaming(log))
		defer stop()
		c := dial()
		defer c.Close()
		response := openStream(t, c)
		put(t, log, 40, nil)
		synctest.Wait() // the writer waits for the reader now
		for index := range uint64(300) {
			put(t, log, 41+index, nil)
		}
		time.Sleep(20 * time.Second)
		text, err := io.ReadAll(response.Body)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if err != nil || len(lines) < 2 || lines[0] != "{}" || lines[len(lines)-1] != slowConsumerEnd {
			t.Errorf("%d lines, %v; want {} first and a word on what was lost last, not %.200q", len(lines), err,
				lines[len(lines)-1])
		}
	})
}

// TestStreamWithoutAReader: it is cut off like any answer that nobody takes.
func TestStreamWithoutAReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := events.New()
		dial, stop := bubbled(t, newAlloc(t), streaming(log))
		defer stop()
		c := dial()
		openStream(t, c)
		time.Sleep(31 * time.Minute)
		if text, err := io.ReadAll(c); err != nil || len(text) > 64<<10 {
			t.Errorf("after half an hour: %d bytes, %v; want the connection closed", len(text), err)
		}
	})
}

// TestStreamsAndWaitsAreSettings: what is set counts on a task's socket, and takes nothing from the operator's.
func TestStreamsAndWaitsAreSettings(t *testing.T) {
	few := func(c *handlers.Config) {
		set := must.Get(limitset.Default().With("streams=1,waits=1"))(t)
		c.Limits, c.Events = set, events.New()
	}
	alloc := newAlloc(t)
	waiting := make(chan struct{}, 4)
	alloc.wait = func(ctx context.Context, _ uint64) *api.Allocation {
		waiting <- struct{}{}
		<-ctx.Done()
		return alloc.snapshot()
	}
	for _, test := range []struct {
		s     *server
		token string
		want  int
	}{
		{newServer(t, alloc, few), goodToken, 429},
		{newServerOf(t, auth.Owner{AllocationID: allocID, UID: peer.UID}, alloc, few), operator, 200},
	} {
		var open []net.Conn
		for i, want := range []int{200, test.want} {
			c := test.s.dial(t).Conn
			open = append(open, c)
			must.Get(io.WriteString(c, head("GET", "/v1/event/stream", test.token, "")))(t)
			response, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || response.StatusCode != want {
				t.Fatalf("stream %d of %s = %v, %v; want %d", i, test.token, response, err, want)
			}
		}
		first := test.s.dial(t).Conn
		open = append(open, first)
		must.Get(io.WriteString(first, head("GET", "/v1/allocation/"+allocID+"?index=34", test.token, "")))(t)
		<-waiting
		if got := test.s.do(t, "GET", "/v1/allocation/"+allocID+"?index=34&wait=1ms", test.token,
			""); got.Status != test.want {
			t.Errorf("a second query of %s = %d, want %d", test.token, got.Status, test.want)
		}
		for _, c := range open {
			_ = c.Close()
		}
		test.s.stop()
	}
}

// TestWaitsAreCounted: one socket has 64 at most, the one that is too many learns when to come again, and other
// requests are answered.
func TestWaitsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := newAlloc(t)
		alloc.wait = func(ctx context.Context, _ uint64) *api.Allocation { <-ctx.Done(); return alloc.snapshot() }
		dial, stop := bubbled(t, alloc)
		defer stop()
		ask := func(c net.Conn, query string) {
			go func() { _, _ = io.WriteString(c, head("GET", "/v1/allocation/"+allocID+query, goodToken, "")) }()
		}
		for i := range 64 {
			c := dial()
			defer c.Close()
			ask(c, fmt.Sprintf("?index=34&wait=%ds", 100+i))
		}
		synctest.Wait() // all wait now
		time.Sleep(9*time.Second + time.Millisecond)
		c := dial()
		defer c.Close()
		ask(c, "?index=34")
		response := must.Get(http.ReadResponse(bufio.NewReader(c), nil))(t)
		if got := readReply(t, response); got.Status != 429 || got.Header.Get("Retry-After") != "91" ||
			got.Body != "64 blocking queries wait on this socket, and no more are possible" {
			t.Errorf("one more = %d %q, Retry-After %q; want 429, 91", got.Status, got.Body, got.Header.Get("Retry-After"))
		}
		ask(c, "?index=33")
		if got := answer(t, c); got != 200 {
			t.Errorf("a query that need not wait = %d, want 200", got)
		}
		time.Sleep(91 * time.Second)
		start := time.Now()
		ask(c, "?index=34&wait=10s")
		if got, took := answer(t, c), time.Since(start); got != 200 || took != 10*time.Second {
			t.Errorf("after Retry-After = %d in %v, want a wait of 10s", got, took)
		}
	})
}

// TestStreamsDrain: a server that stops tells the last events and waits for no stream.
func TestStreamsDrain(t *testing.T) {
	for range 10 { // a stream that forgets the last events does so every other time
		synctest.Test(t, func(t *testing.T) {
			log := events.New()
			dial, stop := bubbled(t, newAlloc(t), streaming(log))
			c := dial()
			defer c.Close()
			response := openStream(t, c)
			put(t, log, 40, nil)
			synctest.Wait() // the writer waits for the reader now
			put(t, log, 41, nil)
			start, ended := time.Now(), make(chan time.Duration, 1)
			go func() {
				stop()
				ended <- time.Since(start)
			}()
			synctest.Wait() // the server drains now
			if got, want := indexes(t, response.Body), []uint64{40, 41}; !slices.Equal(got, want) {
				t.Errorf("events = %d, want %d", got, want)
			}
			if got := <-ended; got > time.Second {
				t.Errorf("the server stopped after %v, want it at once", got)
			}
		})
	}
}
