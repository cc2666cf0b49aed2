package authtest_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"go.uber.org/goleak"

	"taskapi/auth"
	"taskapi/auth/authtest"
	"taskapi/auth/badtokens"
	"taskapi/identity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// list lists the allocations, and returns the status, 0 for no answer.
func list(client *api.Client) int {
	_, _, err := client.Allocations().List(nil)
	return status(err)
}

func status(err error) int {
	code := 0
	if err == nil {
		return http.StatusOK
	}
	if at := strings.Index(err.Error(), "response code: "); at >= 0 {
		_, _ = fmt.Sscan(err.Error()[at+len("response code: "):], &code)
	}
	return code
}

// TestServer: the SDK sees a running allocation, and what it asked for is recorded.
func TestServer(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t)
	client := srv.Client(srv.Token())
	found, _, err := client.Allocations().List(nil)
	if err != nil || len(found) != 1 || found[0].ClientStatus != "running" || found[0].JobID != "test" || found[0].TaskStates["web"].State != "running" {
		t.Fatalf("got %+v, %v", found, err)
	}
	alloc, _, err := client.Allocations().Info(found[0].ID, nil)
	if err != nil || *alloc.Job.Namespace != "default" || alloc.GetTaskGroup() == nil {
		t.Errorf("got %+v, %v", alloc, err)
	}
	if err := client.Allocations().Restart(alloc, "web", nil); err != nil {
		t.Errorf("restart: %v", err)
	}
	if err := client.Allocations().Signal(alloc, nil, "", "SIGHUP"); err != nil {
		t.Errorf("signal: %v", err)
	}
	if err := client.Allocations().Signal(alloc, nil, "web", "SIGNOPE"); status(err) != 400 {
		t.Errorf("an unknown signal: %v", err)
	}
	if err := client.Allocations().Restart(alloc, "nope", nil); status(err) != 404 {
		t.Errorf("an unknown task: %v", err)
	}
	if state := srv.Client(srv.Token()); list(state) != 200 {
		t.Error("a second client")
	}
	srv.Expect(
		"GET /v1/allocations 200", "GET /v1/allocation/{alloc} 200", "PUT /v1/client/allocation/{alloc}/restart 200",
		"PUT /v1/client/allocation/{alloc}/signal 200", "PUT /v1/client/allocation/{alloc}/signal 400",
		"PUT /v1/client/allocation/{alloc}/restart 404", "GET /v1/allocations 200",
	)
	srv.Expect()
	if got := list(srv.Client("")); got != 401 {
		t.Errorf("without a token: %d", got)
	}
	srv.Expect("GET /v1/allocations 401 no_token")
	if got := srv.Refusals(); !slices.Equal(got, []string{"no_token"}) {
		t.Errorf("refusals %q", got)
	}
	for _, r := range srv.Requests() {
		if r.Outcome != auth.Denied && (r.Subject != "global:default:test:group:web:default" || r.UID != uint32(os.Getuid()) || r.Task != "web") {
			t.Errorf("record %+v", r)
		}
	}
}

// TestBad: over a socket every kind of the catalogue gets the answer that the catalogue names, for the reason that it names.
func TestBad(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.Limits("off"))
	client, sent := srv.HTTP(), 0
	for _, kind := range badtokens.All() {
		token := srv.Bad(kind.Name)
		if !badtokens.InHeader(token) || len(token) > 8<<10 {
			continue
		}
		sent++
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://task/v1/agent/health", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Nomad-Token", token)
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		last := srv.Requests()[len(srv.Requests())-1]
		if response.StatusCode != kind.Status() || last.Reason != kind.Reason.String() {
			t.Errorf("%s: %d %s, want %d %s", kind.Name, response.StatusCode, last.Reason, kind.Status(), kind.Reason)
		}
	}
	if sent < 100 {
		t.Errorf("%d kinds were sent", sent)
	}
	if got := list(srv.Client(srv.Token())); got != 200 {
		t.Errorf("a good token after them: %d", got)
	}
}

