package handlers_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/handlers/apierror"
	"taskapi/internal/must"
)

const gcPath = "/v1/client/allocation/" + allocID + "/gc"

func TestSDKGC(t *testing.T) {
	alloc := newAlloc(t)
	var calls int
	var running bool
	alloc.collect = func(context.Context) error {
		calls++
		if running {
			return interfaces.ErrNotTerminal
		}
		return nil
	}
	s := newServer(t, alloc)
	client, of := s.sdk(t, operator), &api.Allocation{ID: allocID}
	if err := client.Allocations().GC(of, nil); err != nil || calls != 1 {
		t.Errorf("gc = %v after %d calls", err, calls)
	}
	if err := client.Nodes().GC(otherID, nil); err != nil || calls != 2 { // the node's ID in the tests
		t.Errorf("gc of the node = %v after %d calls", err, calls)
	}
	running = true
	wantSDKError(t, client.Allocations().GC(of, nil), 409,
		"No such allocation on client, or allocation not eligible for GC")
	if err := client.Nodes().GC(otherID, nil); err != nil || calls != 4 {
		t.Errorf("gc of a node where all runs = %v after %d calls", err, calls)
	}
	wantSDKError(t, client.Nodes().GC(allocID, nil), 404, "node not found")
	wantSDKError(t, s.sdk(t, goodToken).Nodes().GC(otherID, nil), 403, "Permission denied")
	alloc.collect = func(context.Context) error { return runnerError(apierror.Internal) }
	wantSDKError(t, client.Nodes().GC(otherID, nil), 500, "internal error")
}

// TestGCIsAudited: also when it comes as a GET.
func TestGCIsAudited(t *testing.T) {
	s := newServer(t, quietAlloc(t))
	must.OK(t, s.sdk(t, goodToken).Allocations().GC(&api.Allocation{ID: allocID}, nil))
	if got := s.audited(); len(got) != 1 || got[0].Status != 200 {
		t.Errorf("audited %+v, want one record of 200", got)
	}
}

func TestSDKPause(t *testing.T) {
	alloc := newAlloc(t)
	alloc.paused = map[string]interfaces.ScheduleState{}
	client, of := newServer(t, alloc).sdk(t, goodToken), &api.Allocation{ID: allocID}
	if state, _, err := client.Allocations().GetPauseState(of, nil, "server"); state != "" || err != nil {
		t.Errorf("state = %q, %v, want none", state, err)
	}
	_, _, err := client.Allocations().GetPauseState(of, nil, "nope")
	wantSDKError(t, err, 404, "Task not found")
	for _, c := range []struct {
		task, state string
		status      int
		want        string
	}{
		{"nope", "run", 404, "Task not found"},
		{"server", "sleep", 400, `Not a valid task schedule state: give "pause", "run" or "scheduled", not "sleep"`},
	} {
		wantSDKError(t, client.Allocations().SetPauseState(of, nil, c.task, c.state), c.status, c.want)
	}
	for _, c := range []struct{ set, want string }{{"pause", "force_pause"}, {"run", "force_run"}, {"scheduled", ""}} {
		must.OK(t, client.Allocations().SetPauseState(of, nil, "server", c.set))
		state, _, err := client.Allocations().GetPauseState(of, nil, "server")
		if err != nil || state != c.want {
			t.Errorf("after %s: %q, %v, want %q", c.set, state, err, c.want)
		}
	}
	for _, c := range []struct {
		err    error
		status int
		want   string
	}{
		{interfaces.ErrTaskNotRunning, 409, "Task not running"},
		{interfaces.ErrPoststop, 409, "a poststop task can't be stopped by itself: it runs when the others have ended"},
		{fmt.Errorf("%w: %w", interfaces.ErrUnsaved, syscall.ENOSPC), 503,
			"the change holds until taskapi ends, because it could not be saved"},
	} {
		alloc.pauseErr = c.err
		wantSDKError(t, client.Allocations().SetPauseState(of, nil, "server", "pause"), c.status, c.want)
	}
}
