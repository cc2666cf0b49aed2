package authtest_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"
	"go.uber.org/goleak"

	"taskapi/auth"
	"taskapi/auth/authtest"
	"taskapi/internal/must"
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

// TestServer: the SDK sees a running allocation, and its requests are recorded.
func TestServer(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t)
	client := srv.Client(srv.Token())
	found, _, err := client.Allocations().List(nil)
	if err != nil || len(found) != 1 || found[0].ClientStatus != "running" || found[0].JobID != "test" ||
		found[0].TaskStates["web"].State != "running" {
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
		if r.Outcome != auth.Denied &&
			(r.Subject != "global:default:test:group:web:default" || r.UID != uint32(os.Getuid()) || r.Task != "web") {
			t.Errorf("record %+v", r)
		}
	}
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

// fakeTest is a test that records its failures.
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
		"policy:1:": func(tb authtest.TB) {
			authtest.NewServer(tb, authtest.OIDC(), authtest.Policy(`task "web" {`))
		},
		`"nomd" is no preset`: func(tb authtest.TB) { authtest.NewServer(tb, authtest.Policy("nomd")) },
		"has a block already": func(tb authtest.TB) {
			authtest.NewServer(tb, authtest.Policy(`task "web" { policy = "read" }`)).Deny(auth.ReadJob)
		},
		"invalid limit": func(tb authtest.TB) {
			authtest.NewServer(tb).SetLimits("failed_lookups=often")
		},
		"status 200 is not one of an error": func(tb authtest.TB) {
			authtest.NewServer(tb).Fail(authtest.Fault{Status: 200})
		},
		`write variable "app/x"`: func(tb authtest.TB) {
			locked(tb).PutVariable("app/x", map[string]string{"a": "b"})
		},
		`delete variable "app/x"`: func(tb authtest.TB) { locked(tb).DeleteVariable("app/x") },
		`invalid path "a b"`: func(tb authtest.TB) {
			authtest.NewServer(tb).PutVariable("a b", map[string]string{"a": "b"})
		},
		"empty variables are invalid": func(tb authtest.TB) {
			authtest.NewServer(tb).PutVariable("app/y", nil)
		},
		"its address 0.0.0.0 is that of no machine": func(tb authtest.TB) {
			authtest.NewServer(tb).RegisterService("db", "0.0.0.0", 1)
		},
		"its port 65536": func(tb authtest.TB) {
			authtest.NewServer(tb).RegisterService("db", "10.0.0.1", 65536)
		},
		`deregister service "x": service registration not found`: func(tb authtest.TB) {
			authtest.NewServer(tb).DeregisterService("x")
		},
		"the allocation has ended": func(tb authtest.TB) {
			srv := authtest.NewServer(tb)
			srv.End()
			srv.RegisterService("db", "10.0.0.1", 1)
		},
		"the key is active": func(tb authtest.TB) {
			srv := authtest.NewServer(tb)
			id, _ := srv.PublicKey()
			srv.RemoveKey(id)
		},
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
	l, err := srv.Client(srv.Token()).Locks(api.WriteOptions{},
		api.Variable{Path: "app/x", Lock: &api.VariableLock{TTL: "10s", LockDelay: "1s"}})
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
	content := must.Read(t, path)
	return string(content)
}