// TestTokens: options say what a token claims.
func TestTokens(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.Audience("bank", "shop"))
	token := srv.Token(authtest.WithAudience("shop"), authtest.WithTTL(time.Minute), authtest.WithIdentity("db"), authtest.WithClaim("team", []int{1}))
	read, err := identity.Check(token)
	if err != nil {
		t.Fatal(err)
	}
	c := read.Claims
	if !slices.Equal(c.Audience, []string{"shop"}) || c.ExpiresAt-c.IssuedAt != 60 || c.Subject != "global:default:test:group:web:db" {
		t.Errorf("claims %+v", c)
	}
	if !strings.Contains(payload(t, token), `"team":[1]`) {
		t.Errorf("claims %s", payload(t, token))
	}
	for token, want := range map[string]string{
		token:                                 "",
		srv.Token():                           "",
		srv.Token(authtest.WithTTL(-1)):       "expired",
		srv.Token(authtest.WithAudience("x")): "audience",
		srv.Token(authtest.WithClaim("sub", "x")): "wrong_claims",
	} {
		list(srv.Client(token))
		last := srv.Requests()[len(srv.Requests())-1]
		if last.Reason != want {
			t.Errorf("%s: %q, want %q", payload(t, token), last.Reason, want)
		}
	}
}

// TestClock: an hour later a token has expired, and the token file has another one.
func TestClock(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t)
	first := read(t, srv.TokenFile())
	client := srv.Client(first)
	if got := list(client); got != 200 {
		t.Fatalf("the token file's: %d", got)
	}
	srv.Advance(40 * time.Minute)
	second := read(t, srv.TokenFile())
	if second == first || list(client) != 200 {
		t.Errorf("after 40 minutes of 60: renewed %v, and the one before must still be good", second != first)
	}
	srv.Advance(21 * time.Minute)
	if got := list(client); got != 403 {
		t.Errorf("after 61 minutes: %d", got)
	}
	if got := list(srv.Client(second)); got != 200 {
		t.Errorf("the renewed one after 61 minutes: %d", got)
	}
	srv.Advance(-2 * time.Hour)
	srv.Expect("GET /v1/allocations 200", "GET /v1/allocations 200", "GET /v1/allocations 403 expired", "GET /v1/allocations 200")
	list(srv.Client(second))
	srv.Expect("GET /v1/allocations 403 not_yet_valid")
}

// TestKeys: a rotated key still verifies, a removed one does not, and the token file follows.
func TestKeys(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t)
	first := read(t, srv.TokenFile())
	client := srv.Client(first)
	before := srv.RotateKey()
	if got := list(client); got != 200 || read(t, srv.TokenFile()) != first {
		t.Errorf("after a rotation: %d", got)
	}
	srv.RemoveKey(before)
	second := read(t, srv.TokenFile())
	if got := list(client); got != 403 || second == first {
		t.Errorf("after the removal: %d, renewed %v", got, second != first)
	}
	if got := list(srv.Client(second)); got != 200 {
		t.Errorf("the renewed one: %d", got)
	}
	srv.ReplaceKey()
	list(srv.Client(second))
	srv.Expect("GET /v1/allocations 200", "GET /v1/allocations 403 key_removed", "GET /v1/allocations 200", "GET /v1/allocations 403 key_removed")
}

// TestRevoke: a revoked token is refused, and the token file has another one; so too under a clock that was moved.
func TestRevoke(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{0, 30 * time.Hour} {
		srv := authtest.NewServer(t, authtest.Job{Tasks: []string{"web", "db"}})
		srv.Advance(ahead)
		first, other, db := read(t, srv.TokenFile()), srv.Token(), srv.Task("db")
		srv.Revoke(first)
		second := read(t, srv.TokenFile())
		if second == first {
			t.Error("the token file has the revoked token")
		}
		list(srv.Client(first))
		list(srv.Client(other))
		list(srv.Client(second))
		srv.Expect("GET /v1/allocations 403 revoked", "GET /v1/allocations 200", "GET /v1/allocations 200")
		dbToken := db.Token()
		srv.RevokeAll()
		list(srv.Client(other))
		list(srv.Client(second))
		list(srv.Client(read(t, srv.TokenFile())))
		list(srv.Client(srv.Token()))
		list(db.Client(dbToken))
		srv.Expect("GET /v1/allocations 403 revoked", "GET /v1/allocations 403 revoked", "GET /v1/allocations 200", "GET /v1/allocations 200",
			"GET /v1/allocations 200")
	}
}

