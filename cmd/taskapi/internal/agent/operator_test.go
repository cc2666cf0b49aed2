package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/identity"
)

// newIssuer is as much of an agent as issues the operator's token.
func newIssuer(t *testing.T, dir string) *wiring {
	t.Helper()
	keyring, err := identity.OpenKeyring(identity.KeyringConfig{Dir: filepath.Join(dir, "keyring")})
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := identity.NewVerifier(identity.VerifierConfig{Local: keyring, MaxTTL: 2 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return &wiring{paths: Paths{Alloc: dir, OperatorToken: filepath.Join(dir, "operator.token")}, logger: slog.New(slog.DiscardHandler), keyring: keyring, verifier: verifier}
}

const testAllocID = "5a58a5b3-5a55-4e8c-9bb8-2c4f6f4b3a2d"

func mustWrite(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// ofJob is an allocation of a job.
func ofJob(id string) *api.Allocation {
	region := "global"
	return &api.Allocation{ID: testAllocID, JobID: id, Namespace: "default", TaskGroup: "g", Job: &api.Job{Region: &region}}
}

// TestOperatorTokenIsRenewed when half of its life is over, and soon after a renewal that failed.
func TestOperatorTokenIsRenewed(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := newIssuer(t, dir)
		s.settings.IdentityTTL = time.Hour
		alloc, path := ofJob("a"), s.paths.OperatorToken
		if err := s.writeOperatorToken(alloc); err != nil {
			t.Fatal(err)
		}
		follow := func(d time.Duration) string {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			s.renewOperatorToken(ctx, alloc)
			token, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			return string(token)
		}
		first := follow(29 * time.Minute)
		if again := follow(30 * time.Second); again != first {
			t.Error("renewed before its time")
		}
		second := follow(time.Minute)
		if second == first || !s.operatorTokenLasts(alloc, time.Now()) {
			t.Errorf("not renewed, or of no use: %q", second)
		}
		mustWrite(t, path, "garbage")
		if third := follow(2 * renewRetry); third == "garbage" || !s.operatorTokenLasts(alloc, time.Now()) {
			t.Errorf("what is no token is not replaced: %q", third)
		}
	})
}

// TestOperatorTokenLasts leaves the operator's token in place only while it is what would be written, and good for long.
func TestOperatorTokenLasts(t *testing.T) {
	issuer := newIssuer(t, t.TempDir())
	keyring := issuer.keyring
	side := func(ttl time.Duration) *wiring {
		issuer.settings.IdentityTTL = ttl
		return issuer
	}
	job := ofJob
	now := time.Now()
	if side(time.Hour).operatorTokenLasts(job("a"), now) {
		t.Error("a token that is not there lasts")
	}
	if err := side(time.Hour).writeOperatorToken(job("a")); err != nil {
		t.Fatal(err)
	}
	path := issuer.paths.OperatorToken
	for _, tc := range []struct {
		name string
		ttl  time.Duration
		job  string
		now  time.Time
		mode os.FileMode
		want bool
	}{
		{"it is new", time.Hour, "a", now, 0o600, true},
		{"a longer life is wanted", 2 * time.Hour, "a", now, 0o600, true},
		{"half of its life is over", time.Hour, "a", now.Add(31 * time.Minute), 0o600, false},
		{"it has expired", time.Hour, "a", now.Add(61 * time.Minute), 0o600, false},
		{"a shorter life is wanted", time.Minute, "a", now, 0o600, false},
		{"it is of another job", time.Hour, "b", now, 0o600, false},
		{"others can read it", time.Hour, "a", now, 0o644, false},
	} {
		if err := os.Chmod(path, tc.mode); err != nil {
			t.Fatal(err)
		}
		if got := side(tc.ttl).operatorTokenLasts(job(tc.job), tc.now); got != tc.want {
			t.Errorf("%s: lasts %v, want %v", tc.name, got, tc.want)
		}
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := keyring.Rotate(); err != nil {
		t.Fatal(err)
	}
	if !side(time.Hour).operatorTokenLasts(job("a"), now) {
		t.Error("its key is active no longer, but trusted: want it to last")
	}
	if err := keyring.Remove(keyring.List()[1].ID); err != nil {
		t.Fatal(err)
	}
	if side(time.Hour).operatorTokenLasts(job("a"), now) {
		t.Error("a token of a removed key lasts")
	}
	mustWrite(t, path, "garbage")
	if side(time.Hour).operatorTokenLasts(job("a"), now) {
		t.Error("garbage lasts")
	}
}
