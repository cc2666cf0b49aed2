package vault_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
	"go.uber.org/goleak"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/templates/render"
	"taskapi/allocrunner/vault"
	"taskapi/allocrunner/vault/vaulttest"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/same"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a task with a vault block.
type fixture struct {
	*testing.T
	vault    *vaulttest.Server
	settings vault.Settings
	block    *api.Vault
	task     *api.Task
	dir      string
	log      bytes.Buffer
	hook     *vault.Hook

	mu   sync.Mutex // guards the fields below
	did  []string   // what the hook did to the task
	kept map[string]string

	synced, atWrite map[string]string // kept, at the latest Sync, and as it was then at the latest write of a file
	refused         error             // of Sync
}

func newFixture(t *testing.T, server *vaulttest.Server) *fixture {
	f := &fixture{T: t, vault: server, settings: vault.Settings{Address: server.URL}, dir: t.TempDir(),
		block: &api.Vault{ChangeMode: new("signal"), ChangeSignal: new("SIGHUP")}, task: &api.Task{Name: "main"}}
	for _, name := range []string{"secrets", "private"} {
		must.OK(t, os.Mkdir(filepath.Join(f.dir, name), 0o700))
	}
	f.make()
	return f
}

// make makes another hook, as another process does.
func (f *fixture) make() {
	f.hook = vault.New(vault.Config{
		Settings: f.settings, Logger: slog.New(slog.NewTextHandler(&f.log, nil)),
		Sign: func(wi *api.WorkloadIdentity) (string, error) {
			claims, err := json.Marshal(map[string]any{"aud": wi.Audience[0], "nomad_task": "main", "ttl": wi.TTL.String()})
			return "h." + base64.RawURLEncoding.EncodeToString(claims) + ".s", err
		},
	}, "main", f.block)
	if f.vault.URL == vaulttest.Unserved().URL {
		f.hook.Use(f.vault)
	}
}

func (f *fixture) add(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.did = append(f.did, what)
}

func (f *fixture) done() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.did)
}

func (f *fixture) Restart(_ context.Context, reason string) error {
	f.add("restart " + reason)
	return nil
}
func (f *fixture) Signal(_ context.Context, name string) error { f.add("signal " + name); return nil }
func (f *fixture) Exec(context.Context, []string) (int, error) { return 0, interfaces.ErrNotSupported }
func (f *fixture) Fail(reason string)                          { f.add("fail " + reason) }
func (f *fixture) Event(kind, message string)                  { f.add(kind + ": " + message) }

// start calls Prestart, and returns the environment.
func (f *fixture) start(ctx context.Context, restored bool) map[string]string {
	f.Helper()
	f.mu.Lock()
	kept := maps.Clone(f.kept)
	f.mu.Unlock()
	resp, err := f.hook.Prestart(ctx, &interfaces.TaskPrestartRequest{
		Task: f.task, Dir: interfaces.TaskDir{Dir: f.dir}, Restored: restored, Lifecycle: f, Kept: kept,
		Keep: func(kept map[string]string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.kept = maps.Clone(kept)
		},
		Sync: func() error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.synced = maps.Clone(f.kept)
			return f.refused
		},
		WriteFile: func(file interfaces.File) error {
			f.mu.Lock()
			f.atWrite = f.synced
			f.mu.Unlock()
			return os.WriteFile(filepath.Join(f.dir, file.Path), file.Data, 0o600)
		},
	})
	if err != nil && ctx.Err() == nil {
		f.Fatal(err)
	}
	if resp == nil {
		return nil
	}
	return resp.Env
}

func (f *fixture) read(path string) string {
	f.Helper()
	text := must.Read(f, filepath.Join(f.dir, path))
	return string(text)
}

func (f *fixture) want(want ...string) {
	f.Helper()
	if got := f.done(); !slices.Equal(got, want) {
		f.Errorf("the hook did %q, want %q", got, want)
	}
}

// stop ends the hook, and looks for the token where it must not be.
func (f *fixture) stop(tokens ...string) {
	f.Helper()
	if err := f.hook.Stop(context.Background()); err != nil {
		f.Error(err)
	}
	seen := f.log.String() + fmt.Sprint(f.done(), f.kept)
	for _, token := range tokens {
		if strings.Contains(seen, token) {
			f.Errorf("a token is in the log, an event or the state: %s", seen)
		}
	}
}

// follow follows a query until the returned function is called.
func (f *fixture) follow(q render.Query) (answers chan string, end func()) {
	return f.followFrom(q, "")
}