// TestPresets: a preset, and a limit in a policy, count as in production.
func TestPresets(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.Policy("nomad"), authtest.FrozenClock())
	client := srv.Client(srv.Token())
	nomad := list(client)
	srv.SetPolicy("local")
	if local := list(client); nomad != 403 || local != 200 {
		t.Errorf("with nomad %d, with local %d", nomad, local)
	}
	srv.SetPolicy("limits {\n  requests = \"1/s:1\"\n}")
	if first, second := list(client), list(client); first != 200 || second != 429 {
		t.Errorf("with one request a second: %d, %d", first, second)
	}
	srv.SetLimits("off")
	if got := list(client); got != 200 {
		t.Errorf("without limits: %d", got)
	}
}

// TestJWKS: the key set and the discovery are those of now, and OIDC has tokens name their issuer.
func TestJWKS(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.OIDC())
	var discovery struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	if err := json.Unmarshal([]byte(get(t, srv.JWKSServer()+"/.well-known/openid-configuration")), &discovery); err != nil {
		t.Fatal(err)
	}
	if discovery.Issuer != srv.JWKSServer() || discovery.JWKSURI != srv.JWKSURL() {
		t.Errorf("discovery %+v", discovery)
	}
	for range 2 {
		set, err := identity.ParseJWKS([]byte(get(t, srv.JWKSURL())))
		if err != nil {
			t.Fatal(err)
		}
		verifier, err := identity.NewVerifier(identity.VerifierConfig{Local: set})
		if err != nil {
			t.Fatal(err)
		}
		verified, err := verifier.Verify(srv.Token(), time.Now())
		if err != nil || verified.Claims.Issuer != discovery.Issuer {
			t.Errorf("got %+v, %v", verified, err)
		}
		if id, _ := srv.PublicKey(); !set.Has(id) || set.Len() != 1 {
			t.Errorf("the set has %q, and %s signs", set.IDs(), id)
		}
		srv.ReplaceKey()
	}
	if got := get(t, srv.JWKSServer()+"/v1/allocations"); !strings.Contains(got, "not found") {
		t.Errorf("another path: %q", got)
	}
	plain := authtest.NewServer(t)
	if strings.Contains(payload(t, plain.Token()), `"iss"`) || !strings.Contains(get(t, plain.JWKSURL()), `"OKP"`) {
		t.Error("without OIDC tokens name no issuer, and the key set is there")
	}
}

// TestEnd: an allocation that has ended takes its tasks' tokens with it, by itself or by a request.
func TestEnd(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.Job{Tasks: []string{"web"}}, authtest.Job{ID: "other", Tasks: []string{"web"}})
	client := srv.Client(srv.Token())
	alloc := &api.Allocation{ID: srv.Task("test/web").AllocationID()}
	if _, err := client.Allocations().Stop(alloc, nil); err != nil {
		t.Fatal(err)
	}
	if got := list(client); got != 403 {
		t.Errorf("after the stop: %d", got)
	}
	other := srv.Task("other/web")
	if got := list(other.Client(other.Token())); got != 200 {
		t.Errorf("another allocation: %d", got)
	}
	other.End()
	if got := list(other.Client(other.Token())); got != 403 {
		t.Errorf("after its end: %d", got)
	}
	srv.Expect("PUT /v1/allocation/{alloc}/stop 200", "GET /v1/allocations 403 terminal_allocation", "GET /v1/allocations 200",
		"GET /v1/allocations 403 terminal_allocation")
	operator := srv.Operator()
	if found, _, err := operator.Client(operator.Token()).Allocations().List(nil); err != nil || found[0].ClientStatus != "complete" {
		t.Errorf("the operator sees %+v, %v", found, err)
	}
}

// TestJobs: tasks have sockets of their own, a token is good on its task's alone, and sees its own allocation.
func TestJobs(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t,
		authtest.Job{ID: "shop", Namespace: "prod", Group: "front", Tasks: []string{"web", "db"}},
		authtest.Job{ID: "bank", Tasks: []string{"web"}},
	)
	web, db, bank := srv.Task("shop/web"), srv.Task("db"), srv.Task("default/bank/web")
	if srv.Socket() != web.Socket() || web.AllocationID() != db.AllocationID() || web.AllocationID() == bank.AllocationID() {
		t.Error("one allocation for each job, and a socket for each task")
	}
	for i, owner := range []*authtest.Task{web, db, bank} {
		for k, on := range []*authtest.Task{web, db, bank} {
			found, _, err := on.Client(owner.Token()).Allocations().List(nil)
			switch {
			case i != k && status(err) != 403:
				t.Errorf("the token of %s on the socket of %s: %v", owner.Name(), on.Name(), err)
			case i == k && (err != nil || len(found) != 1 || found[0].ID != owner.AllocationID()):
				t.Errorf("%s sees %+v, %v", owner.Name(), found, err)
			}
		}
	}
	if got := len(web.Requests()); got != 3 {
		t.Errorf("%d requests on the socket of web, want 3", got)
	}
	if found, _, err := web.Client(web.Token()).Allocations().List(nil); err != nil || found[0].Namespace != "prod" || found[0].TaskGroup != "front" {
		t.Errorf("got %+v, %v", found, err)
	}
}

