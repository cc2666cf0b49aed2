package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
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

	"taskapi/allocrunner/interfaces"
)

// told records what a wallet does, with the time of each since the start.
type told struct {
	start time.Time
	fail  bool // issuing fails
	full  bool // writing fails

	mu    sync.Mutex // guards the fields below
	lines []string
	count int
	kept  map[string]string
}

func (o *told) note(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lines = append(o.lines, fmt.Sprintf("%v ", time.Since(o.start))+fmt.Sprintf(format, args...))
}

func (o *told) issue(wi *api.WorkloadIdentity) (issued, error) {
	if o.fail {
		o.note("fail %s", wi.Name)
		return issued{}, errors.New("no key")
	}
	o.count++
	ttl := wi.TTL
	if ttl == 0 {
		ttl = 24 * time.Hour
	}
	return issued{fmt.Sprintf("token%d", o.count), note{time.Now(), time.Now().Add(ttl), "good", "api vault"}}, nil
}

func (o *told) keep(kept map[string]string) { o.kept = kept }

func (o *told) write(path string, data []byte) error {
	if o.full {
		return syscall.ENOSPC
	}
	o.note("write %s %s", path, data)
	return nil
}

func (o *told) Restart(_ context.Context, reason string) error {
	o.note("restart: %s", reason)
	return nil
}

func (o *told) Signal(_ context.Context, name string) error {
	o.note("signal %s", name)
	return nil
}

// newTold makes a wallet and its record, and fills it as a start of the task does.
func newTold(t *testing.T, identities ...*api.WorkloadIdentity) (*wallet, *told, map[string]string) {
	t.Helper()
	o := &told{start: time.Now()}
	w := o.wallet(identities...)
	env, err := w.fill(&interfaces.TaskPrestartRequest{WriteFile: o.write, Lifecycle: o, Keep: o.keep})
	if err != nil {
		t.Fatal(err)
	}
	return w, o, env
}

// heavy is an environment that nothing is asked of.
type heavy struct {
	interfaces.Env
	_ [64]byte // so that it shares its block of memory with nothing else
}

// TestAWalletKeepsNoRequest: the environment and the allocation of a start are garbage when its identities are issued.
func TestAWalletKeepsNoRequest(t *testing.T) {
	freed := make(chan string, 2)
	o := &told{start: time.Now()}
	w := o.wallet(&api.WorkloadIdentity{Name: "file", File: true, TTL: time.Hour}, &api.WorkloadIdentity{Name: "env", Env: true})
	func() {
		alloc, env := &api.Allocation{ID: "a"}, &heavy{}
		runtime.AddCleanup(alloc, func(what string) { freed <- what }, "allocation")
		runtime.AddCleanup(env, func(what string) { freed <- what }, "environment")
		if _, err := w.fill(&interfaces.TaskPrestartRequest{Alloc: alloc, Env: env, WriteFile: o.write, Lifecycle: o, Keep: o.keep}); err != nil {
			t.Fatal(err)
		}
	}()
	deadline := time.After(time.Minute)
	for given := map[string]bool{"allocation": true, "environment": true}; len(given) > 0; {
		runtime.GC()
		select {
		case what := <-freed:
			delete(given, what)
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatalf("kept alive: %v", given)
		}
	}
	runtime.KeepAlive(w)
}

func (o *told) wallet(identities ...*api.WorkloadIdentity) *wallet {
	good := func(_ *api.WorkloadIdentity, n note) bool { return n.key == "good" && n.audience == "api vault" }
	return newWallet(&api.Task{Name: "t", Identities: identities}, o.issue, good, slog.New(slog.DiscardHandler))
}

// follow runs the wallet for some time.
func follow(t *testing.T, w *wallet, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	w.run(ctx)
}

func TestRenewalAtHalfOfTheLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, o, env := newTold(t,
			&api.WorkloadIdentity{Name: "quiet", TTL: time.Hour, File: true},
			&api.WorkloadIdentity{Name: "loud", TTL: 80 * time.Minute, File: true, Filepath: "local/x.jwt", ChangeMode: "signal", ChangeSignal: "SIGHUP"},
			&api.WorkloadIdentity{Name: "env", TTL: 90 * time.Minute, Env: true, ChangeMode: "restart"},
			&api.WorkloadIdentity{Name: "lasting", File: true},
		)
		if diff := cmp.Diff(map[string]string{"NOMAD_TOKEN_env": "token4"}, env); diff != "" {
			t.Errorf("environment (-want +got):\n%s", diff)
		}
		follow(t, w, 50*time.Minute)
		want := []string{
			"0s write secrets/nomad_quiet.jwt token2",
			"0s write local/x.jwt token3",
			"0s write secrets/nomad_lasting.jwt token5",
			"30m0s write secrets/nomad_quiet.jwt token6",
			"40m0s write local/x.jwt token7",
			"40m0s signal SIGHUP",
			`45m0s restart: Identity "env" was renewed`,
		}
		if diff := cmp.Diff(want, o.lines); diff != "" {
			t.Errorf("what happened (-want +got):\n%s", diff)
		}
	})
}