// followFrom does so for a template whose file has a content.
func (f *fixture) followFrom(q render.Query, file string) (answers chan string, end func()) {
	answers = make(chan string, 100)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	hook := f.hook
	go func() {
		defer close(done)
		hook.Follow(ctx, q, []byte(file), func(a render.Answer, err error) {
			switch {
			case err != nil:
				answers <- "error " + err.Error()
			case a.PEMs != nil:
				answers <- a.PEMs.Key + a.PEMs.Cert + a.PEMs.CA
			case a.Secret != nil:
				data, _ := json.Marshal(a.Secret.Data)
				answers <- string(data)
			default:
				answers <- fmt.Sprint(a.Names)
			}
		})
	}()
	return answers, func() { cancel(); <-done }
}

// TestLogin: a task logs in with its identity, finds the token where Nomad puts it, and the end of the task revokes it.
func TestLogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vaulttest.Unserved())
		f.block.Role = "reads"
		f.block.Namespace = new("team")
		f.make()
		env := f.start(t.Context(), false)
		token := env["VAULT_TOKEN"]
		if f.read("secrets/vault_token") != token || env["VAULT_NAMESPACE"] != "team" || len(env) != 2 || token == "" {
			t.Errorf("the environment is %v, the file %q", env, f.read("secrets/vault_token"))
		}
		claims, roles := f.vault.Logins()
		if len(claims) != 1 || claims[0]["nomad_task"] != "main" || roles[0] != "reads" || claims[0]["ttl"] != "1h0m0s" {
			t.Errorf("it logged in as %v with %v", claims, roles)
		}
		if again := f.start(t.Context(), false); again["VAULT_TOKEN"] != token {
			t.Error("a restart has another token")
		}
		f.stop(token)
		same.As(t, 0, f.vault.Good(), "the token is good after the end of the task")
		f.want()
	})
}

// TestBlock: env and disable_file leave out what they say, and an identity of the job file says the audience.
func TestBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vaulttest.Unserved())
		f.block.Env, f.block.DisableFile = new(false), new(true)
		f.task.Identities = []*api.WorkloadIdentity{{Name: "vault_default", Audience: []string{"vault.io"}, TTL: time.Minute}}
		if env := f.start(t.Context(), false); len(env) > 0 {
			t.Errorf("the environment has %v", env)
		}
		same.Fails(t, same.Err(os.Stat(filepath.Join(f.dir, "secrets/vault_token"))), "there is a file")
		if claims, _ := f.vault.Logins(); claims[0]["ttl"] != "1m0s" {
			t.Errorf("it logged in as %v", claims)
		}
		f.stop()
	})
}

// TestRenewals: a token is renewed, and before its greatest life ends there is another, of which the task learns once.
func TestRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vaulttest.Unserved())
		first := f.start(t.Context(), false)["VAULT_TOKEN"]
		time.Sleep(20 * time.Hour)
		if n := f.vault.Renewals(); n < 20 || n > 50 || f.read("secrets/vault_token") != first {
			t.Errorf("%d renewals in 20 hours", n)
		}
		f.want()
		time.Sleep(4 * time.Hour)
		second := f.read("secrets/vault_token")
		if second == first {
			t.Error("there is no new token after the greatest life of the first")
		}
		f.want("signal SIGHUP")
		f.stop(first, second)
	})
}

// TestLost: a token that somebody revokes is replaced, and the task learns of it in the way of change_mode.
func TestLost(t *testing.T) {
	for mode, want := range map[string][]string{
		"restart": {"restart Vault: new Vault token acquired"}, "signal": {"signal SIGHUP"}, "noop": nil,
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, vaulttest.Unserved())
			f.block.ChangeMode = &mode
			first := f.start(t.Context(), false)["VAULT_TOKEN"]
			f.vault.Revoke()
			time.Sleep(time.Hour)
			f.want(want...)
			second := f.read("secrets/vault_token")
			if second == first || f.vault.Good() != 1 {
				t.Error("there is no new token")
			}
			f.stop(first, second)
		})
	}
}

// TestAway: a Vault that is away delays a start and nothing else. A token that can't be renewed in time is replaced.
func TestAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vaulttest.Unserved())
		f.vault.Away(true)
		time.AfterFunc(time.Hour, func() { f.vault.Away(false) })
		if begun := time.Now(); f.start(t.Context(), false) == nil || time.Since(begun) < time.Hour {
			t.Error("it started without a token")
		}
		waiting := "Vault: Waiting for a token of Vault: login at auth/jwt-nomad: connection refused"
		f.want(waiting)
		f.vault.Away(true)
		time.Sleep(30 * time.Hour)
		f.want(waiting, waiting)
		f.vault.Away(false)
		time.Sleep(time.Minute)
		f.want(waiting, waiting, "signal SIGHUP")
		f.stop()
	})
}

