package handlers_test

import (
	"bufio"
	"crypto/ed25519"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/auth"
	"taskapi/auth/badtokens"
	"taskapi/auth/limitset"
	"taskapi/handlers"
	"taskapi/handlers/internal/route"
	"taskapi/identity"
	"taskapi/identity/revocation"
	"taskapi/internal/must"
)

// repeats counts how often the authenticator is asked about the same parsed request, which only the lane gives twice.
type repeats struct {
	*auth.Authenticator

	mu    sync.Mutex
	times map[*http.Request]int // guarded by mu
}

func (a *repeats) Authenticate(r *http.Request, owner auth.Owner, peer auth.Peer) (*auth.Principal, *auth.Denial) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.times[r]++
	return a.Authenticator.Authenticate(r, owner, peer)
}

// taken returns how many requests have taken the lane, but for the first of each remembered head.
func (a *repeats) taken() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, times := range a.times {
		n += times - 1
	}
	return n
}

// lanes are two sockets with the same authenticator: one remembers heads, the other does not.
type lanes struct {
	with, without conn
	repeats       *repeats
}

func newLanes(t *testing.T, authenticator *auth.Authenticator) *lanes {
	t.Helper()
	l := &lanes{repeats: &repeats{Authenticator: authenticator, times: map[*http.Request]int{}}}
	limits := limitset.Default()
	l.with = newServer(t, quietAlloc(t), everyRoute, func(c *handlers.Config) {
		c.Authenticator, c.Limits = l.repeats, limits
	}).dial(t)
	limits.Heads = 0
	l.without = newServer(t, quietAlloc(t), everyRoute, func(c *handlers.Config) {
		c.Authenticator, c.Limits = authenticator, limits
	}).dial(t)
	return l
}

// goroutines is what two answers of /v1/agent/self may differ in.
var goroutines = regexp.MustCompile(`"goroutines": ?"\d+"`)

// same sends a request to both sockets and fails the test unless the answers are the same, which it returns.
func (l *lanes) same(t *testing.T, text string) reply {
	t.Helper()
	var got [2]reply
	for i, c := range []conn{l.with, l.without} {
		got[i] = c.send(t, http.MethodGet, text)
		got[i].Header.Del("Date")
		got[i].Body = goroutines.ReplaceAllString(got[i].Body, "")
	}
	if !reflect.DeepEqual(got[0], got[1]) {
		t.Errorf("%.200q is answered by\n%+v\nafter others like it, and without the lane by\n%+v", text, got[0], got[1])
	}
	return got[0]
}

func laneHead(path, token string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: local\r\nX-Nomad-Token: " + token + "\r\n\r\n"
}

// TestRepeatedReads: every read that is answered at once takes the lane when it is sent again, with and without a
// query, and gets the answer that it gets without the lane.
func TestRepeatedReads(t *testing.T) {
	authenticator, sign := realAuthenticator(t)
	l := newLanes(t, authenticator)
	token := sign(func(*identity.Claims) {})
	for _, entry := range handlers.AllRoutes() {
		if entry.Methods[0] != http.MethodGet || entry.Answer != route.JSON ||
			entry.AnyOf&auth.DefaultTask == 0 || strings.HasPrefix(entry.Pattern, "/v1/client/fs/") {
			continue
		}
		for _, query := range []string{"", "?pretty", "?namespace=default&stale"} {
			text := laneHead(target(entry, allocID)+query, token)
			first, before, taken := l.same(t, text), l.repeats.taken(), 0
			short := first.Status == http.StatusOK && len(first.Body) <= 16<<10
			// While net/http ends a request it may read the first byte of the next one, which then does not take the lane.
			for n := 0; taken == 0 && (n < 5 || short && n < 100); n++ {
				l.same(t, text)
				taken = l.repeats.taken() - before
			}
			if taken > 0 != short {
				t.Errorf("%s%s: status %d, %d bytes; takes the lane: %v, want %v", entry.Pattern, query, first.Status,
					len(first.Body), taken > 0, short)
			}
		}
		for _, query := range []string{"?index=0", "?filter=ID+is+not+empty"} {
			before := l.repeats.taken()
			for range 5 {
				l.same(t, laneHead(target(entry, allocID)+query, token))
			}
			if got := l.repeats.taken() - before; got != 0 {
				t.Errorf("%s%s: %d requests took the lane that might wait", entry.Pattern, query, got)
			}
		}
	}
}