// TestAFileLastsWithoutATTL: its token is renewed when half of it is over, too. One in a variable is what it is.
func TestAFileLastsWithoutATTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, o, _ := newTold(t, &api.WorkloadIdentity{Name: "file", File: true}, &api.WorkloadIdentity{Name: "env", Env: true, ChangeMode: "restart"})
		follow(t, w, 25*time.Hour)
		want := []string{"0s write secrets/nomad_file.jwt token2", "12h0m0s write secrets/nomad_file.jwt token4", "24h0m0s write secrets/nomad_file.jwt token5"}
		if diff := cmp.Diff(want, o.lines); diff != "" {
			t.Errorf("what happened (-want +got):\n%s", diff)
		}
	})
}

func TestFailedRenewalIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, o, _ := newTold(t, &api.WorkloadIdentity{Name: "a", TTL: time.Minute, File: true})
		o.fail = true
		follow(t, w, 31500*time.Millisecond)
		o.fail = false
		follow(t, w, time.Second)
		want := []string{
			"0s write secrets/nomad_a.jwt token2",
			"30s fail a", "31s fail a",
			"32s write secrets/nomad_a.jwt token3",
		}
		if diff := cmp.Diff(want, o.lines); diff != "" {
			t.Errorf("what happened (-want +got):\n%s", diff)
		}
	})
}

// TestAFullDisk keeps no task from its next start that has a good file; one without, or with one that nobody takes, does not start.
func TestAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, o, _ := newTold(t, &api.WorkloadIdentity{Name: "a", TTL: time.Hour, File: true, Env: true})
		dir := t.TempDir()
		start := func() error {
			env, err := w.fill(&interfaces.TaskPrestartRequest{WriteFile: o.write, Lifecycle: o, Keep: o.keep, Dir: interfaces.TaskDir{Dir: dir}})
			if err == nil && env["NOMAD_TOKEN_a"] == "" {
				t.Error("its variable is empty")
			}
			return err
		}
		o.full = true
		if err := start(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("without a file: %v", err)
		}
		if err := os.Mkdir(filepath.Join(dir, "secrets"), 0o700); err != nil {
			t.Fatal(err)
		}
		mustWrite(t, filepath.Join(dir, "secrets/nomad_a.jwt"), "token")
		if err := start(); err != nil {
			t.Errorf("with a good one: %v", err)
		}
		o.full = false
		follow(t, w, 1500*time.Millisecond)
		if got := o.lines[len(o.lines)-1]; !strings.HasPrefix(got, "1s write secrets/nomad_a.jwt") {
			t.Errorf("when there is room again: %s", got)
		}
		time.Sleep(time.Hour)
		o.full = true
		if err := start(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("with one that has lapsed: %v", err)
		}
	})
}

// TestRemovedKeysTokensAreReplaced at once: those whose own key is gone, and no others.
func TestRemovedKeysTokensAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, o, _ := newTold(t, &api.WorkloadIdentity{Name: "a", File: true}, &api.WorkloadIdentity{Name: "env", Env: true})
		w.replaceUntrusted(func(key string) bool { return key == "good" })
		follow(t, w, time.Hour)
		if len(o.lines) != 1 {
			t.Errorf("with all keys trusted: %s", strings.Join(o.lines, "; "))
		}
		w.replaceUntrusted(func(string) bool { return false })
		follow(t, w, time.Hour)
		if got := strings.Join(o.lines, "; "); got != "0s write secrets/nomad_a.jwt token2; 1h0m0s write secrets/nomad_a.jwt token4" {
			t.Errorf("got %s", got)
		}
	})
}