// TestPolicy: capabilities are the policy's, and change with the next request.
func TestPolicy(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.Job{Tasks: []string{"web", "db"}}, authtest.Policy(`task "db" { policy = "deny" }`))
	web, db := srv.Task("web"), srv.Task("db")
	webClient, dbClient := web.Client(web.Token()), db.Client(db.Token())
	if w, d := list(webClient), list(dbClient); w != 200 || d != 403 {
		t.Errorf("web %d, db %d", w, d)
	}
	web.Deny(auth.ReadJob)
	if w, d := list(webClient), list(dbClient); w != 403 || d != 403 {
		t.Errorf("web %d, db %d", w, d)
	}
	srv.SetPolicy("")
	if w, d := list(webClient), list(dbClient); w != 200 || d != 200 {
		t.Errorf("web %d, db %d", w, d)
	}
	srv.Expect("GET /v1/allocations 200", "GET /v1/allocations 403 missing_capability",
		"GET /v1/allocations 403 missing_capability", "GET /v1/allocations 403 missing_capability", "GET /v1/allocations 200", "GET /v1/allocations 200")
}

// TestLimits: bad tokens run into the limits, those of production unless a test says otherwise, and an advanced clock fills them up.
func TestLimits(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.FrozenClock())
	bad := func() int { return list(srv.Client(srv.Bad("wrong-key"))) }
	for range 20 {
		if got := bad(); got != 403 {
			t.Fatalf("got %d within the burst of 20", got)
		}
	}
	if got := bad(); got != 429 {
		t.Errorf("the 21st: %d, want 429", got)
	}
	srv.Advance(time.Minute)
	if got := bad(); got != 403 {
		t.Errorf("a minute later: %d", got)
	}
	srv.SetLimits("failed-lookups=1/s:1")
	if first, second := bad(), bad(); first != 403 || second != 429 {
		t.Errorf("with a burst of 1: %d, %d", first, second)
	}
}

// TestFaults: requests fail as asked for, are recorded as faults, and then all is well.
func TestFaults(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t)
	client, token := srv.HTTP(), srv.Token()
	do := func(ctx context.Context) string {
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://task/v1/search", strings.NewReader(`{"Prefix":"a","Context":"all"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Nomad-Token", token)
		response, err := client.Do(r)
		if err != nil {
			return "broken"
		}
		defer response.Body.Close()
		if _, err := io.ReadAll(response.Body); err != nil {
			return "torn"
		}
		return strings.TrimSpace(fmt.Sprint(response.StatusCode, " ", response.Header.Get("Retry-After")))
	}
	srv.FailNext(2, authtest.TooManyRequests(3*time.Second))
	srv.FailNext(1, authtest.Unavailable())
	srv.FailNext(1, authtest.Cut())
	srv.FailNext(1, authtest.Tear())
	srv.FailNext(1, authtest.Late(time.Millisecond))
	for i, want := range []string{"429 3", "429 3", "503", "broken", "torn", "200", "200"} {
		if got := do(t.Context()); got != want {
			t.Errorf("request %d: %q, want %q", i+1, got, want)
		}
	}
	srv.Expect("PUT /v1/search 429 fault", "PUT /v1/search 429 fault", "PUT /v1/search 503 fault", "PUT /v1/search 0 fault", "PUT /v1/search 200 fault",
		"PUT /v1/search 200", "PUT /v1/search 200")
	srv.Fail(authtest.Fault{Hang: true, Always: true})
	ended := make(chan string, 1)
	hang := func(ctx context.Context) { // returns when the server has the request
		before := len(srv.Requests())
		go func() { ended <- do(ctx) }()
		for len(srv.Requests()) == before {
			time.Sleep(time.Millisecond)
		}
	}
	ctx, giveUp := context.WithCancel(t.Context())
	hang(ctx)
	giveUp()
	if got := <-ended; got != "broken" {
		t.Errorf("a request that hangs: %q", got)
	}
	hang(t.Context())
	srv.StopFailing()
	if got := <-ended; got != "broken" {
		t.Errorf("a request that hung: %q", got)
	}
	if got := do(t.Context()); got != "200" {
		t.Errorf("then: %q", got)
	}
	srv.Fail(authtest.Fault{Hang: true, Always: true})
	hang(context.Background()) // the end of the test does not wait for it
}

