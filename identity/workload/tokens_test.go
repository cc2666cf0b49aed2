package workload_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

func TestClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, io.Discard)
		tokens := r.manager.Task(&api.Task{
			Name: "t", Identity: &api.WorkloadIdentity{Env: true, File: true, Audience: []string{"nomadproject.io"}},
			Identities: []*api.WorkloadIdentity{
				{
					Name:     "a",
					Env:      true,
					TTL:      1500 * time.Millisecond,
					Audience: []string{"x", "y"},
				},
				{Name: "b", Env: true},
				{Name: "vault_default", Env: true},
				{Name: "unseen"},
			},
			Vault: &api.Vault{Role: "reader", Namespace: new("team")},
		})
		time.Sleep(700 * time.Millisecond)
		env := must.Get(tokens.Start(r.host()))(t)
		names := slices.Sorted(maps.Keys(env))
		if !slices.Equal(names, []string{"NOMAD_TOKEN", "NOMAD_TOKEN_a", "NOMAD_TOKEN_b", "NOMAD_TOKEN_vault_default"}) {
			t.Fatalf("environment: %v", names)
		}
		if r.files["secrets/nomad_token"] != env["NOMAD_TOKEN"] {
			t.Error("the file's token is not the variable's")
		}
		verifier := must.Get(identity.NewVerifier(
			identity.VerifierConfig{Local: r.ring, Audiences: []string{"nomadproject.io", "x"}},
		))(t)
		issuedAt := r.begun.Unix()
		for name, want := range map[string]identity.Claims{
			"NOMAD_TOKEN": {Subject: "global:default:job:group:t:default", Audience: []string{"nomadproject.io"},
				ExpiresAt: issuedAt + 24*3600 + 1},
			"NOMAD_TOKEN_a": {Subject: "global:default:job:group:t:a", Audience: []string{"x", "y"}, ExpiresAt: issuedAt + 3},
			"NOMAD_TOKEN_b": {Subject: "global:default:job:group:t:b", Audience: []string{"nomadproject.io"},
				ExpiresAt: issuedAt + 24*3600 + 1},
			"NOMAD_TOKEN_vault_default": {Subject: "global:default:job:group:t:vault_default",
				Audience: []string{"nomadproject.io"}, ExpiresAt: issuedAt + 24*3600 + 1,
				VaultRole: "reader", VaultNamespace: "team"},
		} {
			verified, err := verifier.Verify(env[name], time.Now())
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			want.ID, want.IssuedAt, want.NotBefore = verified.Claims.ID, issuedAt, issuedAt
			want.Namespace, want.JobID, want.AllocationID, want.Task, want.Life = "default", "job", "alloc", "t", "life"
			if diff := cmp.Diff(want, verified.Claims); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	})
}

// TestDefaultAudience: the default identity is for the API, whatever audience the job gives it; another identity is for
// the job's audience.
func TestDefaultAudience(t *testing.T) {
	for _, audience := range []string{"nomadproject.io", "bank.example.org"} {
		synctest.Test(t, func(t *testing.T) {
			r := newRunner(t, io.Discard)
			r.manage(io.Discard, []string{"mine"})
			tokens := r.manager.Task(&api.Task{
				Name: "t", Identity: &api.WorkloadIdentity{Env: true, Audience: []string{audience}},
				Identities: []*api.WorkloadIdentity{{Name: "a", Env: true, Audience: []string{audience}}},
			})
			env := must.Get(tokens.Start(r.host()))(t)
			for name, want := range map[string]string{"NOMAD_TOKEN": "mine", "NOMAD_TOKEN_a": audience} {
				read, err := identity.Check(env[name])
				if err != nil || !slices.Equal(read.Claims.Audience, []string{want}) {
					t.Errorf("%s: %v, %v; want %s", name, read, err, want)
				}
			}
		})
	}
}

// heavy is what a start of a task has that the manager does not need.
type heavy struct {
	runner *runner
	_      [64]byte // so that it shares its block of memory with nothing else
}