// TestRemovedKeysTokenInTheEnvironment is said to need a restart, also when the identity has a file, in which it is replaced.
func TestRemovedKeysTokenInTheEnvironment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, _ := newTold(t, &api.WorkloadIdentity{Name: "file", File: true}, &api.WorkloadIdentity{Name: "env", Env: true},
			&api.WorkloadIdentity{Name: "both", Env: true, File: true}, &api.WorkloadIdentity{Name: "restarts", Env: true, ChangeMode: "restart"})
		var log bytes.Buffer
		w.logger = slog.New(slog.NewTextHandler(&log, nil))
		w.replaceUntrusted(func(string) bool { return false })
		var warned []string
		for line := range strings.Lines(log.String()) {
			_, name, _ := strings.Cut(strings.TrimSpace(line), "identity=")
			warned = append(warned, name)
		}
		if !slices.Equal(warned, []string{"env", "both"}) {
			t.Errorf("warned of %q:\n%s", warned, &log)
		}
	})
}

// TestTakenOverTokens leaves alone what is good, keeps the dates of renewals, and replaces at once what is not good any more.
func TestTakenOverTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		identities := []*api.WorkloadIdentity{
			{Name: "ttl", TTL: time.Hour, File: true},
			{Name: "year", File: true, Filepath: "year.jwt"},
			{Name: "gone", File: true, Filepath: "gone.jwt"},
			{Name: "link", File: true, Filepath: "link.jwt"},
			{Name: "elsewhere", File: true, Filepath: "elsewhere.jwt"},
			{Name: "removed", File: true, Filepath: "removed.jwt", ChangeMode: "signal", ChangeSignal: "SIGHUP"},
			{Name: "old", TTL: time.Minute, File: true, Filepath: "old.jwt"},
			{Name: "env", TTL: 90 * time.Minute, Env: true, ChangeMode: "restart"},
			{Name: "unknown", TTL: time.Hour, Env: true, ChangeMode: "restart"},
			{Name: "lasting", Env: true},
		}
		_, o, _ := newTold(t, identities...)
		if err := os.Mkdir(filepath.Join(dir, "secrets"), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"secrets/nomad_ttl.jwt", "year.jwt", "elsewhere.jwt", "removed.jwt", "old.jwt"} {
			mustWrite(t, filepath.Join(dir, file), "token")
		}
		if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link.jwt")); err != nil {
			t.Fatal(err)
		}
		kept := maps.Clone(o.kept)
		kept["removed"] = strings.Replace(kept["removed"], "good", "removed", 1)
		kept["elsewhere"] = strings.Replace(kept["elsewhere"], "vault", "another", 1)
		delete(kept, "unknown")

		time.Sleep(10 * time.Minute) // nobody runs the wallet
		o.lines = nil
		w := o.wallet(identities...)
		env, err := w.fill(&interfaces.TaskPrestartRequest{
			WriteFile: o.write, Lifecycle: o, Keep: o.keep, Kept: kept, Dir: interfaces.TaskDir{Dir: dir}, Restored: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		if names := slices.Sorted(maps.Keys(env)); !slices.Equal(names, []string{"NOMAD_TOKEN_env", "NOMAD_TOKEN_lasting", "NOMAD_TOKEN_unknown"}) {
			t.Errorf("programs beside the task get %v", names)
		}
		follow(t, w, 39*time.Minute+45*time.Second)
		for i, line := range o.lines {
			o.lines[i], _, _ = strings.Cut(line, " token")
		}
		want := []string{
			"10m0s write gone.jwt", "10m0s write link.jwt", "10m0s write elsewhere.jwt", "10m0s write removed.jwt", "10m0s write old.jwt",
			"10m0s signal SIGHUP",
			"30m0s write secrets/nomad_ttl.jwt",
			"40m0s restart: Identity \"unknown\" was renewed",
			"45m0s restart: Identity \"env\" was renewed",
		}
		var got []string
		for _, line := range o.lines {
			if !strings.Contains(line, "old.jwt") || strings.HasPrefix(line, "10m0s") { // it goes on each 30 s
				got = append(got, line)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("what happened (-want +got):\n%s", diff)
		}
	})
}

// TestNotes are read as they were written.
func TestNotes(t *testing.T) {
	n := note{time.Unix(1_700_000_000, 0), time.Unix(1_800_000_000, 0), "a-key", `a "b" c`}
	if got, ok := readNote(n.String()); !ok || got != n {
		t.Errorf("got %v, %v; want %v", got, ok, n)
	}
	if got, ok := readNote("1700000000 1800000000 a-key"); !ok || got.audience != "" || got.key != n.key || got.expires != n.expires {
		t.Errorf("without an audience: %v, %v", got, ok)
	}
	for _, bad := range []string{"", "1 2", "x 2 key a", "1 x key a"} {
		if got, ok := readNote(bad); ok {
			t.Errorf("%q is read as %v", bad, got)
		}
	}
}
