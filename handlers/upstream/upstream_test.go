package upstream_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/handlers/upstream"
	"taskapi/identity"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/socket"
)

const allocID = "b29ec205-df7a-42ea-b4f8-b27f54486789"

// fixture is a gateway with two tasks' sockets, in front of a double.
type fixture struct {
	*testing.T
	agent   *double
	ring    *identity.Keyring
	sockets map[string]string // by task
	audit   *records
	uid     atomic.Uint32 // of those who connect; 0: the real one
}

// records is an Auditor.
type records struct {
	mu  sync.Mutex
	all []auth.Record
}

func (a *records) Audit(r auth.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, r)
}

func (a *records) Begin(auth.Record) error { return nil }

type live struct{ alloc *auth.Allocation }

func (l live) Lookup(id string) (*auth.Allocation, auth.Liveness) {
	if id != allocID {
		return nil, auth.Unknown
	}
	return l.alloc, auth.Live
}

func (f *fixture) peerOf(c net.Conn) (auth.Peer, error) {
	peer := c.(*socket.Conn).Peer()
	peer.UID = cmp.Or(f.uid.Load(), peer.UID)
	return peer, nil
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, agent: newDouble(t), sockets: map[string]string{}, audit: &records{}}
	var err error
	f.ring = must.Get(identity.OpenKeyring(identity.KeyringConfig{Dir: filepath.Join(t.TempDir(), "keyring")}))(t)
	f.agent.jwks = f.ring.JWKS()
	address := must.Get(upstream.ParseAddress("unix://" + f.agent.path))(t)
	logger := slog.New(slog.DiscardHandler)
	nomad := upstream.NewAgent(address, nil, func() string { return "gateway" })
	keys := upstream.NewKeys(nomad)
	verifier, err := identity.NewVerifier(identity.VerifierConfig{
		Local: new(identity.KeySet), Foreign: []identity.Issuer{{Keys: keys, NoExpiry: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	authenticator, err := auth.NewAuthenticator(auth.Config{
		Verifier: verifier, Logger: logger, Auditor: f.audit, Keys: []identity.KeySource{keys},
		Allocations: live{&auth.Allocation{Region: "global", Namespace: "default", JobID: "job", TaskGroup: "group"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	limits := limitset.Default()
	limits.Waits, limits.Connections = 256, 512
	server := upstream.New(upstream.Config{
		Agent: nomad, Authenticator: authenticator, Region: "global", PeerOf: f.peerOf, Logger: logger, Auditor: f.audit,
		Limits: limits, Ready: func() bool { return keys.Keys() != nil },
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	running.Go(func() { keys.Run(ctx, logger) })
	for _, task := range []string{"web", "worker"} {
		f.sockets[task] = filepath.Join(filepath.Dir(f.agent.path), task+".sock")
		l := must.Get(socket.Listen(socket.Config{Path: f.sockets[task], UID: -1, GID: -1, MaxConns: limits.Connections}))(t)
		running.Go(func() {
			if err := server.Serve(ctx, l, auth.Owner{AllocationID: allocID, Task: task, AnyUser: true}); err != nil {
				t.Error(err)
			}
		})
	}
	f.until("the keys are fetched", func() bool {
		return f.do("web", "GET", "/v1/agent/self", f.token("web", allocID), "").status != http.StatusServiceUnavailable
	})
	return f
}

func (f *fixture) token(task, alloc string) string { return f.tokenFor(task, alloc, 3600) }

func (f *fixture) tokenFor(task, alloc string, seconds int64) string {
	f.Helper()
	token, err := f.ring.Sign(identity.Claims{
		Subject:  identity.Subject("global", "default", "job", "group", task, "default"),
		Audience: []string{identity.DefaultAudience}, IssuedAt: time.Now().Unix(), NotBefore: time.Now().Unix(),
		ExpiresAt: time.Now().Unix() + seconds, Namespace: "default", JobID: "job", AllocationID: alloc, Task: task,
	})
	if err != nil {
		f.Fatal(err)
	}
	return token
}

// replaceKey replaces the key of all tokens so far.
func (f *fixture) replaceKey() {
	f.Helper()
	old := f.ring.Active().ID
	_, err := f.ring.Rotate()
	must.OK(f, errors.Join(err, f.ring.Remove(old)))
	f.agent.mu.Lock()
	defer f.agent.mu.Unlock()
	f.agent.jwks = f.ring.JWKS()
}

// until looks again and again, with a generous deadline.
func (f *fixture) until(what string, done func() bool) {
	f.Helper()
	for deadline := time.Now().Add(polltest.Deadline()); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.Fatalf("%s: not within a minute", what)
		}
	}
}

type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

func (f *fixture) client(task string) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", f.sockets[task])
			},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// do sends one request on a connection of its own.
func (f *fixture) do(task, method, uri, token, body string) answer {
	r, err := http.NewRequestWithContext(f.Context(), method, "http://gateway"+uri, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	r.Header.Set("X-Nomad-Token", token)
	response, err := f.client(task).Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(text), err}
}

// raw sends bytes and returns the status of the first answer.
func (f *fixture) raw(task, text string) int {
	f.Helper()
	conn := must.Get(net.Dial("unix", f.sockets[task]))(f)
	defer conn.Close()
	must.Get(io.WriteString(conn, text))(f)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return response.StatusCode
}

// TestDoor: a request without this task's own token is refused, and the agent never hears of it.
func TestDoor(t *testing.T) {
	f := newFixture(t)
	other := must.Get(identity.OpenKeyring(identity.KeyringConfig{Dir: filepath.Join(t.TempDir(), "other")}))(t)
	mine := f.ring
	f.ring = other
	forged := f.token("web", allocID)
	f.ring = mine
	const path = "/v1/var/nomad/jobs/job"
	for what, c := range map[string]struct {
		token string
		want  int
	}{
		"none":                      {"", 401},
		"a sibling's":               {f.token("worker", allocID), 403},
		"another allocation's":      {f.token("web", "00000000-0000-4000-8000-000000000000"), 403},
		"forged":                    {forged, 403},
		"a UUID, as an ACL token's": {"00000000-0000-4000-8000-000000000000", 403},
		"garbage":                   {"a.b.c", 403},
	} {
		for range 50 { // also a flood
			got := f.do("web", "GET", path, c.token, "").status
			if got != c.want && got != http.StatusTooManyRequests {
				t.Errorf("%s token: %d, want %d", what, got, c.want)
			}
			if what != "garbage" {
				break
			}
		}
	}
	if n := f.agent.count("GET " + path); n != 0 {
		t.Errorf("the agent was asked %d times", n)
	}
	f.agent.mu.Lock()
	defer f.agent.mu.Unlock()
	for token := range f.agent.tokens {
		if token != "gateway" && token != "" && !strings.HasPrefix(token, "ey") {
			t.Errorf("the agent got the token %q", token)
		}
	}
}

// TestCrowd: a client without a good token can neither hold all connections of a socket, to which everybody may
// connect, nor use up the failures that another user may have.
func TestCrowd(t *testing.T) {
	f := newFixture(t)
	f.agent.set("/v1/jobs", "[]")
	token := f.token("web", allocID)
	dial := func() net.Conn {
		conn := must.Get(net.Dial("unix", f.sockets["web"]))(t)
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	ask := func(conn net.Conn, token string) int {
		_, _ = fmt.Fprintf(conn, "GET /v1/jobs HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: %s\r\n\r\n", token)
		response := must.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t)
		defer response.Body.Close()
		return response.StatusCode
	}
	known := dial()
	if status := ask(known, token); status != http.StatusOK {
		t.Fatal(status)
	}
	f.uid.Store(1234)
	for range 10 { // connections that stay open after a refusal
		ask(dial(), "a.b.c")
	}
	for range 1000 { // connections on which nothing comes
		dial()
	}
	f.uid.Store(1235)
	if status := ask(dial(), token); status != http.StatusOK {
		t.Errorf("on the socket that others fill: %d", status)
	}
	f.uid.Store(1234)
	f.until("bad tokens are limited", func() bool {
		return f.do("web", "GET", "/v1/jobs", token[:len(token)-8]+"AAAAAAAA", "").status == http.StatusTooManyRequests
	})
	f.uid.Store(1235)
	for range 10 {
		if status := ask(dial(), f.token("web", allocID)); status != http.StatusOK {
			t.Errorf("a new token on a new connection: %d", status)
		}
	}
	if status := ask(known, token); status != http.StatusOK {
		t.Errorf("the connection of a known client: %d", status)
	}
}

// TestFanOut: 200 readers who wait for one resource are one query at the agent, and all get the change.
func TestFanOut(t *testing.T) {
	f := newFixture(t)
	const path, readers = "/v1/var/nomad/jobs/job", 200
	f.agent.set(path, "one")
	token := f.token("web", allocID)
	first := f.do("web", "GET", path, token, "")
	if first.status != 200 || first.body != "one" || first.header.Get("X-Nomad-KnownLeader") != "true" ||
		first.header.Get("X-Nomad-LastContact") != "0" {
		t.Fatalf("%+v", first)
	}
	answers := make(chan answer, readers)
	for i := range readers {
		go func() {
			answers <- f.do("web", "GET", fmt.Sprintf("%s?index=%s&wait=%dm", path, first.header.Get("X-Nomad-Index"), 1+i%5),
				token, "")
		}()
	}
	// The agent has one query of the resource and one of the keys.
	f.until("one query waits", func() bool { return f.agent.waits() == 2 })
	before := f.agent.count("GET " + path)
	f.agent.set(path, "two")
	for range readers {
		if a := <-answers; a.status != 200 || a.body != "two" {
			t.Fatalf("%+v", a)
		}
	}
	f.until("one query waits again", func() bool { return f.agent.waits() == 2 })
	if n := f.agent.count("GET "+path) - before; n > 2 { // the next one, and one for a reader who came after the change
		t.Errorf("the agent got %d queries for %d readers", n, readers)
	}
}

// TestScope: an answer that one token has earned goes to no other, not even to the same task's.
func TestScope(t *testing.T) {
	f := newFixture(t)
	const path = "/v1/var/nomad/jobs/job"
	f.agent.set(path, "secret")
	good, bad := f.token("web", allocID), f.token("web", allocID)
	f.agent.mu.Lock()
	f.agent.forbids[bad] = true
	f.agent.mu.Unlock()
	for range 3 {
		if a := f.do("web", "GET", path, good, ""); a.status != 200 {
			t.Fatalf("%+v", a)
		}
		if a := f.do("web", "GET", path, bad, ""); a.status != 403 || strings.Contains(a.body, "secret") {
			t.Fatalf("%+v", a)
		}
	}
	// A parameter is a part of the resource, in whatever order they come; index and wait are none.
	before := f.agent.count("GET " + path)
	for _, query := range []string{"?namespace=a&prefix=b", "?prefix=b&namespace=a", "?prefix=b&namespace=a&index=0",
		"?prefix=b", "?stale", "?namespace=b&namespace=a", "?namespace=a&namespace=b"} {
		f.do("web", "GET", path+query, good, "")
	}
	f.agent.mu.Lock()
	now := f.agent.requests["GET "+path]
	f.agent.mu.Unlock()
	if n := now - before; n < 5 {
		t.Errorf("seven queries of five resources reached the agent %d times", n)
	}
}

// TestReadsSeeOwnChanges: after a change was answered, a read through any socket sees it.
func TestReadsSeeOwnChanges(t *testing.T) {
	f := newFixture(t)
	const path = "/v1/var/nomad/jobs/job"
	web, worker := f.token("web", allocID), f.token("worker", allocID)
	for i := range 20 {
		value := fmt.Sprint("value ", i)
		if a := f.do("web", "PUT", path, web, value); a.status != 200 {
			t.Fatalf("%+v", a)
		}
		for task, token := range map[string]string{"web": web, "worker": worker} {
			if a := f.do(task, "GET", path, token, ""); a.body != value {
				t.Fatalf("%s reads %q after %q was written", task, a.body, value)
			}
		}
	}
	if n := f.agent.count("PUT " + path); n != 20 {
		t.Errorf("20 changes came to the agent %d times", n)
	}
	f.until("the audit log has 20 changes", func() bool { // each a moment after its answer
		f.audit.mu.Lock()
		defer f.audit.mu.Unlock()
		done := 0
		for _, r := range f.audit.all {
			if r.Outcome == auth.Done && r.Method == "PUT" && r.Task == "web" && r.Path == path {
				done++
			}
		}
		return done == 20
	})
}

// TestRefusedChangesCostNobody: a change that the agent refuses, and a plan, make no reader wait for a newer answer. A
// change whose answer is lost, or that collides with another, makes those of its own socket wait.
func TestRefusedChangesCostNobody(t *testing.T) {
	f := newFixture(t)
	const path = "/v1/var/nomad/jobs/job"
	f.agent.set(path, "value")
	tokens := map[string]string{"web": f.token("web", allocID), "worker": f.token("worker", allocID)}
	var fresh atomic.Int64 // queries that do not wait for a change
	queries := func(task string) int64 {
		f.Helper()
		before := fresh.Load()
		if a := f.do(task, "GET", path, tokens[task], ""); a.status != 200 {
			t.Fatalf("%+v", a)
		}
		return fresh.Load() - before
	}
	queries("web")
	queries("worker")
	for _, c := range []struct {
		status      int
		web, worker int64
		path        string
	}{
		{307, 0, 0, "/v1/jobs"}, {400, 0, 0, "/v1/jobs"}, {401, 0, 0, "/v1/jobs"}, {403, 0, 0, "/v1/jobs"},
		{404, 0, 0, "/v1/jobs"}, {405, 0, 0, "/v1/jobs"}, {413, 0, 0, "/v1/jobs"}, {429, 0, 0, "/v1/jobs"},
		{409, 1, 0, "/v1/jobs"}, {500, 1, 0, "/v1/jobs"}, {0, 1, 0, "/v1/jobs"}, {200, 1, 1, "/v1/jobs"},
		{204, 1, 1, "/v1/jobs"}, {200, 0, 0, "/v1/job/a/plan"},
	} {
		f.until("both queries wait", func() bool { return f.agent.waits() == 3 }) // and that for the keys
		f.agent.answers(func(w http.ResponseWriter, r *http.Request) bool {
			switch {
			case r.Method == http.MethodGet:
				if !r.URL.Query().Has("index") {
					fresh.Add(1)
				}
				return false
			case c.status == 0:
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(c.status)
			return true
		})
		f.do("web", "PUT", c.path, tokens["web"], "{}")
		if got := queries("worker"); got != c.worker {
			t.Errorf("%s, status %d: a sibling's read costs %d queries, want %d", c.path, c.status, got, c.worker)
		}
		if got := queries("web"); got != c.web {
			t.Errorf("%s, status %d: the caller's read costs %d queries, want %d", c.path, c.status, got, c.web)
		}
	}
}

// TestChangesOnce: a change whose answer is lost is not sent again, whatever its headers say, and the client learns
// that it may have been made. A change that was not sent says so.
func TestChangesOnce(t *testing.T) {
	f := newFixture(t)
	token := f.token("web", allocID)
	f.agent.answers(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v1/agent/self" {
			return false
		}
		panic(http.ErrAbortHandler)
	})
	for _, request := range []string{"PUT /v1/jobs", "POST /v1/job/a/dispatch", "DELETE /v1/job/a", "GET /v1/client/gc",
		"HEAD /v1/client/gc", "GET /v1/client/%67c", "GET /v1/client/allocation/a/restart",
		"GET /v1/client/allocation/a%2Frestart", "GET /v1/client/allocation/a%2fgc", "GET /v1/job/a%2Faction"} {
		method, path, _ := strings.Cut(request, " ")
		f.do("web", "GET", "/v1/agent/self", token, "") // leaves a connection to the agent that can be used again
		r, _ := http.NewRequestWithContext(t.Context(), method, "http://gateway"+path, nil)
		r.Header = http.Header{"X-Nomad-Token": {token}, "Idempotency-Key": {"1"}, "X-Idempotency-Key": {"1"}}
		response := must.Get(f.client("web").Do(r))(t)
		response.Body.Close()
		if response.StatusCode != http.StatusBadGateway {
			t.Errorf("%s: %d", request, response.StatusCode)
		}
		if n := f.agent.count(request); n != 1 {
			t.Errorf("%s came to the agent %d times", request, n)
		}
		f.until(request+" is in the audit log", func() bool {
			f.audit.mu.Lock()
			defer f.audit.mu.Unlock()
			return slices.ContainsFunc(f.audit.all, func(r auth.Record) bool { return r.Method+" "+r.Path == request })
		})
	}
	f.agent.kill()
	a := f.do("web", "PUT", "/v1/jobs", token, "{}")
	if a.status != 503 || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, "nothing was sent") {
		t.Errorf("without an agent: %+v", a)
	}
}

// TestAgentAway: reads are answered while the agent is away, with the age; a removed key is refused as soon as it is
// back.
func TestAgentAway(t *testing.T) {
	f := newFixture(t)
	const path = "/v1/var/nomad/jobs/job"
	f.agent.set(path, "kept")
	token := f.token("web", allocID)
	f.do("web", "GET", path, token, "")
	f.until("the query waits", func() bool { return f.agent.waits() == 2 })
	f.agent.kill()
	f.until("the answer says its age", func() bool {
		a := f.do("web", "GET", path, token, "")
		if a.status != 200 || a.body != "kept" {
			t.Fatalf("%+v", a)
		}
		return a.header.Get("X-Nomad-LastContact") != "0" && a.header.Get("X-Nomad-KnownLeader") == "false"
	})
	if a := f.do("web", "GET", "/v1/var/other", token, ""); a.status != 503 || a.header.Get("Retry-After") != "1" {
		t.Errorf("a resource that was never read: %+v", a)
	}
	f.replaceKey()
	f.agent.start()
	f.until("the removed key is refused", func() bool { return f.do("web", "GET", path, token, "").status == 403 })
	if a := f.do("web", "GET", path, f.token("web", allocID), ""); a.body != "kept" {
		t.Errorf("with a new token: %+v", a)
	}
}

// TestKeysInDoubt: when the agent comes back and gives no keys, as when it has removed the key of the gateway's own
// token, nobody is let in until it gives some.
func TestKeysInDoubt(t *testing.T) {
	f := newFixture(t)
	const path = "/v1/var/nomad/jobs/job"
	f.agent.set(path, "kept")
	token := f.token("web", allocID)
	good := f.agent.jwks
	for what, doubt := range map[string]func(refuse bool){
		"a refusal": func(refuse bool) { f.agent.forbids["gateway"] = refuse },
		"no keys": func(refuse bool) {
			if f.agent.jwks = good; refuse {
				f.agent.jwks = []byte(`{"keys":[]}`)
			}
		},
		"garbage": func(refuse bool) {
			if f.agent.jwks = good; refuse {
				f.agent.jwks = []byte(`{"keys":`)
			}
		},
	} {
		f.until("a read is answered", func() bool { return f.do("web", "GET", path, token, "").status == 200 })
		f.agent.kill()
		f.agent.mu.Lock()
		doubt(true)
		f.agent.mu.Unlock()
		f.agent.start()
		f.agent.set("/x", "y") // also wakes a query that did not notice that the agent was away
		f.until(what+": nobody is let in", func() bool {
			a := f.do("web", "GET", path, token, "")
			return a.status == 503 && a.header.Get("Retry-After") == "1"
		})
		f.agent.mu.Lock()
		doubt(false)
		f.agent.mu.Unlock()
	}
	f.until("a read is answered", func() bool { return f.do("web", "GET", path, token, "").status == 200 })
}

// TestIndexGoesBackward: after the cluster was restored, a reader that waits gets the lower index.
func TestIndexGoesBackward(t *testing.T) {
	f := newFixture(t)
	const path = "/v1/jobs"
	f.agent.set(path, "before")
	token := f.token("web", allocID)
	first := f.do("web", "GET", path, token, "")
	got := make(chan answer)
	go func() { got <- f.do("web", "GET", path+"?wait=5m&index="+first.header.Get("X-Nomad-Index"), token, "") }()
	f.until("the query waits", func() bool { return f.agent.waits() == 2 })
	f.agent.kill()
	f.agent.mu.Lock()
	f.agent.index, f.agent.values[path] = 3, "restored"
	f.agent.mu.Unlock()
	f.agent.start()
	select {
	case a := <-got:
		if a.body != "restored" || a.header.Get("X-Nomad-Index") != "3" {
			t.Errorf("%+v", a)
		}
	case <-time.After(polltest.Deadline()):
		t.Error("the reader still waits for the index that there was before")
	}
}

// TestAnswersOfTrouble are passed on as they are, and not kept.
func TestAnswersOfTrouble(t *testing.T) {
	f := newFixture(t)
	token := f.token("web", allocID)
	for status, header := range map[int]string{400: "", 403: "", 404: "", 429: "7", 500: ""} {
		f.agent.answers(func(w http.ResponseWriter, _ *http.Request) bool {
			if header != "" {
				w.Header().Set("Retry-After", header)
			}
			http.Error(w, fmt.Sprint("words of ", status), status)
			return true
		})
		for _, path := range []string{"/v1/jobs", "/v1/agent/self"} {
			a := f.do("web", "GET", path, token, "")
			if a.status != status || !strings.Contains(a.body, fmt.Sprint("words of ", status)) ||
				a.header.Get("Retry-After") != header {
				t.Errorf("%d: %+v", status, a)
			}
		}
	}
	// An endless answer takes a bounded part of memory, and is passed on as it comes.
	f.agent.answers(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("X-Nomad-Index", "5")
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				break
			}
		}
		return true
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, "GET", "http://gateway/v1/jobs", nil)
	r.Header.Set("X-Nomad-Token", token)
	response := must.Get(f.client("web").Do(r))(t)
	defer response.Body.Close()
	if n, err := io.CopyN(io.Discard, response.Body, 32<<20); err != nil {
		t.Errorf("after %d bytes: %v", n, err)
	}
}

// TestOddRequests never reach the agent, or reach it as what they were here.
func TestOddRequests(t *testing.T) {
	f := newFixture(t)
	token := f.token("web", allocID)
	head := "Host: x\r\nX-Nomad-Token: " + token + "\r\n"
	f.agent.answers(func(_ http.ResponseWriter, r *http.Request) bool {
		t.Errorf("the agent got %s %s with %v", r.Method, r.RequestURI, r.Header)
		return false
	})
	for what, c := range map[string]struct {
		request string
		want    int
	}{
		"two lengths": {"POST /v1/jobs HTTP/1.1\r\n" + head +
			"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		"two tokens":      {"GET /v1/jobs HTTP/1.1\r\n" + head + "X-Nomad-Token: b\r\n\r\n", 400},
		"no path of ours": {"GET /ui/ HTTP/1.1\r\n" + head + "\r\n", 404},
		"another region":  {"GET /v1/jobs?region=other HTTP/1.1\r\n" + head + "\r\n", 400},
		"a token in the query": {"GET /v1/jobs?token=" + token + " HTTP/1.1\r\n" + head + "\r\n",
			400},
		"a token in the first message": {"GET /v1/client/allocation/" + allocID + "/exec?ws_handshake HTTP/1.1\r\n" + head +
			"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n", 400},
		"the same by another value": {"GET /v1/job/a/action?ws_handshake=0&ws_handshake=t HTTP/1.1\r\n" + head + "\r\n",
			400},
		"a bad query":    {"GET /v1/jobs?a=%zz HTTP/1.1\r\n" + head + "\r\n", 400},
		"a bad index":    {"GET /v1/jobs?index=-1 HTTP/1.1\r\n" + head + "\r\n", 400},
		"another method": {"TRACE /v1/jobs HTTP/1.1\r\n" + head + "\r\n", 405},
		"a long query":   {"GET /v1/jobs?a=" + strings.Repeat("a", 64<<10) + " HTTP/1.1\r\n" + head + "\r\n", 431},
		"a connection":   {"CONNECT example.org:80 HTTP/1.1\r\n" + head + "\r\n", 404},
		"all options":    {"OPTIONS * HTTP/1.1\r\n" + head + "\r\n", 404},
		"from a browser": {"GET /v1/jobs HTTP/1.1\r\n" + head + "Origin: http://x\r\n\r\n", 403},
	} {
		if got := f.raw("web", c.request); got != c.want {
			t.Errorf("%s: %d, want %d", what, got, c.want)
		}
	}
	var seen http.Header
	var host, uri string
	f.agent.answers(func(w http.ResponseWriter, r *http.Request) bool {
		seen, host, uri = r.Header, r.Host, r.RequestURI
		w.WriteHeader(http.StatusTeapot)
		return true
	})
	for _, line := range []string{
		"GET http://evil.example/v1/agent/self?a=%2F HTTP/1.1",
		"GET /v1/agent/self?a=%2F HTTP/1.0",
	} {
		status := f.raw("web", line+"\r\n"+head+"Connection: X-Nomad-Token, keep-alive\r\nX-Forwarded-For: 1.2.3.4\r\n"+
			"Upgrade: websocket\r\nX-Nomad-Evil: 1\r\nTe: trailers\r\nCookie: a=b\r\n\r\n")
		if status != http.StatusTeapot {
			t.Errorf("%s: %d", line, status)
			continue
		}
		if host != "localhost" || uri != "/v1/agent/self?a=%2F" {
			t.Errorf("%s: the agent got %s at host %s", line, uri, host)
		}
		for name := range seen {
			if name != "X-Nomad-Token" {
				t.Errorf("%s: the agent got the header %s", line, name)
			}
		}
	}
	f.agent.answers(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("X-Nomad-Index", "7")
		path, _, _ := strings.Cut(r.RequestURI, "?") // the cache's next query has an index, and may answer the same read
		w.Header().Set("X-Nomad-Asked", path)
		return true
	})
	for _, path := range []string{"/v1/job/a%2Fb", "/v1/job/a%2fb", "/v1/var/a%2Fb", "/v1/var/a/b", "/v1/job/%61",
		"/v1/job/..%2Fnodes", "/v1//jobs", "/v1/job/../nodes", "/v1/var/shared/secret%23", "/v1/var/a%3Fnamespace=prod",
		"/v1/var/a%2561"} {
		for method, query := range map[string]string{"GET": "", "HEAD": "?consistent", "PUT": "?cas=0"} {
			a := f.do("web", method, path+query, token, "")
			if a.status != 200 || a.header.Get("X-Nomad-Asked") != path {
				t.Errorf("%s %s: the agent was asked for %s (%d)", method, path, a.header.Get("X-Nomad-Asked"), a.status)
			}
		}
	}
}

// TestStreams come as the agent sends them, and end when the key of their token is removed.
func TestStreams(t *testing.T) {
	f := newFixture(t)
	token := f.token("web", allocID)
	more := make(chan string)
	f.agent.answers(func(w http.ResponseWriter, r *http.Request) bool {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case line := <-more:
				_, _ = io.WriteString(w, line+"\n")
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return true
			}
		}
	})
	r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://gateway/v1/event/stream", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	response := must.Get(f.client("web").Do(r))(t)
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for i := range 3 {
		more <- fmt.Sprint(i)
		if !lines.Scan() || lines.Text() != fmt.Sprint(i) {
			t.Fatalf("line %d: %q, %v", i, lines.Text(), lines.Err())
		}
	}
	f.replaceKey()
	f.agent.set("/x", "y") // wakes the query of the keys
	if lines.Scan() {
		t.Errorf("another line: %q", lines.Text())
	}
}