// TestRefused: a login that Vault refuses fails the task that is to start.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vaulttest.Unserved())
		f.block.Role = "none"
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the task is killed
		defer cancel()
		f.start(ctx, false)
		f.want(`fail Vault: failed to derive vault token: login at auth/jwt-nomad: 400: role "none" could not be found`)
		f.stop()
	})
}

// TestResume: the next process finds the token, and does not wait for Vault. A change that the task may not know of is
// told, once.
func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vaulttest.Unserved())
		first := f.start(t.Context(), false)["VAULT_TOKEN"]
		for _, away := range []bool{false, true} {
			f.hook.Shutdown()
			f.make()
			f.vault.Away(away)
			same.As(t, first, f.start(t.Context(), true)["VAULT_TOKEN"], "away ", away, ": the token is")
			f.vault.Away(false)
			time.Sleep(time.Hour)
		}
		if claims, _ := f.vault.Logins(); len(claims) != 1 {
			t.Errorf("%d logins", len(claims))
		}
		f.want()
		f.hook.Shutdown()
		f.kept = map[string]string{"change": "pending"} // it was killed after the first file, before it told the task
		must.OK(t, os.WriteFile(filepath.Join(f.dir, "secrets/vault_token"), []byte("old"), 0o600))
		f.make()
		f.start(t.Context(), true)
		time.Sleep(time.Minute)
		f.want("signal SIGHUP")
		same.As(t, first, f.read("secrets/vault_token"), "the task was told of")
		if f.kept != nil {
			t.Errorf("the change is still %v", f.kept)
		}
		f.hook.Shutdown()
		f.vault.Revoke()
		f.make()
		f.start(t.Context(), true)
		time.Sleep(time.Minute)
		f.want("signal SIGHUP", "signal SIGHUP")
		f.stop(first)
	})
}

// TestPendingIsSaved: that the task is to be told of a token is saved before the token is written, until a process
// knows it. While that can't be saved, the task keeps the old token.
func TestPendingIsSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vaulttest.Unserved())
		f.block.ChangeMode = new("restart")
		first := f.start(t.Context(), false)["VAULT_TOKEN"]
		f.refused = syscall.ENOSPC
		f.vault.Revoke()
		time.Sleep(time.Hour)
		same.As(t, first, f.read("secrets/vault_token"), "the file has")
		f.want()
		f.mu.Lock()
		f.refused = nil
		f.mu.Unlock()
		time.Sleep(time.Minute)
		f.want("restart Vault: new Vault token acquired")
		pending := map[string]string{"change": "pending"}
		if !maps.Equal(f.atWrite, pending) || !maps.Equal(f.kept, pending) { // no process has started since
			t.Errorf("%v was saved at the write, then %v; want both pending", f.atWrite, f.kept)
		}
		f.start(t.Context(), false)
		if f.kept != nil {
			t.Errorf("the change is still %v", f.kept)
		}
		f.stop(f.read("secrets/vault_token"))
	})
}

// TestLateStart: a process that starts while the token is replaced is told after its start.
func TestLateStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vaulttest.Unserved())
		f.start(t.Context(), false)
		must.OK(t, f.hook.PreKilling(t.Context()))
		f.vault.Revoke()
		time.Sleep(time.Hour)
		f.want() // the process was ending
		must.OK(t, f.hook.Poststart(t.Context(), nil))
		synctest.Wait()
		f.want("signal SIGHUP")
		f.stop()
	})
}

// TestTokenFile: all tasks have the token of the file, and learn of another. Nobody renews or revokes it.
func TestTokenFile(t *testing.T) {
	f := newFixture(t, vaulttest.New(t))
	f.settings.TokenFile = filepath.Join(t.TempDir(), "token")
	put := func() string {
		t.Helper()
		token := f.vault.Token()
		must.OK(t, os.WriteFile(f.settings.TokenFile+".new", []byte(token+"\n"), 0o600))
		must.OK(t, os.Rename(f.settings.TokenFile+".new", f.settings.TokenFile))
		return token
	}
	first := put()
	f.make()
	same.As(t, first, f.start(t.Context(), false)["VAULT_TOKEN"], "the token is")
	f.hook.Shutdown()
	f.make()
	same.As(t, first, f.start(t.Context(), true)["VAULT_TOKEN"], "after a resumption, the token is")
	second := put()
	if !polltest.Until(func() bool { return slices.Equal(f.done(), []string{"signal SIGHUP"}) }) {
		t.Fatalf("the hook did %q", f.done())
	}
	same.As(t, second, f.read("secrets/vault_token"), "the file has another token")
	f.stop(first, second)
	same.As(t, 2, f.vault.Good(), "a token of the operator's was revoked")
}