// TestBadTokensInTheLane: a bad token gets, between good ones whose head is remembered and when it is sent again, what
// it gets without the lane.
func TestBadTokensInTheLane(t *testing.T) {
	authenticator, ring, sign := realAuthenticatorWith(t, live{})
	const path = "/v1/allocations"
	token := sign(func(*identity.Claims) {})
	read := must.Get(identity.Check(token))(t)
	another := badtokens.NewKey("another", ed25519.NewKeyFromSeed(make([]byte, 32)))
	good := badtokens.Good{Key: badtokens.NewKey(ring.Signer()), Now: time.Now(), Claims: read.Claims,
		OtherKeyID: another.ID}
	bad := map[string]string{"none": "", "of the operator": sign(func(c *identity.Claims) {
		c.Task, c.Role, c.Subject = "", identity.RoleOperator, identity.Subject("global", "default", "demo", "web", "",
			"operator")
	})}
	for _, kind := range badtokens.All() {
		made, err := kind.Token(good)
		if err == nil && badtokens.InHeader(made) && len(made) < 3<<10 && !kind.Foreign { // the keys are the ring's own
			bad[kind.Name] = made
		}
	}
	if len(bad) < 100 {
		t.Fatalf("%d kinds of bad tokens can be sent", len(bad))
	}
	l := newLanes(t, authenticator) // now, since a connection has ten seconds for its first request
	for _, name := range slices.Sorted(maps.Keys(bad)) {
		for _, sent := range []string{token, bad[name], bad[name], bad[name], token} {
			got := l.same(t, laneHead(path, sent))
			if (got.Status == http.StatusOK) != (sent == token) {
				t.Errorf("%s: %.80q is answered with %d", name, sent, got.Status)
			}
		}
	}
	if got := l.repeats.taken(); got < len(bad) {
		t.Errorf("%d requests took the lane, want one between the tokens of any two of %d kinds", got,
			len(bad))
	}
}

// TestDeniedInTheLane: whatever takes a token's right away counts for the next request in the lane.
func TestDeniedInTheLane(t *testing.T) {
	asked := func(t *testing.T, authenticator *auth.Authenticator, token string, happens func(), allowed bool) {
		repeated := &repeats{Authenticator: authenticator, times: map[*http.Request]int{}}
		dial, stop := bubbled(t, newAlloc(t), func(c *handlers.Config) { c.Authenticator = repeated })
		defer stop()
		raw := dial()
		defer raw.Close()
		c, text := conn{raw, bufio.NewReader(raw)}, laneHead("/v1/allocations", token)
		for range 4 {
			c.send(t, http.MethodGet, text)
			synctest.Wait()
		}
		happens()
		if got := repeated.taken(); got != 1 {
			t.Errorf("%d requests took the lane, want 2", got+1)
		}
		got := c.send(t, http.MethodGet, text)
		if got.Status == http.StatusOK != allowed {
			t.Errorf("after it, status %d", got.Status)
		}
	}
	eachMeanwhile(t, func(t *testing.T, authenticator *auth.Authenticator, token string, happens func(), allowed bool) {
		if strings.HasSuffix(t.Name(), "the_token_expires") {
			t.Skip("a connection may be idle for ten minutes, the token is good for an hour; see below")
		}
		// An answer that waited is still sent when the allocation has ended. A new request of its task is refused.
		asked(t, authenticator, token, happens, allowed && !strings.HasSuffix(t.Name(), "the_allocation_ends"))
	})
	t.Run("a short token expires", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			authenticator, sign := realAuthenticator(t)
			token := sign(func(c *identity.Claims) { c.ExpiresAt = time.Now().Unix() + 60 })
			asked(t, authenticator, token, func() { time.Sleep(5 * time.Minute) }, false)
		})
	})
}