// TestStopReleasesTheHost: nothing of a task's runner is kept alive by tokens that are no longer renewed.
func TestStopReleasesTheHost(t *testing.T) {
	freed := make(chan struct{})
	r := newRunner(t, io.Discard,
		&api.WorkloadIdentity{Name: "file", File: true, TTL: time.Hour},
		&api.WorkloadIdentity{Name: "env", Env: true},
	)
	func() {
		h := &heavy{runner: r}
		runtime.AddCleanup(h, func(struct{}) { close(freed) }, struct{}{})
		host := r.host()
		host.WriteFile = func(path string, data []byte) error { return h.runner.write(path, data) }
		must.Get(r.tokens.Start(host))(t)
	}()
	r.tokens.Stop()
	deadline := time.After(polltest.Deadline())
	for {
		runtime.GC()
		select {
		case <-freed:
			runtime.KeepAlive(r)
			return
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatal("the host is kept alive")
		}
	}
}

func TestRenewalAtHalfOfTheLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, io.Discard,
			&api.WorkloadIdentity{Name: "quiet", TTL: time.Hour, File: true},
			&api.WorkloadIdentity{
				Name:         "loud",
				TTL:          80 * time.Minute,
				File:         true,
				Filepath:     "local/x.jwt",
				ChangeMode:   "signal",
				ChangeSignal: "SIGHUP",
			},
			&api.WorkloadIdentity{Name: "env", TTL: 90 * time.Minute, Env: true, ChangeMode: "restart"},
			&api.WorkloadIdentity{Name: "lasting", File: true},
		).started()
		if names := slices.Collect(maps.Keys(r.env)); !slices.Equal(names, []string{"NOMAD_TOKEN_env"}) {
			t.Errorf("environment: %v", names)
		}
		first := r.env["NOMAD_TOKEN_env"]
		r.run(50 * time.Minute)
		r.expect(
			"0s write secrets/nomad_quiet.jwt",
			"0s write local/x.jwt",
			"0s write secrets/nomad_lasting.jwt",
			"30m0s write secrets/nomad_quiet.jwt",
			"40m0s write local/x.jwt",
			"40m0s signal SIGHUP",
			`45m0s restart: Identity "env" was renewed`,
			"45m0s write secrets/nomad_quiet.jwt",
			"45m0s write local/x.jwt",
			"45m0s write secrets/nomad_lasting.jwt",
		)
		if r.env["NOMAD_TOKEN_env"] == first {
			t.Error("the restarted process has the old token")
		}
	})
}

// TestFileWithoutTTL is renewed when half of its token's life is over, too. A variable is what it is.
func TestFileWithoutTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, io.Discard,
			&api.WorkloadIdentity{Name: "file", File: true},
			&api.WorkloadIdentity{Name: "env", Env: true, ChangeMode: "restart"},
		).started()
		r.run(25 * time.Hour)
		r.expect(
			"0s write secrets/nomad_file.jwt",
			"12h0m0s write secrets/nomad_file.jwt",
			"24h0m0s write secrets/nomad_file.jwt",
		)
	})
}

// TestFailedRenewalIsTriedAgain every second, and said once.
func TestFailedRenewalIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := newRunner(t, &log, &api.WorkloadIdentity{Name: "a", TTL: time.Minute, File: true}).started()
		r.ring.fail = true
		r.run(32500 * time.Millisecond)
		r.expect("0s write secrets/nomad_a.jwt")
		if n := strings.Count(log.String(), "token not renewed; it is tried again"); n != 1 {
			t.Errorf("said %d times:\n%s", n, &log)
		}
		r.ring.fail = false
		r.run(time.Second)
		r.expect("0s write secrets/nomad_a.jwt", "33s write secrets/nomad_a.jwt")
	})
}

// TestFailedRestart is tried again until the task has another token.
func TestFailedRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, io.Discard,
			&api.WorkloadIdentity{Name: "a", TTL: 20 * time.Minute, File: true, Env: true, ChangeMode: "restart"},
		).started()
		r.gone = true
		r.run(10*time.Minute + 45*time.Second)
		r.gone = false
		r.run(time.Minute)
		r.expect(
			"0s write secrets/nomad_a.jwt",
			"10m0s write secrets/nomad_a.jwt", `10m0s restart: Identity "a" was renewed`,
			`10m30s restart: Identity "a" was renewed`,
			`11m0s restart: Identity "a" was renewed`, "11m0s write secrets/nomad_a.jwt",
		)
	})
}

