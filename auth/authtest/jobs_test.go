package authtest_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/auth/authtest"
	"taskapi/internal/must"
)

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

// TestEnd: an allocation that has ended takes its tasks' tokens with it, by itself or by a request.
func TestEnd(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.Job{Tasks: []string{"web"}}, authtest.Job{ID: "other", Tasks: []string{"web"}})
	client := srv.Client(srv.Token())
	alloc := &api.Allocation{ID: srv.Task("test/web").AllocationID()}
	must.Get(client.Allocations().Stop(alloc, nil))(t)
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
	srv.Expect("PUT /v1/allocation/{alloc}/stop 200", "GET /v1/allocations 403 terminal_allocation",
		"GET /v1/allocations 200",
		"GET /v1/allocations 403 terminal_allocation")
	operator := srv.Operator()
	if found, _, err := operator.Client(operator.Token()).Allocations().List(nil); err != nil ||
		found[0].ClientStatus != "complete" {
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
	if srv.Socket() != web.Socket() || web.AllocationID() != db.AllocationID() ||
		web.AllocationID() == bank.AllocationID() {
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
	if found, _, err := web.Client(web.Token()).Allocations().List(nil); err != nil || found[0].Namespace != "prod" ||
		found[0].TaskGroup != "front" {
		t.Errorf("got %+v, %v", found, err)
	}
}

// TestPolicy: capabilities are the policy's, and change with the next request.
func TestPolicy(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.Job{Tasks: []string{"web", "db"}},
		authtest.Policy(`task "db" { policy = "deny" }`))
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
		"GET /v1/allocations 403 missing_capability", "GET /v1/allocations 403 missing_capability", "GET /v1/allocations 200",
		"GET /v1/allocations 200")
}

// TestLimits: bad tokens run into the limits, those of production unless a test says otherwise, and an advanced clock
// fills them up.
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
	srv.SetLimits("failed_lookups=1/s:1")
	if first, second := bad(), bad(); first != 403 || second != 429 {
		t.Errorf("with a burst of 1: %d, %d", first, second)
	}
}

// TestFaults: requests fail as the faults say, are recorded as faults, and later ones succeed.
func TestFaults(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t)
	client, token := srv.HTTP(), srv.Token()
	do := func(ctx context.Context) string {
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://task/v1/search",
			strings.NewReader(`{"Prefix":"a","Context":"all"}`))
		must.OK(t, err)
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
	srv.Expect("PUT /v1/search 429 fault", "PUT /v1/search 429 fault", "PUT /v1/search 503 fault",
		"PUT /v1/search 0 fault", "PUT /v1/search 200 fault",
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
