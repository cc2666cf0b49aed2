package handlers_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/variables"
	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/handlers"
	"taskapi/handlers/events"
	"taskapi/identity"
	"taskapi/internal/must"
)

// changing is the recorded allocation, which a test has end or begin another life, and its revocations.
type changing struct {
	life    atomic.Pointer[auth.Allocation]
	over    atomic.Bool
	revoked atomic.Bool
}

func (c *changing) Revoked(*identity.Claims) bool { return c.revoked.Load() }

func (c *changing) Lookup(id string) (*auth.Allocation, auth.Liveness) {
	switch {
	case id != allocID:
		return nil, auth.Unknown
	case c.over.Load():
		return c.life.Load(), auth.Terminal
	}
	return c.life.Load(), auth.Live
}

// meanwhile are things that happen to a caller whose request is under way, and whether its answer may still follow.
var meanwhile = []struct {
	name    string
	happens func(t *testing.T, allocation *changing, ring *identity.Keyring)
	allowed bool
}{
	{"nothing", func(*testing.T, *changing, *identity.Keyring) {}, true},
	{"the key is removed", func(t *testing.T, _ *changing, ring *identity.Keyring) {
		old := ring.Active().ID
		must.Get(ring.Rotate())(t)
		must.OK(t, ring.Remove(old))
	}, false},
	{"the token is revoked", func(_ *testing.T, allocation *changing, _ *identity.Keyring) {
		allocation.revoked.Store(true)
	}, false},
	{"the token expires", func(*testing.T, *changing, *identity.Keyring) { time.Sleep(9 * time.Second) }, false},
	{"another life begins", func(_ *testing.T, allocation *changing, _ *identity.Keyring) {
		next := demo
		next.Life = "the next"
		allocation.life.Store(&next)
	}, false},
	{"the allocation ends", func(_ *testing.T, allocation *changing, _ *identity.Keyring) { allocation.over.Store(true) },
		true},
}

// eachMeanwhile runs a test for each of them, with the real authenticator, and a token that is good for less time than
// a request has for its body.
func eachMeanwhile(t *testing.T, test func(t *testing.T, authenticator *auth.Authenticator, token string,
	happens func(), allowed bool)) {
	for _, m := range meanwhile {
		t.Run(m.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				allocation := new(changing)
				allocation.life.Store(&demo)
				authenticator, ring, sign := realAuthenticatorWith(t, allocation)
				token := sign(func(c *identity.Claims) { c.ExpiresAt = time.Now().Unix() + 8 })
				test(t, authenticator, token, func() { m.happens(t, allocation, ring) }, m.allowed)
			})
		})
	}
}

// TestWaitIsDecidedAgain: a blocking query is answered with what holds when it ends, not when it began.
func TestWaitIsDecidedAgain(t *testing.T) {
	for _, path := range []string{"/v1/allocation/" + allocID, "/v1/allocations", "/v1/job/demo", "/v1/jobs"} {
		eachMeanwhile(t, func(t *testing.T, authenticator *auth.Authenticator, token string, happens func(), allowed bool) {
			alloc, changed := newAlloc(t), make(chan struct{})
			alloc.wait = func(context.Context, uint64) *api.Allocation { <-changed; return alloc.snapshot() }
			dial, stop := bubbled(t, alloc, func(c *handlers.Config) { c.Authenticator = authenticator })
			defer stop()
			c := dial()
			defer c.Close()
			go func() { _, _ = io.WriteString(c, head("GET", path+"?index=34&wait=9m", token, "")) }()
			synctest.Wait() // it waits
			happens()
			close(changed)
			want := http.StatusForbidden
			if allowed {
				want = http.StatusOK
			}
			if got := answer(t, c); got != want {
				t.Errorf("GET %s = %d, want %d", path, got, want)
			}
		})
	}
}

