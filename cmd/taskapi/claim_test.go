package main

import (
	"log/slog"
	"path/filepath"
	"testing"

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
