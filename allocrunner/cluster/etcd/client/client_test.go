package client

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestHeard: the time at which a watch was heard has nothing to do with the machine's clock, which may be set.
func TestHeard(t *testing.T) {
	w := Watch{began: time.Now()}
	if heard := w.Heard(); !strings.Contains(heard.String(), " m=") {
		t.Errorf("%v is of the clock", heard)
	}
}

// TestFrozen: when all endpoints take requests and answer none, each call ends in time, and says of a change that
// nobody knows whether it was made.
func TestFrozen(t *testing.T) {
	for _, endpoints := range [][]string{{"http://a:1"}, {"http://a:1", "http://b:1", "http://c:1"}} {
		synctest.Test(t, func(t *testing.T) {
			c := New(Config{Endpoints: endpoints})
			frozen := func(context.Context, string, string) (net.Conn, error) {
				here, there := net.Pipe()
				go func() { _, _ = io.Copy(io.Discard, there) }()
				return here, nil
			}
			c.http.Transport.(*http.Transport).DialContext = frozen
			defer c.Close()
			for name, call := range map[string]func() error{
				"range":     func() error { _, err := c.Range(t.Context(), RangeRequest{}); return err },
				"txn":       func() error { _, err := c.Txn(t.Context(), Txn{}); return err },
				"keepalive": func() error { _, err := c.KeepAlive(t.Context(), 1); return err },
				"watch":     func() error { _, err := c.Watch(t.Context(), "a", 1); return err },
			} {
				began := time.Now()
				err := call()
				if err != nil && !strings.Contains(err.Error(), "no answer in time") {
					t.Errorf("%s of %d endpoints: %v", name, len(endpoints), err)
				}
				if took := time.Since(began); err == nil || took > callTimeout || IsUncertain(err) != (name == "txn") {
					t.Errorf("%s of %d endpoints: %v after %v", name, len(endpoints), err, took)
				}
			}
		})
	}
}
