package main

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
)

// TestClaim is one process's, and begins anew without letting go.
func TestClaim(t *testing.T) {
	l := layout{dir: t.TempDir()}
	logger := slog.New(slog.DiscardHandler)
	c, err := l.claim(testAllocID, logger)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.state.Put(interfaces.Change{ID: testAllocID, Alloc: &api.Allocation{ID: testAllocID}, Over: true}); err != nil {
		t.Fatal(err)
	}
	group, job := "g", "next"
	next := &api.Allocation{ID: testAllocID, TaskGroup: group, Job: &api.Job{ID: &job, TaskGroups: []*api.TaskGroup{{Name: &group}}}}
	if err := c.anew(next); err != nil {
		t.Fatal(err)
	}
	if _, err := state.Read(filepath.Join(c.dir, state.FileName)); err == nil {
		t.Error("another process can read a state that is claimed")
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	again, err := l.claim(testAllocID, logger)
	if err != nil || again.saved.Over || *again.saved.Alloc.Job.ID != job || again.saved.Alloc.ClientStatus != api.AllocClientStatusPending {
		t.Fatalf("got %+v, %v; want the next one, about to begin", again, err)
	}
	if err := again.close(); err != nil {
		t.Fatal(err)
	}
}

// TestAStopAfterTheEnd of an allocation that was to be replaced has nothing follow it.
func TestAStopAfterTheEnd(t *testing.T) {
	l := layout{dir: t.TempDir()}
	c, err := l.claim(testAllocID, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	alloc := &api.Allocation{ID: testAllocID, ClientStatus: api.AllocClientStatusComplete, ModifyIndex: 7}
	interfaces.StopRequest{Replaced: true}.Apply(alloc)
	if err := c.state.Put(interfaces.Change{ID: testAllocID, Alloc: alloc, Over: true}); err != nil {
		t.Fatal(err)
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	if saved, err := l.saved(testAllocID); err != nil || !interfaces.Replaced(saved.Alloc) {
		t.Fatalf("%+v, %v", saved, err)
	}
	if out := cli(t, "stop", "--data-dir", l.dir, testAllocID); !strings.Contains(out, "is over already: it is complete") {
		t.Errorf("said: %s", out)
	}
	saved, err := l.saved(testAllocID)
	if err != nil || !saved.Over || interfaces.Replaced(saved.Alloc) || saved.Alloc.DesiredStatus != api.AllocDesiredStatusStop {
		t.Errorf("%+v, %v; want it stopped for good", saved, err)
	}
}
