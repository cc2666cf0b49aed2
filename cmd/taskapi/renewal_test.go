package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
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

	mu    sync.Mutex // guards the fields below
	lines []string
	count int
}

func (o *told) note(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lines = append(o.lines, fmt.Sprintf("%v ", time.Since(o.start))+fmt.Sprintf(format, args...))
}

func (o *told) issue(wi *api.WorkloadIdentity) (string, error) {
	if o.fail {
		o.note("fail %s", wi.Name)
		return "", errors.New("no key")
	}
	o.count++
	return fmt.Sprintf("token%d", o.count), nil
}

func (o *told) write(path string, data []byte) error {
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
	w := newWallet(&api.Task{Name: "t", Identities: identities}, o.issue, slog.New(slog.DiscardHandler))
	env, err := w.fill(&interfaces.TaskPrestartRequest{WriteFile: o.write, Lifecycle: o})
	if err != nil {
		t.Fatal(err)
	}
	return w, o, env
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

func TestReissueIsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, o, _ := newTold(t, &api.WorkloadIdentity{Name: "a", File: true})
		w.reissue()
		follow(t, w, time.Hour)
		if got := strings.Join(o.lines, "; "); got != "0s write secrets/nomad_a.jwt token2; 0s write secrets/nomad_a.jwt token3" {
			t.Errorf("got %s", got)
		}
	})
}