// TestWaitEndsWithItsToken: a request that waits, for a change, a turn or memory, is refused within two seconds after
// its token has become invalid, and nobody else finds its place taken.
func TestWaitEndsWithItsToken(t *testing.T) {
	eachMeanwhile(t, func(t *testing.T, authenticator *auth.Authenticator, token string, happens func(), allowed bool) {
		alloc, goOn, limits := newAlloc(t), make(chan struct{}), limitset.Default()
		alloc.wait = func(ctx context.Context, _ uint64) *api.Allocation { <-ctx.Done(); return alloc.snapshot() }
		limits.Waits = 3
		dial, stop := bubbled(t, alloc, func(c *handlers.Config) {
			c.Authenticator, c.Limits = authenticator, limits
			c.Variables = heldVariables{newFakeVariables("nomad/jobs/demo"), goOn}
		})
		defer stop()
		defer close(goOn)
		paths := []string{"/v1/allocation/" + allocID + "?index=34&wait=9m", "/v1/jobs?index=34&wait=9m",
			"/v1/allocations?index=34&wait=9m", "/v1/vars", "/v1/vars"}
		ended := make(chan int, len(paths))
		for _, path := range paths {
			c := dial()
			defer c.Close()
			go func() { _, _ = io.WriteString(c, head("GET", path, token, "")) }()
			go func() { ended <- statusOf(c) }()
			synctest.Wait() // it waits
		}
		happens()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		want := len(paths) - 1 // the first list of variables is being made
		if allowed {
			want = 0
		}
		if len(ended) != want {
			t.Errorf("%d of %d requests have ended, want %d", len(ended), len(paths), want)
		}
		for range len(ended) {
			if got := <-ended; got != http.StatusForbidden {
				t.Errorf("a request was answered with %d", got)
			}
		}
	})
}

// TestEventIsDecidedAgain: a stream ends before the next event for which its token is good no more.
func TestEventIsDecidedAgain(t *testing.T) {
	eachMeanwhile(t, func(t *testing.T, authenticator *auth.Authenticator, token string, happens func(), allowed bool) {
		log := events.New()
		dial, stop := bubbled(t, newAlloc(t), func(c *handlers.Config) { c.Authenticator, c.Events = authenticator, log })
		c := dial()
		defer c.Close()
		go func() { _, _ = io.WriteString(c, head("GET", streamPath, token, "")) }()
		text := make(chan string)
		go func() {
			all, _ := io.ReadAll(c)
			text <- string(all)
		}()
		put(t, log, 40, nil)
		synctest.Wait()
		happens()
		put(t, log, 41, nil)
		synctest.Wait()
		stop()
		got := <-text
		if !strings.Contains(got, `"Index":40`) || strings.Contains(got, `"Index":41`) != allowed ||
			strings.Contains(got, unauthorizedEnd) == allowed {
			t.Errorf("the stream has the later event %v, and the word on its end %v; want %v and %v",
				strings.Contains(got, `"Index":41`),
				strings.Contains(got, unauthorizedEnd), allowed, !allowed)
		}
	})
}

// TestBodyIsDecidedAgain: what a slow body asks for is not done for a token that is good no more when the body is
// there.
func TestBodyIsDecidedAgain(t *testing.T) {
	eachMeanwhile(t, func(t *testing.T, authenticator *auth.Authenticator, token string, happens func(), allowed bool) {
		alloc, done := newAlloc(t), false
		alloc.signal = func(context.Context, string, string) error { done = true; return nil }
		dial, stop := bubbled(t, alloc, func(c *handlers.Config) { c.Authenticator = authenticator })
		defer stop()
		c := dial()
		defer c.Close()
		body := `{"Signal":"SIGHUP","Task":"server"}`
		whole := head("PUT", "/v1/client/allocation/"+allocID+"/signal", token, body)
		go func() { _, _ = io.WriteString(c, strings.TrimSuffix(whole, body[10:])) }()
		synctest.Wait() // the handler waits for the rest
		happens()
		go func() { _, _ = io.WriteString(c, body[10:]) }()
		if got := answer(t, c); (got == http.StatusOK) != allowed || done != allowed {
			t.Errorf("the signal = %d, and sent %v; want it sent: %v", got, done, allowed)
		}
	})
}