// TestGrown: an answer that has become too long for the cache comes as the agent sends it, also to a client that has
// sent the same bytes before.
func TestGrown(t *testing.T) {
	f := newFixture(t)
	f.agent.set("/v1/jobs", "[]")
	conn := must.Get(net.Dial("unix", f.sockets["web"]))(t)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(polltest.Deadline())) // a hung test ends
	from, token := bufio.NewReader(conn), f.token("web", allocID)
	ask := func() *http.Response {
		head := "GET /v1/jobs HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: " + token + "\r\n\r\n"
		must.Get(io.WriteString(conn, head))(t)
		return must.Get(http.ReadResponse(from, nil))(t)
	}
	for range 20 { // so that the head is remembered
		_, _ = io.Copy(io.Discard, ask().Body)
	}
	const half = 12 << 20
	goOn := make(chan struct{})
	f.agent.answers(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Length", fmt.Sprint(2*half))
		_, _ = w.Write(make([]byte, half))
		_ = http.NewResponseController(w).Flush()
		select {
		case <-goOn:
		case <-r.Context().Done():
		}
		_, _ = w.Write(make([]byte, half))
		return true
	})
	f.agent.set("/v1/jobs", "[1]") // ends the query, and the next one finds the long answer
	response := ask()
	for response.ContentLength < half {
		_, _ = io.Copy(io.Discard, response.Body)
		response = ask()
	}
	_, err := io.CopyN(io.Discard, response.Body, half)
	close(goOn)
	n, rest := io.Copy(io.Discard, response.Body)
	if err != nil || rest != nil || n != half {
		t.Errorf("the first half: %v; the second: %d bytes, %v", err, n, rest)
	}
}

