package main

import (
	"os"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/identity"
)

// TestOperatorTokenLasts leaves the operator's token in place only while it is what would be written, and good for long.
func TestOperatorTokenLasts(t *testing.T) {
	l := layout{shortDir(t)}
	if err := os.MkdirAll(l.alloc(testAllocID), 0o700); err != nil {
		t.Fatal(err)
	}
	keyring, err := identity.OpenKeyring(identity.KeyringConfig{Dir: l.keyring()})
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := identity.NewVerifier(identity.VerifierConfig{Local: keyring, MaxTTL: 2 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	side := func(ttl time.Duration) *sidecar {
		return &sidecar{layout: l, keyring: keyring, verifier: verifier, options: runOptions{sideFlags: sideFlags{identityTTL: ttl}}}
	}
	job := func(id string) *api.Allocation {
		region := "global"
		return &api.Allocation{ID: testAllocID, JobID: id, Namespace: "default", TaskGroup: "g", Job: &api.Job{Region: &region}}
	}
	now := time.Now()
	if side(time.Hour).operatorTokenLasts(job("a"), now) {
		t.Error("a token that is not there lasts")
	}
	if err := side(time.Hour).writeOperatorToken(job("a")); err != nil {
		t.Fatal(err)
	}
	path := l.operatorToken(testAllocID)
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