// TestFollow reads, lists and writes, also by the paths that people write for stores with versions.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vaulttest.Unserved())
		f.vault.Put("secret/app/db", map[string]any{"password": "p1", "port": 12345678901})
		f.vault.Put("kv/plain", map[string]any{"a": "b"})
		f.start(t.Context(), false)
		for _, tc := range []struct {
			q    render.Query
			want string
		}{
			{render.Query{Kind: render.Secret, Name: "secret/app/db"},
				`{"data":{"password":"p1","port":12345678901},"metadata":{"deletion_time":"","version":1}}`},
			{render.Query{Kind: render.Secret, Name: "secret/data/app/db?version=1"},
				`{"data":{"password":"p1","port":12345678901},"metadata":{"deletion_time":"","version":1}}`},
			{render.Query{Kind: render.Secret, Name: "kv/plain"}, `{"a":"b"}`},
			{render.Query{Kind: render.Secrets, Name: "secret/app"}, "[db]"},
			{render.Query{Kind: render.Secrets, Name: "secret/metadata/app"}, "[db]"},
			{render.Query{Kind: render.Secrets, Name: "kv"}, "[plain]"},
			{render.Query{Kind: render.Secrets, Name: "kv/none"}, "[]"},
			{render.Query{Kind: render.Written, Name: "kv/w", Data: `{"x":"y"}`}, "null"},
			{render.Query{Kind: render.Written, Name: "secret/w", Data: `{"x":"y"}`}, `{"version":1}`},
			{render.Query{Kind: render.Secret, Name: "kv/w"}, `{"x":"y"}`},
			{render.Query{Kind: render.Secret, Name: "none/such"}, `error vault.read(none/such): Vault: 404: no handler ` +
				`for route "none/such". route entry not found.`},
		} {
			answers, end := f.follow(tc.q)
			same.As(t, tc.want, <-answers, tc.q)
			end()
		}
		f.stop("p1")
	})
}

// TestFollowChanges: a secret without a lease is read again, one that is missing is found, and a token that is refused
// a path is told apart from one that is lost.
func TestFollowChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vaulttest.Unserved())
		f.start(t.Context(), false)
		answers, end := f.follow(render.Query{Kind: render.Secret, Name: "secret/a"})
		same.As(t, "[]", <-answers, "without a secret")
		for i := range 3 {
			f.vault.Put("secret/a", map[string]any{"n": i})
			begun := time.Now()
			want := fmt.Sprintf(`{"data":{"n":%d},"metadata":{"deletion_time":"","version":1}}`, i)
			if got := <-answers; got != want || time.Since(begun) > 5*time.Minute {
				t.Errorf("after %v: %s, want %s", time.Since(begun), got, want)
			}
		}
		f.vault.Deny("secret/data/a")
		if got := <-answers; got != "error the task may not read it: Vault refuses the task's token: 403: 1 error "+
			"occurred: * permission denied" {
			t.Errorf("a path that is denied: %s", got)
		}
		end()
		if claims, _ := f.vault.Logins(); len(claims) != 1 {
			t.Errorf("%d logins for a path that is denied", len(claims))
		}
		answers, end = f.follow(render.Query{Kind: render.Secret, Name: "db/creds/x"})
		first := <-answers
		f.vault.Revoke() // and the leases with it
		got := <-answers
		if strings.HasPrefix(got, "error vault.read(db/creds/x): Vault: 403: ") { // the reader found out first
			got = <-answers
		}
		if !strings.HasPrefix(got, `{"password"`) || got == first {
			t.Errorf("with another token: %s", got)
		}
		end()
		f.stop()
	})
}

// TestLeases: a password is renewed as long as Vault lets it be, and then there is another.
func TestLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vaulttest.Unserved())
		f.vault.Lives(10*time.Minute, 2*time.Hour)
		f.start(t.Context(), false)
		answers, end := f.follow(render.Query{Kind: render.Secret, Name: "db/creds/x"})
		begun := time.Now()
		first := <-answers
		second := <-answers
		if lived := time.Since(begun); first == second || lived < 110*time.Minute || lived > 2*time.Hour {
			t.Errorf("a password lived %v, which may live 2h", lived)
		}
		end()
		f.stop()
	})
}

