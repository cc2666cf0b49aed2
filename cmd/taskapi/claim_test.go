package main

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
)

// TestClaim is one process's, and begins anew without letting go.
func TestClaim(t *testing.T) {
	l := layout{t.TempDir()}
	logger := slog.New(slog.DiscardHandler)
	c, err := l.claim(testAllocID, logger)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.state.Put(interfaces.Change{ID: testAllocID, Alloc: &api.Allocation{ID: testAllocID}, Over: true}); err != nil {
		t.Fatal(err)
	}
	if err := c.anew(); err != nil {
		t.Fatal(err)
	}
	if _, err := state.Read(filepath.Join(c.dir, state.FileName)); err == nil {
		t.Error("another process can read a state that is claimed")
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	again, err := l.claim(testAllocID, logger)
	if err != nil || again.saved != nil {
		t.Fatalf("got %+v, %v; want a claim of something that has not begun", again, err)
	}
	if err := again.close(); err != nil {
		t.Fatal(err)
	}
}

// TestFlagsAreRemembered as they were, with paths that are good from anywhere.
func TestFlagsAreRemembered(t *testing.T) {
	dir := t.TempDir()
	if got, err := remembered(dir); err != nil || got.hostIP != "127.0.0.1" || got.identityTTL != defaultIdentityTTL {
		t.Errorf("without a file: %+v, %v; want the defaults", got, err)
	}
	flags := sideFlags{
		jwks: []string{"/a/keys.json", "https://example.com/keys"}, audiences: []string{"x"}, issuer: "https://i", policy: "/a/policy",
		auditLog: "/a/audit", hostIP: "::1", identityTTL: 3,
	}
	if err := flags.remember(dir, "/a/seal"); err != nil {
		t.Fatal(err)
	}
	got, err := remembered(dir)
	if err != nil || got.sealKey != "/a/seal" {
		t.Fatalf("got %+v, %v", got, err)
	}
	if diff := cmp.Diff(flags, got.sideFlags, cmp.AllowUnexported(sideFlags{})); diff != "" {
		t.Errorf("flags (-want +got):\n%s", diff)
	}
	relative := sideFlags{policy: "policy", jwks: []string{"keys.json"}, hostIP: "::1", identityTTL: 3}
	if err := relative.remember(dir, ""); err != nil {
		t.Fatal(err)
	}
	if got, err := remembered(dir); err != nil || !filepath.IsAbs(got.policy) || !filepath.IsAbs(got.jwks[0]) || got.sealKey != "" {
		t.Errorf("got %+v, %v; want absolute paths", got, err)
	}
	mustWrite(t, filepath.Join(dir, settingsName), "{")
	if _, err := remembered(dir); err == nil {
		t.Error("a broken file is taken for none")
	}
}
