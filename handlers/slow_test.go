package handlers_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/handlers"
	"taskapi/ratelimit"
)

// slowed has changes recorded, and slowed to one in half an hour after so many.
func slowed(burst int) (audited *server, change func(*handlers.Config)) {
	audited = new(server)
	return audited, func(c *handlers.Config) {
		c.Auditor, c.Limits = audited, limitset.Default()
		c.Limits.Changes = ratelimit.Rate{PerSecond: 1. / 1800, Burst: burst}
	}
}

// stopping returns an allocation that counts its stops.
func stopping(t *testing.T) (*fakeAlloc, *atomic.Int64) {
	alloc, stops := newAlloc(t), new(atomic.Int64)
	alloc.stop = func(context.Context, bool) error { stops.Add(1); return nil }
	return alloc, stops
}

// sendStop writes a request for a stop on a new connection.
func sendStop(dial func() net.Conn, token string) net.Conn {
	c := dial()
	go func() { _, _ = io.WriteString(c, head("PUT", stopPath, token, "")) }()
	return c
}

// TestChangesAreSlowed: each is made and recorded, also beyond the limit, and reads don't wait.
func TestChangesAreSlowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc, stops := stopping(t)
		alloc.signal = func(context.Context, string, string) error { stops.Add(1); return nil }
		audited, change := slowed(3)
		dial, stop := bubbled(t, alloc, change)
		defer stop()
		start := time.Now()
		ask := func(method, path, body string) {
			c := dial()
			defer c.Close()
			go func() {
				_, _ = io.WriteString(c, strings.TrimSuffix(head(method, path, goodToken, body), body))
				_, _ = io.WriteString(c, body) // which the client has ten seconds for, beside the wait
			}()
			if got := answer(t, c); got != http.StatusOK {
				t.Errorf("%s %s = %d", method, path, got)
			}
		}
		for range 3 {
			ask("PUT", stopPath, "")
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("the first ones took %v", took)
		}
		for range 2 {
			ask("PUT", signalPath, `{"Signal":"SIGHUP","Task":"server"}`)
			ask("GET", checksPath, "")
		}
		if took := time.Since(start).Round(time.Second); took != time.Hour || stops.Load() != 5 ||
			len(audited.audited()) != 5 {
			t.Errorf("%d changes of 5 and %d records after %v, want an hour", stops.Load(), len(audited.audited()), took)
		}
	})
}

// TestOperatorIsNotSlowed, so that nobody keeps him from stopping anything.
func TestOperatorIsNotSlowed(t *testing.T) {
	alloc, stops := stopping(t)
	_, change := slowed(1)
	s := newServerOf(t, auth.Owner{AllocationID: allocID, UID: peer.UID}, alloc, change)
	for range 5 {
		if got := s.once(t, "PUT", head("PUT", stopPath, operator, "")); got.Status != http.StatusOK {
			t.Error(got)
		}
	}
	if stops.Load() != 5 {
		t.Errorf("%d stops of 5", stops.Load())
	}
}

// TestSlowedIsDecidedAgain: a change is not made for a token that is good no more when its turn comes.
func TestSlowedIsDecidedAgain(t *testing.T) {
	eachMeanwhile(t, func(t *testing.T, authenticator *auth.Authenticator, token string, happens func(), allowed bool) {
		alloc, stops := stopping(t)
		_, change := slowed(1)
		dial, stop := bubbled(t, alloc, change, func(c *handlers.Config) {
			c.Authenticator = authenticator
			if allowed { // the wait ends before the token does
				c.Limits.Changes.PerSecond = 1
			}
		})
		defer stop()
		first := sendStop(dial, token)
		defer first.Close()
		answer(t, first)
		second := sendStop(dial, token)
		defer second.Close()
		synctest.Wait() // it waits
		happens()
		if got := answer(t, second); (got == http.StatusOK) != allowed ||
			stops.Load() != map[bool]int64{true: 2, false: 1}[allowed] {
			t.Errorf("the second stop = %d, and %d were made; want it made: %v", got, stops.Load(), allowed)
		}
	})
}

// TestSlowedAndGone: a change that waits is not made for a client that has gone, nor by a server that stops, which
// waits for none.
func TestSlowedAndGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc, stops := stopping(t)
		_, change := slowed(1)
		dial, stop := bubbled(t, alloc, change)
		first := sendStop(dial, goodToken)
		defer first.Close()
		answer(t, first)
		gone := sendStop(dial, goodToken)
		synctest.Wait()
		gone.Close()
		time.Sleep(time.Hour)
		waiting := sendStop(dial, goodToken)
		defer waiting.Close()
		if got := answer(t, waiting); got != http.StatusOK || stops.Load() != 2 {
			t.Errorf("after the one that has gone = %d, and %d were made; want two", got, stops.Load())
		}
		last := sendStop(dial, goodToken)
		defer last.Close()
		status := make(chan int, 1)
		go func() { status <- answer(t, last) }()
		synctest.Wait()
		began := time.Now()
		stop()
		if got := <-status; got != http.StatusServiceUnavailable || stops.Load() != 2 || time.Since(began) > time.Second {
			t.Errorf("at the server's end = %d after %v, and %d were made; want 503 at once, and two", got, time.Since(began),
				stops.Load())
		}
	})
}