// TestASlowRestart keeps no other identity from its renewal, happens once, and ends with Stop.
func TestASlowRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, io.Discard,
			&api.WorkloadIdentity{Name: "slow", TTL: 2 * time.Minute, Env: true, ChangeMode: "restart"},
			&api.WorkloadIdentity{Name: "file", TTL: 4 * time.Minute, File: true})
		r.hang = make(chan struct{})
		r.started()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var running sync.WaitGroup
		running.Go(func() { r.manager.Run(ctx) })
		time.Sleep(4*time.Minute - time.Second)
		r.tokens.Stop()
		r.expect(
			"0s write secrets/nomad_file.jwt",
			`1m0s restart: Identity "slow" was renewed`,
			"2m0s write secrets/nomad_file.jwt",
		)
		time.Sleep(time.Hour)
		if len(r.lines) != 3 {
			t.Errorf("after Stop: %v", r.lines[3:])
		}
		cancel()
		running.Wait()
	})
}

// TestAStartIsAnnouncementEnough: the process that a restart has started is not sent the signal that was due for the
// one before.
func TestAStartIsAnnouncementEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, io.Discard,
			&api.WorkloadIdentity{Name: "a", TTL: 2 * time.Minute, Env: true, ChangeMode: "restart"},
			&api.WorkloadIdentity{
				Name:         "b",
				TTL:          2 * time.Minute,
				File:         true,
				ChangeMode:   "signal",
				ChangeSignal: "SIGHUP",
			},
		).started()
		r.run(90 * time.Second)
		r.expect("0s write secrets/nomad_b.jwt",
			"1m0s write secrets/nomad_b.jwt", `1m0s restart: Identity "a" was renewed`, "1m0s write secrets/nomad_b.jwt")
	})
}

// TestClockSetBack: a token that was issued in what is now the future is refused, so another one takes its place.
func TestClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		identities := []*api.WorkloadIdentity{{Name: "a", File: true}}
		r := newRunner(t, io.Discard, identities...)
		time.Sleep(time.Hour)
		r.started()
		mustWrite(t, r.dir, "secrets/nomad_a.jwt")
		saved := strings.ReplaceAll(
			r.saved["a"],
			time.Now().Format("2006-01-02T15"),
			time.Now().Add(time.Hour).Format("2006-01-02T15"),
		)
		if saved == r.saved["a"] {
			t.Fatalf("no time found in %s", saved)
		}
		r.manage(io.Discard, []string{"nomadproject.io"}, identities...)
		must.Get(r.tokens.Resume(r.host(), map[string]string{"a": saved}))(t)
		r.run(time.Minute)
		r.expect("1h0m0s write secrets/nomad_a.jwt", "1h0m0s write secrets/nomad_a.jwt")
	})
}

// TestAFullDisk keeps no task from its next start that has a good file; one without, or with one that is not accepted,
// does not start.
func TestAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, io.Discard, &api.WorkloadIdentity{Name: "a", TTL: time.Hour, File: true, Env: true}).started()
		r.full = true
		if err := r.start(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("without a file: %v", err)
		}
		mustWrite(t, r.dir, "secrets/nomad_a.jwt")
		if err := r.start(); err != nil || r.env["NOMAD_TOKEN_a"] == "" {
			t.Errorf("with a good one: %v, environment %v", err, r.env)
		}
		r.full = false
		r.run(1500 * time.Millisecond)
		r.expect("0s write secrets/nomad_a.jwt", "1s write secrets/nomad_a.jwt")
		r.full = true
		key := identitytest.Rotate(t, r.ring.Keyring)
		r.ring.remove(t, key)
		if err := r.start(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("with one of a removed key: %v", err)
		}
		r.full = false
		r.started()
		time.Sleep(time.Hour + time.Second)
		r.full = true
		if err := r.start(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("with one that has expired: %v", err)
		}
	})
}