// TestHalfClosedInTheLane: a client that has sent all that it will send gets its answer, in the lane, too.
func TestHalfClosedInTheLane(t *testing.T) {
	authenticator, sign := realAuthenticator(t)
	l := newLanes(t, authenticator)
	text := laneHead("/v1/allocations", sign(func(*identity.Claims) {}))
	for n := 0; l.repeats.taken() == 0 && n < 100; n++ { // the request after one in the lane takes it, too
		l.same(t, text)
	}
	for name, c := range map[string]conn{"with": l.with, "without": l.without} {
		before := l.repeats.taken()
		must.Get(io.WriteString(c.Conn, text))(t)
		must.OK(t, c.Conn.(*net.UnixConn).CloseWrite())
		answer, err := http.ReadResponse(c.Reader, nil)
		if err != nil {
			t.Fatal(name, err)
		}
		_, err = io.Copy(io.Discard, answer.Body)
		if _, end := c.ReadByte(); answer.StatusCode != http.StatusOK || err != nil || !errors.Is(end, io.EOF) {
			t.Errorf("%s the lane: status %d, %v, and then %v", name, answer.StatusCode, err, end)
		}
		if taken := l.repeats.taken() - before; name == "with" && taken != 1 {
			t.Errorf("%d requests took the lane, want 1", taken)
		}
	}
}

// TestRevokedWhilePolled: while many clients poll, the first request after a revocation is refused on every connection,
// and another token of the same task is refused nothing.
func TestRevokedWhilePolled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "revocations")
	var lists [2]*revocation.List // as of two processes
	for i := range lists {
		list := must.Get(revocation.Open(revocation.Config{Dir: dir}))(t)
		defer list.Close()
		lists[i] = list
	}
	authenticator, _, sign := realAuthenticatorWith(t, struct {
		live
		*revocation.List
	}{List: lists[0]})
	repeated := &repeats{Authenticator: authenticator, times: map[*http.Request]int{}}
	s := newServer(t, quietAlloc(t), func(c *handlers.Config) { c.Authenticator = repeated })
	var begun, revoked, over atomic.Bool // the revocation; the test
	var answers, polling sync.WaitGroup
	defer polling.Wait()
	defer over.Store(true)
	for i := range 16 {
		id := []string{"stolen", "good"}[i%2]
		text := laneHead("/v1/allocations", sign(func(c *identity.Claims) { c.ID = id }))
		c := s.dial(t)
		const warm = 20
		answers.Add(warm)
		polling.Go(func() {
			for n := 0; !over.Load(); n++ {
				mayBe, mustBe := id == "stolen", id == "stolen" && revoked.Load()
				status := c.send(t, http.MethodGet, text).Status
				mayBe = mayBe && begun.Load()
				if refused := status == http.StatusForbidden; refused && !mayBe || !refused && mustBe ||
					!refused && status != http.StatusOK {
					t.Errorf("the %s token: status %d; revoked when it was sent: %v", id, status, mustBe)
				}
				if n < warm {
					answers.Done()
				}
			}
		})
	}
	answers.Wait()
	begun.Store(true)
	must.Get(lists[1].Add(revocation.Rule{TokenID: "stolen"}))(t)
	revoked.Store(true)
	for range 50 {
		s.do(t, http.MethodGet, "/v1/allocations", sign(func(c *identity.Claims) { c.ID = "third" }), "")
	}
	if repeated.taken() == 0 {
		t.Error("no request took the lane")
	}
}