// TestCommands take the connection over, both ways, and end when the key of their token is removed. No other request
// can upgrade its connection.
func TestCommands(t *testing.T) {
	f := newFixture(t)
	token := f.token("web", allocID)
	f.agent.answers(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Sec-WebSocket-Key") != "k" {
			w.WriteHeader(http.StatusBadRequest)
			return true
		}
		conn, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return true
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		for {
			line, err := both.ReadString('\n')
			if err != nil {
				return true
			}
			_, _ = io.WriteString(conn, "echo "+line)
		}
	})
	head := " HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: " + token + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Key: k\r\n\r\n"
	if got := f.raw("web", "GET /v1/agent/monitor"+head); got != http.StatusBadRequest {
		t.Errorf("a request that is no command: %d", got)
	}
	conn := must.Get(net.Dial("unix", f.sockets["web"]))(t)
	defer conn.Close()
	must.Get(io.WriteString(conn, "GET /v1/client/allocation/"+allocID+"/exec?task=web"+head))(t)
	from := bufio.NewReader(conn)
	if response, err := http.ReadResponse(from, nil); err != nil || response.StatusCode != 101 {
		t.Fatal(response, err)
	}
	for range 3 {
		_, _ = io.WriteString(conn, "line\n")
		if line, err := from.ReadString('\n'); line != "echo line\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	f.replaceKey()
	f.agent.set("/x", "y") // wakes the query of the keys
	if line, err := from.ReadString('\n'); err == nil {
		t.Errorf("another line: %q", line)
	}
	f.until("the audit log has the command", func() bool {
		f.audit.mu.Lock()
		defer f.audit.mu.Unlock()
		for _, r := range f.audit.all {
			if strings.HasSuffix(r.Path, "/exec") && r.Outcome == auth.Done {
				return true
			}
		}
		return false
	})
}