// TestRemovedKeysTokensAreReplaced at once: those whose own key is gone, and no others.
func TestRemovedKeysTokensAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, io.Discard,
			&api.WorkloadIdentity{Name: "a", File: true},
			&api.WorkloadIdentity{Name: "env", Env: true},
			&api.WorkloadIdentity{Name: "restarts", Env: true, ChangeMode: "restart"},
		).started()
		old := identitytest.Rotate(t, r.ring.Keyring)
		unused := identitytest.Rotate(t, r.ring.Keyring)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.manager.Run(ctx)
		synctest.Wait()
		r.ring.remove(t, unused)
		synctest.Wait()
		r.expect("0s write secrets/nomad_a.jwt")
		r.ring.remove(t, old)
		synctest.Wait()
		r.expect("0s write secrets/nomad_a.jwt", "0s write secrets/nomad_a.jwt",
			`0s restart: Identity "restarts" was renewed`, "0s write secrets/nomad_a.jwt")
		for name, token := range map[string]string{"file": r.files["secrets/nomad_a.jwt"],
			"variable": r.env["NOMAD_TOKEN_restarts"]} {
			if key(t, token) != r.ring.Active().ID {
				t.Errorf("the %s is not signed by the active key", name)
			}
		}
	})
}

// TestRemovedKeysTokenInTheEnvironment is said, once, to need a restart, also when the identity has a file whose token
// another key has signed since.
func TestRemovedKeysTokenInTheEnvironment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		identities := []*api.WorkloadIdentity{
			{Name: "file", File: true},
			{Name: "env", Env: true},
			{Name: "both", Env: true, File: true},
			{Name: "restarts", Env: true, ChangeMode: "restart"},
		}
		r := newRunner(t, &log, identities...).started()
		warned := func() (names []string) {
			for line := range strings.Lines(log.String()) {
				_, name, found := strings.Cut(strings.TrimSpace(line), "identity=")
				if !found || !strings.Contains(line, "it is refused until the task is restarted") {
					t.Errorf("log: %s", line)
				}
				names = append(names, name)
			}
			log.Reset()
			return names
		}
		first := identitytest.Rotate(t, r.ring.Keyring)
		r.run(13 * time.Hour) // the second key signs the files
		if got := warned(); got != nil || key(t, r.files["secrets/nomad_both.jwt"]) == first ||
			key(t, r.env["NOMAD_TOKEN_both"]) != first {
			t.Fatalf("before: warned of %q", got)
		}
		// The process that takes over now knows it, too.
		for _, path := range []string{"secrets/nomad_file.jwt", "secrets/nomad_both.jwt"} {
			mustWrite(t, r.dir, path)
		}
		r.manage(&log, []string{"nomadproject.io"}, identities...)
		must.Get(r.tokens.Resume(r.host(), r.saved))(t)
		r.gone = true // a restart because of the last one would replace them all
		r.ring.remove(t, first)
		r.run(time.Hour)
		if got := warned(); !slices.Equal(got, []string{"env", "both"}) {
			t.Errorf("warned of %q", got)
		}
		// What stands beside the resumed processes was signed by the second key.
		second := identitytest.Rotate(t, r.ring.Keyring)
		r.started()
		r.run(time.Minute)
		r.ring.remove(t, second)
		r.run(time.Minute)
		if got := warned(); got != nil {
			t.Errorf("after a start: warned of %q", got)
		}
	})
}

// TestResumeOfAChange: a change_mode that has not acted when this process is killed, or leaves, acts in the next one,
// once.
func TestResumeOfAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api.WorkloadIdentity{Name: "a", TTL: time.Hour, File: true, ChangeMode: "signal", ChangeSignal: "SIGHUP"}
		r := newRunner(t, io.Discard, a).started()
		mustWrite(t, r.dir, "secrets/nomad_a.jwt")
		r.hang = make(chan struct{})
		resume := func() {
			r.tokens.Stop()
			r.manage(io.Discard, []string{"nomadproject.io"}, a)
			must.Get(r.tokens.Resume(r.host(), r.saved))(t)
		}
		r.run(31 * time.Minute)
		resume()
		r.hang = nil
		r.run(5 * time.Minute)
		resume()
		r.run(5 * time.Minute)
		r.expect("0s write secrets/nomad_a.jwt", "30m0s write secrets/nomad_a.jwt", "30m0s signal SIGHUP",
			"31m0s signal SIGHUP")
	})
}

