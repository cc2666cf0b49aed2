package main

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// TestGCLeavesANewRunAlone has another allocation of the same ID begin as soon as that is possible while gc removes
// many files.
func TestGCLeavesANewRunAlone(t *testing.T) {
	t.Parallel()
	l := datadir.Dir(shortDir(t))
	logger := slog.New(slog.DiscardHandler)
	c := must.Get(l.Lock(testAllocID, l.Store(version), logger))(t)
	group, job := "g", "over"
	alloc := &api.Allocation{
		ID: testAllocID, TaskGroup: group, ClientStatus: api.AllocClientStatusComplete, ModifyIndex: 7,
		Job: &api.Job{ID: &job, TaskGroups: []*api.TaskGroup{{Name: &group}}},
	}
	must.OK(t, errors.Join(c.State().Put(interfaces.Saved{Alloc: alloc, Terminal: true}),
		c.Close()))
	before := must.Get(os.Stat(l.State(testAllocID)))(t)
	for i := range 5_000 {
		// some of them removed after the state, in whatever order that is
		many := filepath.Join(c.Dir, "task-"+strconv.Itoa(i%100))
		must.OK(t, errors.Join(os.MkdirAll(many, 0o755), os.WriteFile(filepath.Join(many, strconv.Itoa(i)), nil,
			0o600)))
	}
	removed := make(chan int, 1)
	var said polltest.Log
	go func() {
		removed <- cli.Run(t.Context(), []string{"gc", "--data-dir", string(l), testAllocID}, testEnvironment(&said, &said))
	}()
	for give := time.Now().Add(deadline); ; {
		if info, err := os.Stat(l.State(testAllocID)); err != nil || !os.SameFile(info, before) {
			break
		}
		if time.Now().After(give) {
			t.Fatal("gc never begins")
		}
	}
	next, err := l.Lock(testAllocID, l.Store(version), logger)
	for give := time.Now().Add(deadline); errors.Is(err, state.ErrInUse) && time.Now().Before(give); {
		next, err = l.Lock(testAllocID, l.Store(version), logger)
	}
	must.OK(t, err)
	defer next.Close()
	if next.Saved() != nil || next.Removed() {
		t.Errorf("begins with what was removed: %+v, lost: %t", next.Saved(), next.Removed())
	}
	marker := writeFile(t, filepath.Join(next.Dir, "marker"), "")
	if code := <-removed; code != base.ExitOK {
		t.Errorf("gc: exit code %d: %s", code, said.String())
	}
	if !exists(marker) || !exists(l.State(testAllocID)) {
		t.Error("gc has removed files of the next run")
	}
	if left, err := os.ReadDir(l.Allocs()); err != nil || len(left) != 1 {
		t.Errorf("left in the data directory: %v, %v", left, err)
	}
}

// TestGCClearsUp what a gc that was killed has left.
func TestGCClearsUp(t *testing.T) {
	l := datadir.Dir(t.TempDir())
	left := filepath.Join(l.Allocs(), ".removed-"+testAllocID+"-1", testAllocID)
	must.OK(t, os.MkdirAll(left, 0o700))
	taskapi(t, "gc", "--data-dir", string(l), "--all")
	if exists(filepath.Dir(left)) {
		t.Error("it is still there")
	}
}
