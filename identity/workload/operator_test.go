package workload_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/identity/workload"
	"taskapi/internal/must"
)

// operators keeps the operator's token of an allocation of a job.
type operators struct {
	ring *ring
	path string
	log  bytes.Buffer
}

func newOperators(t *testing.T) *operators {
	t.Helper()
	return &operators{ring: &ring{Keyring: identitytest.Keyring(t)}, path: filepath.Join(t.TempDir(), "operator.token")}
}

func (o *operators) manager(job string, ttl time.Duration, audience string) *workload.Manager {
	config := configOf(o.ring)
	config.Logger, config.Audiences = slog.New(slog.NewTextHandler(&o.log, nil)), []string{audience}
	config.TTL, config.JobID = ttl, job
	return workload.New(config)
}

// token returns the token that a manager leaves in the file.
func (o *operators) token(t *testing.T, job string, ttl time.Duration, audience string) string {
	t.Helper()
	tokens := must.Get(o.manager(job, ttl, audience).Operator(o.path))(t)
	tokens.Stop()
	return o.read(t)
}

func (o *operators) read(t *testing.T) string {
	t.Helper()
	return must.Get(workload.ReadOperatorToken(o.path))(t)
}

// TestOperatorTokenIsRenewed when half of its life is over, when its file holds something else, when its key is
// removed, and soon after a renewal that failed.
func TestOperatorTokenIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperators(t)
		m := o.manager("a", 24*time.Hour, "aud")
		tokens := must.Get(m.Operator(o.path))(t)
		run := func(d time.Duration) string {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			m.Run(ctx)
			return o.read(t)
		}
		first := run(29 * time.Minute)
		if again := run(30 * time.Second); again != first {
			t.Error("renewed before its time")
		}
		second := run(time.Minute)
		if second == first {
			t.Error("not renewed at half of an hour")
		}
		must.OK(t, os.WriteFile(o.path, []byte("garbage"), 0o600))
		third := run(31 * time.Second)
		key(t, third)
		o.ring.fail = true
		before := identitytest.Rotate(t, o.ring.Keyring)
		o.ring.remove(t, before)
		if run(5*time.Second) != third || strings.Count(o.log.String(), "token not renewed; it is tried again") != 1 {
			t.Errorf("while nothing can be signed: %s", &o.log)
		}
		o.ring.fail = false
		if got := key(t, run(2*time.Second)); got != o.ring.Active().ID {
			t.Errorf("after the removal of its key it is signed by %s", got)
		}
		last := run(time.Second)
		tokens.Stop()
		if run(2*time.Hour) != last {
			t.Error("renewed after Stop")
		}
	})
}

// TestOperatorTokenStays only while it is what would be written, and good for long.
func TestOperatorTokenStays(t *testing.T) {
	for _, tc := range []struct {
		name     string
		job      string
		ttl      time.Duration
		audience string
		change   func(t *testing.T, o *operators)
		stays    bool
	}{
		{"nothing has changed", "a", time.Hour, "aud", func(*testing.T, *operators) {}, true},
		{"a longer life is wanted", "a", 2 * time.Hour, "aud", func(*testing.T, *operators) {}, true},
		{"a shorter life is wanted", "a", time.Minute, "aud", func(*testing.T, *operators) {}, false},
		{"just before its half", "a", time.Hour, "aud",
			func(*testing.T, *operators) { time.Sleep(30*time.Minute - time.Second) }, true},
		{"half of its life is over", "a", time.Hour, "aud", func(*testing.T, *operators) { time.Sleep(30 * time.Minute) },
			false},
		{"it has expired", "a", time.Hour, "aud", func(*testing.T, *operators) { time.Sleep(time.Hour) }, false},
		{"another job", "b", time.Hour, "aud", func(*testing.T, *operators) {}, false},
		{"another audience", "a", time.Hour, "b", func(*testing.T, *operators) {}, false},
		{"others can read it", "a", time.Hour, "aud", func(t *testing.T, o *operators) {
			must.OK(t, os.Chmod(o.path, 0o644))
		}, false},
		{"its key is active no longer", "a", time.Hour, "aud",
			func(t *testing.T, o *operators) { identitytest.Rotate(t, o.ring.Keyring) }, true},
		{"its key is removed", "a", time.Hour, "aud",
			func(t *testing.T, o *operators) { o.ring.remove(t, identitytest.Rotate(t, o.ring.Keyring)) }, false},
		{"garbage", "a", time.Hour, "aud", func(t *testing.T, o *operators) {
			must.OK(t, os.WriteFile(o.path, []byte("garbage"), 0o600))
		}, false},
		{"a task's", "a", time.Hour, "aud", func(t *testing.T, o *operators) {
			token := identitytest.Sign(t, o.ring.Keyring, identity.Claims{Subject: "global:default:a:group::operator",
				Audience: []string{"aud"},
				IssuedAt: time.Now().Unix(), NotBefore: time.Now().Unix(), ExpiresAt: time.Now().Add(time.Hour).Unix(),
				Namespace: "default", JobID: "a", AllocationID: "alloc", Life: "life"})
			must.OK(t, os.WriteFile(o.path, []byte(token), 0o600))
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOperators(t)
				o.token(t, "a", time.Hour, "aud")
				tc.change(t, o)
				before := must.Read(t, o.path)
				after := o.token(t, tc.job, tc.ttl, tc.audience)
				if stays := after == string(before); stays != tc.stays {
					t.Errorf("stays %v, want %v", stays, tc.stays)
				}
				if info, err := os.Stat(o.path); err != nil || info.Mode() != 0o600 {
					t.Errorf("%v, %v; want mode 0600", info, err)
				}
			})
		})
	}
}