// TestTokensBesideAnOldProcess are good when the process's own has expired.
func TestTokensBesideAnOldProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, io.Discard, &api.WorkloadIdentity{Name: "env", TTL: time.Hour, Env: true}).started()
		r.run(90 * time.Minute)
		for name, c := range map[string]struct {
			token string
			good  bool
		}{
			"its own": {r.env["NOMAD_TOKEN_env"], false},
			"beside":  {r.tokens.Beside()["NOMAD_TOKEN_env"], true},
		} {
			var claims struct{ Exp int64 }
			payload := must.Get(base64.RawURLEncoding.DecodeString(strings.Split(c.token, ".")[1]))(t)
			must.OK(t, json.Unmarshal(payload, &claims))
			if good := time.Now().Before(time.Unix(claims.Exp, 0)); good != c.good {
				t.Errorf("%s: good is %v, want %v", name, good, c.good)
			}
		}
	})
}

// TestResume leaves alone what is good, keeps the dates of renewals, and replaces at once what is not good any more.
func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		identities := []*api.WorkloadIdentity{
			{Name: "ttl", TTL: time.Hour, File: true},
			{Name: "year", File: true, Filepath: "year.jwt"},
			{Name: "gone", File: true, Filepath: "gone.jwt"},
			{Name: "link", File: true, Filepath: "link.jwt"},
			{Name: "empty", File: true, Filepath: "empty.jwt"},
			{Name: "unknown-file", File: true, Filepath: "unknown.jwt"},
			{Name: "elsewhere", File: true, Filepath: "elsewhere.jwt", Audience: []string{"vault"}},
			{Name: "removed", File: true, Filepath: "removed.jwt", ChangeMode: "signal", ChangeSignal: "SIGHUP"},
			{Name: "old", TTL: 2 * time.Minute, File: true, Filepath: "old.jwt"},
			{Name: "env", TTL: 90 * time.Minute, Env: true, ChangeMode: "restart"},
			{Name: "unknown", TTL: time.Hour, Env: true, ChangeMode: "restart"},
			{Name: "lasting", Env: true},
		}
		r := newRunner(t, io.Discard, identities...).started()
		for _, path := range []string{"secrets/nomad_ttl.jwt", "year.jwt", "unknown.jwt", "elsewhere.jwt", "removed.jwt",
			"old.jwt"} {
			mustWrite(t, r.dir, path)
		}
		must.OK(t, errors.Join(
			os.Symlink("/etc/passwd", filepath.Join(r.dir, "link.jwt")),
			os.WriteFile(filepath.Join(r.dir, "empty.jwt"), nil, 0o600),
		))
		saved := maps.Clone(r.saved)
		saved["removed"] = strings.Replace(saved["removed"], r.ring.Active().ID, "another", 1)
		saved["unknown-file"] = "1 2 x"
		delete(saved, "unknown")
		elsewhere := *identities[6]
		elsewhere.Audience = []string{"consul"}
		identities[6] = &elsewhere

		time.Sleep(10 * time.Minute) // nobody renews them
		r.lines = nil
		r.manage(io.Discard, []string{"nomadproject.io"}, identities...)
		beside := must.Get(r.tokens.Resume(r.host(), saved))(t)
		names := slices.Sorted(maps.Keys(beside))
		if !slices.Equal(names, []string{"NOMAD_TOKEN_env", "NOMAD_TOKEN_lasting", "NOMAD_TOKEN_unknown"}) {
			t.Errorf("programs beside the task get %v", names)
		}
		r.gone = true // so that no restart issues new tokens
		r.run(35*time.Minute + 15*time.Second)
		want := []string{
			"10m0s write gone.jwt",
			"10m0s write link.jwt",
			"10m0s write empty.jwt",
			"10m0s write unknown.jwt",
			"10m0s write elsewhere.jwt",
			"10m0s write removed.jwt",
			"10m0s write old.jwt",
			"10m0s signal SIGHUP",
			"30m0s write secrets/nomad_ttl.jwt",
			`40m0s restart: Identity "unknown" was renewed`,
			`45m0s restart: Identity "env" was renewed`,
		}
		seen := map[string]bool{}
		r.lines = slices.DeleteFunc(r.lines, func(line string) bool { // what goes on each minute, or is tried again
			_, what, _ := strings.Cut(line, " ")
			again := seen[what]
			seen[what] = true
			return again
		})
		r.expect(want...)
	})
}