// TestEnv: a program in another process finds socket and token, as in a task.
func TestEnv(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	srv := authtest.NewServer(t, authtest.Job{Tasks: []string{"web"}, Identities: []*api.WorkloadIdentity{
		{Name: "bank", Audience: []string{"bank.example"}, Env: true, File: true},
	}})
	script := `set -eu
test -n "$NOMAD_TOKEN_bank" && test -s "$NOMAD_SECRETS_DIR/nomad_bank.jwt"
get() { curl -sS -o /dev/null -w '%{http_code} ' --unix-socket "$1" -H "X-Nomad-Token: $2" "localhost$3"; }
get "${NOMAD_UNIX_ADDR#unix://}" "$NOMAD_TOKEN" /v1/allocations
get "$NOMAD_SECRETS_DIR/api.sock" "$(cat "$NOMAD_SECRETS_DIR/nomad_token")" "/v1/allocation/$NOMAD_ALLOC_ID"
get "$NOMAD_SECRETS_DIR/api.sock" "$NOMAD_TOKEN_bank" /v1/allocations`
	command := exec.CommandContext(t.Context(), "sh", "-c", script)
	command.Env = append(srv.Env(), "PATH="+os.Getenv("PATH"))
	out, err := command.CombinedOutput()
	if err != nil || string(out) != "200 200 403 " {
		t.Errorf("got %q, %v", out, err)
	}
	srv.Expect("GET /v1/allocations 200", "GET /v1/allocation/{alloc} 200", "GET /v1/allocations 403 audience")
}

// TestClose: with the end of its test a server is gone, with all of its goroutines and files. It runs alone.
func TestClose(t *testing.T) {
	others := goleak.IgnoreCurrent()
	test := new(fakeTest)
	srv := authtest.NewServer(test, authtest.Job{Tasks: []string{"web", "db"}})
	list(srv.Client(srv.Token()))
	srv.JWKSURL()
	srv.RevokeAll()
	test.end()
	goleak.VerifyNone(t, others)
	if _, err := os.Stat(filepath.Dir(srv.Socket())); !os.IsNotExist(err) {
		t.Errorf("the directory is left: %v", err)
	}
	if len(test.failures) != 0 {
		t.Error(test.failures)
	}
}

// TestMany: servers share nothing, and start and end at the same time.
func TestMany(t *testing.T) {
	t.Parallel()
	for range 20 {
		t.Run("one", func(t *testing.T) {
			t.Parallel()
			srv := authtest.NewServer(t)
			token := srv.Token()
			var clients sync.WaitGroup
			for range 4 {
				client := srv.Client(token)
				clients.Go(func() {
					for range 5 {
						if got := list(client); got != 200 {
							t.Errorf("got %d", got)
						}
					}
				})
			}
			clients.Wait()
			if got := len(srv.Requests()); got != 20 {
				t.Errorf("%d requests, want 20", got)
			}
		})
	}
}

func BenchmarkNewServer(b *testing.B) {
	for b.Loop() {
		t := new(fakeTest)
		authtest.NewServer(t)
		t.end()
	}
}

// fakeTest is a test that notes what it is told.
type fakeTest struct {
	mu       sync.Mutex
	cleanups []func()
	failures []string
}

// fatal ends a fakeTest.
type fatal struct{}

func (*fakeTest) Helper()             {}
func (*fakeTest) Logf(string, ...any) {}
func (f *fakeTest) Cleanup(do func()) { f.cleanups = append(f.cleanups, do) }
func (f *fakeTest) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures = append(f.failures, fmt.Sprintf(format, args...))
}
func (f *fakeTest) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	panic(fatal{})
}
func (f *fakeTest) end() {
	for _, do := range slices.Backward(f.cleanups) {
		do()
	}
}

