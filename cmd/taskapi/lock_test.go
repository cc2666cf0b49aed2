package main

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
)

// TestAStopAfterTheEnd of an allocation that was to be replaced has nothing follow it.
func TestAStopAfterTheEnd(t *testing.T) {
	l := datadir.Dir(t.TempDir())
	c := must.Get(l.Lock(testAllocID, l.Store(version), slog.New(slog.DiscardHandler)))(t)
	alloc := &api.Allocation{ID: testAllocID, ClientStatus: api.AllocClientStatusComplete, ModifyIndex: 7}
	interfaces.StopRequest{ReplacedBy: new(api.Allocation)}.Apply(alloc)
	must.OK(t, c.State().Put(interfaces.Saved{Alloc: alloc, Terminal: true}))
	must.OK(t, c.Close())
	if saved, err := l.Saved(testAllocID); err != nil || !interfaces.Replaced(saved.Alloc) {
		t.Fatalf("%+v, %v", saved, err)
	}
	if out := taskapi(t, "stop", "--data-dir", string(l), testAllocID); !strings.Contains(out,
		"has already ended (complete)") {
		t.Errorf("said: %s", out)
	}
	saved, err := l.Saved(testAllocID)
	if err != nil || !saved.Terminal || interfaces.Replaced(saved.Alloc) ||
		saved.Alloc.DesiredStatus != api.AllocDesiredStatusStop {
		t.Errorf("%+v, %v; want it stopped for good", saved, err)
	}
}
