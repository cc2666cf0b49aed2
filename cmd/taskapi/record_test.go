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

// TestAnOlderVersionNeverFollows has the buffer come late with a version that the runner has overtaken.
func TestAnOlderVersionNeverFollows(t *testing.T) {
	l := layout{t.TempDir()}
	c, err := l.claim(testAllocID, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	r := &record{DB: c.state}
	version := func(index uint64, desired string) *api.Allocation {
		return &api.Allocation{
			ID: testAllocID, ModifyIndex: index, DesiredStatus: desired, Job: &api.Job{},
			TaskStates: map[string]*api.TaskState{"t": {State: "pending"}},
		}
	}
	desired := func() string {
		t.Helper()
		saved, err := c.state.Saved(testAllocID)
		if err != nil {
			t.Fatal(err)
		}
		return saved.Alloc.DesiredStatus
	}
	put := func(alloc *api.Allocation, over bool) {
		t.Helper()
		if err := r.Put(interfaces.Change{ID: testAllocID, Alloc: alloc, Over: over}); err != nil {
			t.Fatal(err)
		}
	}
	sink := func(alloc *api.Allocation) {
		t.Helper()
		if err := r.PutAllocs(t.Context(), []*api.Allocation{alloc}); err != nil {
			t.Fatal(err)
		}
	}
	put(version(1, "run"), false)
	put(version(3, "stop"), false)
	sink(version(2, "run"))
	if got := desired(); got != "stop" {
		t.Errorf("the stop is forgotten: %s", got)
	}
	sink(version(5, "later"))
	put(version(4, "stop"), true)
	if saved, err := c.state.Saved(testAllocID); err != nil || saved.Alloc.DesiredStatus != "later" || !saved.Over {
		t.Errorf("got %+v, %v; want the later version, over", saved, err)
	}
	sink(version(5, "later"))
	if saved, err := c.state.Saved(testAllocID); err != nil || saved.Alloc.TaskStates["t"] == nil {
		t.Errorf("got %+v, %v; want the states of tasks of the same version", saved, err)
	}
}

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