// heldVariables is variables whose lists wait until a test lets them go on.
type heldVariables struct {
	*fakeVariables
	goOn <-chan struct{}
}

func (v heldVariables) List(
	ctx context.Context, namespace, prefix string, concerns variables.Concerns,
) ([]*api.VariableMetadata, uint64, error) {
	<-v.goOn
	return v.fakeVariables.List(ctx, namespace, prefix, concerns)
}

// statusOf reads a status; 0 when there is no answer.
func statusOf(c net.Conn) int {
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	return response.StatusCode
}

// TestTurnIsDecidedAgain: a request that has waited for its turn to make a long answer needs a token that is still
// good.
func TestTurnIsDecidedAgain(t *testing.T) {
	eachMeanwhile(t, func(t *testing.T, authenticator *auth.Authenticator, token string, happens func(), allowed bool) {
		goOn := make(chan struct{})
		dial, stop := bubbled(t, newAlloc(t), func(c *handlers.Config) {
			c.Authenticator, c.Variables = authenticator, heldVariables{newFakeVariables("nomad/jobs/demo"), goOn}
		})
		defer stop()
		var answers [2]chan int
		for i := range answers {
			c := dial()
			defer c.Close()
			answers[i] = make(chan int, 1)
			go func() { _, _ = io.WriteString(c, head("GET", "/v1/vars", token, "")) }()
			go func() { answers[i] <- statusOf(c) }()
			synctest.Wait() // the first has the turn, and the second waits for it
		}
		happens()
		close(goOn)
		want := [...]int{http.StatusOK, http.StatusForbidden}
		if allowed {
			want[1] = http.StatusOK
		}
		for i, answer := range answers {
			if got := <-answer; got != want[i] {
				t.Errorf("answer %d = %d, want %d", i, got, want[i])
			}
		}
	})
}

// records are those of requests that have ended.
type records chan auth.Record

func (r records) Audit(record auth.Record)       { r <- record }
func (r records) Begin(record auth.Record) error { return nil }

// TestFilterIsDecidedAgain: a list that has waited for its turn to read a filter needs a token that is still good. One
// whose client has gone waits no longer.
func TestFilterIsDecidedAgain(t *testing.T) {
	eachMeanwhile(t, func(t *testing.T, authenticator *auth.Authenticator, token string, happens func(), allowed bool) {
		held, ended := make(chan struct{}), make(records, 8)
		dial, stop := bubbledBy(t, newAlloc(t), func(c handlers.Config) *handlers.API {
			return handlers.NewHeldFilters(c, held)
		}, func(c *handlers.Config) { c.Authenticator, c.Auditor, c.AuditReads = authenticator, ended, true })
		defer stop()
		var clients []net.Conn
		var answers [3]chan int
		const filter = "?filter=ID+is+not+empty"
		for i, path := range []string{"/v1/test", "/v1/allocations" + filter, "/v1/jobs" + filter} {
			c := dial()
			defer c.Close()
			clients, answers[i] = append(clients, c), make(chan int, 1)
			go func() { answers[i] <- statusOf(c) }()
			go func() { _, _ = io.WriteString(c, head("GET", path, token, "")) }()
			synctest.Wait() // the first has the turn, and the others wait for it
		}
		clients[2].Close()
		synctest.Wait()
		if len(ended) != 1 || (<-ended).Path != "/v1/jobs" {
			t.Error("the list of a client that has gone waits on")
		}
		happens()
		close(held)
		want := http.StatusForbidden
		if allowed {
			want = http.StatusOK
		}
		if got := <-answers[0]; got != http.StatusOK {
			t.Errorf("the first = %d", got)
		}
		if got := <-answers[1]; got != want {
			t.Errorf("the list after its wait = %d, want %d", got, want)
		}
	})
}