// TestCertificates: a certificate is issued again at nine tenths of its life, and another token changes nothing. The
// certificate of a file stays as long, even while Vault is away. No good one for the name is replaced at once. One of
// a hundred years is as good.
func TestCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vaulttest.Unserved())
		f.vault.Lives(10*time.Hour, 100*time.Hour)
		f.start(t.Context(), false)
		q := render.Query{Kind: render.Certificate, Name: "pki/issue/web", Data: `{"common_name":"a.example"}`}
		wantAfter := func(begun time.Time, want time.Duration) {
			t.Helper()
			same.As(t, want, time.Since(begun).Round(time.Minute), "the certificate stayed")
		}
		answers, end := f.follow(q)
		begun := time.Now()
		first := <-answers
		if strings.Count(first, "-----BEGIN") != 3 || !strings.HasPrefix(first, "-----BEGIN EC PRIVATE KEY") {
			t.Errorf("the first answer is %s", first)
		}
		time.Sleep(time.Hour)
		f.vault.Revoke()
		second := <-answers
		wantAfter(begun, 9*time.Hour)
		end()

		begun = time.Now()
		time.Sleep(2 * time.Hour)
		f.vault.Away(true)
		answers, end = f.followFrom(q, "cert = \"\"\""+second+"\"\"\"\n")
		same.As(t, second, <-answers, "the file's certificate does not stay")
		time.AfterFunc(time.Hour, func() { f.vault.Away(false) })
		third := <-answers
		wantAfter(begun, 9*time.Hour)
		end()
		if third == second || first == second {
			t.Error("the certificate is the same")
		}

		other := q
		other.Data = `{"common_name":"b.example"}`
		for name, file := range map[string]string{
			"no certificate":  "x",
			"a part of a key": third[:strings.Index(third, "-----END")],
			"no key":          third[strings.Index(third, "-----BEGIN CERT"):],
			"no X.509":        strings.ReplaceAll(third, "MI", "AA"),
			"a long file":     third + strings.Repeat("x", 2<<20),
		} {
			answers, end = f.followFrom(q, file)
			if got := <-answers; strings.Count(got, "-----BEGIN") != 3 || got == third {
				t.Errorf("%s: the answer is %s", name, got)
			}
			end()
		}
		answers, end = f.followFrom(other, third)
		if <-answers == third {
			t.Error("a certificate for another name stays")
		}
		end()
		time.Sleep(10 * time.Hour)
		answers, end = f.followFrom(q, third)
		if <-answers == third {
			t.Error("a certificate that has expired stays")
		}
		end()
		f.vault.Lives(100*365*24*time.Hour, 100*365*24*time.Hour)
		answers, end = f.followFrom(q, "")
		if got := <-answers; strings.Count(got, "-----BEGIN") != 3 {
			t.Errorf("a certificate for a hundred years is not taken: %s", got)
		}
		end()
		f.stop(first, second, third)
	})
}

// TestRedirect follows Vault on its own host. Another host gets neither a token nor the JWT of a login.
func TestRedirect(t *testing.T) {
	var got atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, _ *http.Request) { got.Add(1) }))
	t.Cleanup(other.Close)
	server := vaulttest.New(t)
	to := ""
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to != "" {
			http.Redirect(w, r, to+r.URL.Path, http.StatusTemporaryRedirect)
			return
		}
		if path, again := strings.CutPrefix(r.URL.Path, "/v1/again"); again {
			r.URL.Path = "/v1" + path
			server.ServeHTTP(w, r)
			return
		}
		http.Redirect(w, r, strings.Replace(r.URL.Path, "/v1", "/v1/again", 1), http.StatusTemporaryRedirect)
	}))
	t.Cleanup(first.Close)
	f := newFixture(t, server)
	f.settings.Address = first.URL
	f.make()
	if env := f.start(t.Context(), false); env["VAULT_TOKEN"] == "" {
		t.Error("it does not follow Vault on its own host")
	}
	f.stop()
	to = other.URL
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	f = newFixture(t, server)
	f.settings.Address = first.URL
	f.make()
	f.start(ctx, false)
	f.stop()
	if !strings.Contains(f.log.String(), "give the address of the active Vault") || got.Load() != 0 {
		t.Errorf("it logs %s; the other host got %d requests", f.log.String(), got.Load())
	}
}
