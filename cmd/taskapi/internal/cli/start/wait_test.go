package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
)

// guarded is what sayChecks reads and writes while a test does: under synctest time passing is no synchronization.
type guarded struct {
	mu      sync.Mutex // guards the fields below
	said    bytes.Buffer
	results api.AllocCheckStatuses
	err     error
}

func (g *guarded) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.said.Write(p)
}

func (g *guarded) latest(context.Context) (api.AllocCheckStatuses, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.results), g.err
}

func (g *guarded) set(id, status string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.results[id] = api.AllocCheckStatus{ID: id, Check: id, Service: "s", Status: status, Output: "why\u202e\n"}
}

// TestSayChecks: a command that waits long for an allocation to be healthy names the checks that keep it from that,
// once for each change.
func TestSayChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		g := &guarded{results: api.AllocCheckStatuses{}}
		g.set("good", "success")
		g.set("bad", "failure")
		go sayChecks(ctx, g, g.latest)
		expect := func(after time.Duration, want string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			g.mu.Lock()
			defer g.mu.Unlock()
			if got := g.said.String(); got != want {
				t.Errorf("said %q, want %q", got, want)
			}
			g.said.Reset()
		}
		expect(9*time.Second, "")
		expect(2*time.Second, "taskapi: the latest result of check \"bad\" of service \"s\" is failure: why?\n")
		expect(time.Minute, "")
		g.set("bad", "success")
		g.set("good", "failure")
		expect(2*time.Second, "taskapi: the latest result of check \"bad\" of service \"s\" is success: why?\n"+
			"taskapi: the latest result of check \"good\" of service \"s\" is failure: why?\n")
		g.mu.Lock()
		g.err = errors.New("its taskapi is gone")
		g.mu.Unlock()
		expect(time.Minute, "")
		end()
	})
}
