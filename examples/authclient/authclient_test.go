package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"go.uber.org/goleak"

	"taskapi/auth"
	"taskapi/auth/authtest"
	"taskapi/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client is a program under test: it lists allocations, and says how long it has waited between attempts.
type client struct {
	list      func() error
	waits     []time.Duration
	transport *transport // nil for a client without
}

// rightClient is this example.
func rightClient(t authtest.TB, srv *authtest.Server) *client {
	return clientOver(t, newTransport(srv.Socket(), srv.TokenFile()))
}

func clientOver(t authtest.TB, transport *transport) *client {
	c := &client{transport: transport}
	transport.wait = func(_ context.Context, d time.Duration) error {
		c.waits = append(c.waits, d)
		return nil
	}
	sdk, err := newClient(transport)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(sdk.Close)
	c.list = func() error { return list(context.Background(), sdk) }
	return c
}

// staleClient reads its token once.
func staleClient(_ authtest.TB, srv *authtest.Server) *client {
	token, err := os.ReadFile(srv.TokenFile())
	sdk := srv.Client(string(token))
	return &client{list: func() error {
		if err == nil {
			_, _, err = sdk.Allocations().List(nil)
		}
		return err
	}}
}

// impatientClient tries again, and does not wait.
func impatientClient(_ authtest.TB, srv *authtest.Server) *client {
	sdk := srv.Client(srv.Token())
	return &client{list: func() (err error) {
		for range attempts {
			if _, _, err = sdk.Allocations().List(nil); err == nil {
				break
			}
		}
		return err
	}}
}

// patientClient waits for an answer as long as it takes; the test does not.
func patientClient(_ authtest.TB, srv *authtest.Server) *client {
	sdk := srv.Client(srv.Token())
	return &client{list: func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return list(ctx, sdk)
	}}
}

func list(ctx context.Context, sdk *api.Client) error {
	_, _, err := sdk.Allocations().List(new(api.QueryOptions).WithContext(ctx))
	return err
}

// promises are what a good client does, each with a client that does not keep it.
var promises = map[string]struct {
	test  func(t authtest.TB, srv *authtest.Server, c *client)
	wrong func(t authtest.TB, srv *authtest.Server) *client
}{
	"it survives a rotation": {
		func(t authtest.TB, srv *authtest.Server, c *client) {
			succeeds(t, c)
			srv.ReplaceKey()
			succeeds(t, c)
			srv.Expect("GET /v1/allocations 200", "GET /v1/allocations 200")
		},
		staleClient,
	},
	"it survives the end of its token": {
		func(t authtest.TB, srv *authtest.Server, c *client) {
			succeeds(t, c)
			srv.Advance(2 * time.Hour)
			succeeds(t, c)
		},
		staleClient,
	},
	"it comes back when the server says": {
		func(t authtest.TB, srv *authtest.Server, c *client) {
			srv.FailNext(2, authtest.TooManyRequests(3*time.Second))
			succeeds(t, c)
			srv.Expect("GET /v1/allocations 429 fault", "GET /v1/allocations 429 fault", "GET /v1/allocations 200")
			if want := []time.Duration{3 * time.Second, 3 * time.Second}; !slices.Equal(c.waits, want) {
				t.Errorf("it waited %v, want %v", c.waits, want)
			}
		},
		impatientClient,
	},
	"it survives a server in trouble": {
		func(t authtest.TB, srv *authtest.Server, c *client) {
			for _, f := range []authtest.Fault{authtest.Unavailable(), authtest.Cut()} {
				srv.FailNext(2, f)
				succeeds(t, c)
			}
		},
		staleClient,
	},
	"it gives up in the end": {
		func(t authtest.TB, srv *authtest.Server, c *client) {
			srv.Fail(authtest.Fault{Status: http.StatusServiceUnavailable, Always: true})
			fails(t, c, "503")
			if got := len(srv.Requests()); got != attempts {
				t.Errorf("it tried %d times, want %d", got, attempts)
			}
		},
		staleClient,
	},
	"it takes no for an answer": {
		func(t authtest.TB, srv *authtest.Server, c *client) {
			srv.Deny(auth.ReadJob)
			fails(t, c, "403")
			srv.Expect("GET /v1/allocations 403 missing_capability")
			srv.SetPolicy("")
			srv.End()
			fails(t, c, "403")
			srv.Expect("GET /v1/allocations 403 terminal_allocation")
		},
		impatientClient,
	},
	"it waits for no server that does not answer": {
		func(t authtest.TB, srv *authtest.Server, c *client) {
			if c.transport != nil {
				c.transport.socket.ResponseHeaderTimeout = 2 * time.Second // in place of answerTimeout
			}
			srv.FailNext(1, authtest.Hang())
			succeeds(t, c)
		},
		patientClient,
	},
}

func succeeds(t authtest.TB, c *client) {
	t.Helper()
	if err := c.list(); err != nil {
		t.Fatalf("%v", err)
	}
}

func fails(t authtest.TB, c *client, want string) {
	t.Helper()
	if err := c.list(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error with %s", err, want)
	}
}

// TestPromises: this client keeps each promise, and a client that doesn't fails its test.
func TestPromises(t *testing.T) {
	t.Parallel()
	for name, promise := range promises {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := authtest.NewServer(t)
			promise.test(t, srv, rightClient(t, srv))
		})
		t.Run("unless it is wrong: "+name, func(t *testing.T) {
			t.Parallel()
			trial := &trial{TB: t}
			ended := make(chan struct{})
			go func() { // Fatalf ends its goroutine
				defer close(ended)
				srv := authtest.NewServer(trial)
				promise.test(trial, srv, promise.wrong(trial, srv))
			}()
			<-ended
			if len(trial.failures) == 0 {
				t.Error("a client that does not keep this promise passes its test")
			}
			t.Log("the test of a wrong client says:", trial.failures)
		})
	}
}

// TestARefusalIsFinal unless the token was replaced while the request was on its way.
func TestARefusalIsFinal(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t)
	transport := newTransport(srv.Socket(), srv.TokenFile())
	before, err := transport.token()
	must.OK(t, err)
	refused := &http.Response{StatusCode: http.StatusForbidden}
	if _, again := transport.retry(refused, nil, before); again {
		t.Error("it tries again with the token that was refused")
	}
	srv.ReplaceKey()
	if delay, again := transport.retry(refused, nil, before); !again || delay != 0 {
		t.Errorf("it does not try again with the new token: %v, %v", delay, again)
	}
}

// trial is a test whose failures are not the test's.
type trial struct {
	authtest.TB
	failures []string
}

func (t *trial) Errorf(format string, args ...any) {
	t.failures = append(t.failures, fmt.Sprintf(format, args...))
}

func (t *trial) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

// TestProgram: the whole program in a task's environment.
func TestProgram(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.Job{ID: "shop", Tasks: []string{"web"}})
	getenv := func(name string) string {
		for _, variable := range srv.Env() {
			if value, ok := strings.CutPrefix(variable, name+"="); ok {
				return value
			}
		}
		return ""
	}
	var out bytes.Buffer
	want := srv.Task("web").AllocationID() + " shop running\n"
	if err := run(getenv, &out); err != nil || out.String() != want {
		t.Errorf("got %q, %v, want %q", out.String(), err, want)
	}
	if err := run(func(string) string { return "" }, &out); err == nil {
		t.Error("no error outside of a task")
	}
}