// TestFailures: what can't be fails the test, in words that say what would be right.
func TestFailures(t *testing.T) {
	t.Parallel()
	for want, do := range map[string]func(authtest.TB){
		"the server was asked for":     func(tb authtest.TB) { authtest.NewServer(tb).Expect("GET /v1/allocations 200") },
		`no bad token "expire"`:        func(tb authtest.TB) { authtest.NewServer(tb).Bad("expire") },
		"expired, expired-this-second": func(tb authtest.TB) { authtest.NewServer(tb).Bad("expire") },
		"there are default/test/web":   func(tb authtest.TB) { authtest.NewServer(tb).Task("nope") },
		"a job without tasks":          func(tb authtest.TB) { authtest.NewServer(tb, authtest.Job{}) },
		`"a/b" is no name`:             func(tb authtest.TB) { authtest.NewServer(tb, authtest.Job{Tasks: []string{"a/b"}}) },
		"two jobs are called default/test": func(tb authtest.TB) {
			authtest.NewServer(tb, authtest.Job{Tasks: []string{"a"}}, authtest.Job{Tasks: []string{"b"}})
		},
		"policy:1:": func(tb authtest.TB) { authtest.NewServer(tb, authtest.OIDC(), authtest.Policy(`task "web" {`)) },
		"has a block already": func(tb authtest.TB) {
			authtest.NewServer(tb, authtest.Policy(`task "web" { policy = "read" }`)).Deny(auth.ReadJob)
		},
		"invalid limit": func(tb authtest.TB) {
			authtest.NewServer(tb).SetLimits("failed-lookups=often")
		},
		"status 200 is not one of an error":                      func(tb authtest.TB) { authtest.NewServer(tb).Fail(authtest.Fault{Status: 200}) },
		`write variable "app/x"`:                                 func(tb authtest.TB) { locked(tb).PutVariable("app/x", map[string]string{"a": "b"}) },
		`delete variable "app/x"`:                                func(tb authtest.TB) { locked(tb).DeleteVariable("app/x") },
		`invalid path "a b"`:                                     func(tb authtest.TB) { authtest.NewServer(tb).PutVariable("a b", map[string]string{"a": "b"}) },
		"empty variables are invalid":                            func(tb authtest.TB) { authtest.NewServer(tb).PutVariable("app/y", nil) },
		"its address 0.0.0.0 is that of no machine":              func(tb authtest.TB) { authtest.NewServer(tb).RegisterService("db", "0.0.0.0", 1) },
		"its port 65536":                                         func(tb authtest.TB) { authtest.NewServer(tb).RegisterService("db", "10.0.0.1", 65536) },
		`deregister service "x": service registration not found`: func(tb authtest.TB) { authtest.NewServer(tb).DeregisterService("x") },
		"the allocation has ended": func(tb authtest.TB) {
			srv := authtest.NewServer(tb)
			srv.End()
			srv.RegisterService("db", "10.0.0.1", 1)
		},
		"the key is active": func(tb authtest.TB) { srv := authtest.NewServer(tb); id, _ := srv.PublicKey(); srv.RemoveKey(id) },
	} {
		f := new(fakeTest)
		func() {
			defer func() {
				if why := recover(); why != nil && why != (fatal{}) {
					panic(why)
				}
			}()
			do(f)
		}()
		f.end()
		if len(f.failures) != 1 || !strings.Contains(f.failures[0], want) {
			t.Errorf("got %q, want one failure with %q", f.failures, want)
		}
	}
}

// locked returns a server whose task holds the lock of the variable app/x.
func locked(tb authtest.TB) *authtest.Server {
	srv := authtest.NewServer(tb, authtest.Policy(lockPolicy))
	l, err := srv.Client(srv.Token()).Locks(api.WriteOptions{}, api.Variable{Path: "app/x", Lock: &api.VariableLock{TTL: "10s", LockDelay: "1s"}})
	if err == nil {
		_, err = l.Acquire(context.Background())
	}
	if err != nil {
		tb.Errorf("%v", err)
	}
	return srv
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func get(t *testing.T, url string) string {
	t.Helper()
	response, err := http.Get(url) //nolint:noctx // a test's
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	return string(content)
}

// payload returns a token's claims.
func payload(t *testing.T, token string) string {
	t.Helper()
	parts := strings.Split(token, ".")
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	return string(claims)
}
