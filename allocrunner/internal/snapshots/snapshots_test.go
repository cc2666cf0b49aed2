package snapshots_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/snapshots"
)

func given() *api.Allocation {
	group := "g"
	return &api.Allocation{TaskGroup: group, Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: &group, Tasks: []*api.Task{{Name: "one"}, {Name: "two"}}}}}}
}

// TestChange: what was read before stays as it was, and the index grows.
func TestChange(t *testing.T) {
	var s snapshots.Snapshots
	alloc := given()
	s.Init(alloc, nil)
	first := s.Latest()
	if first == alloc || first.ModifyIndex == 0 || len(first.TaskStates) != 2 || first.TaskStates["one"].State != "pending" {
		t.Errorf("it begins as %+v", first)
	}
	s.Change(func(a *api.Allocation) { a.ClientStatus = api.AllocClientStatusRunning })
	if now := s.Latest(); first.ClientStatus != api.AllocClientStatusPending || now.ClientStatus != api.AllocClientStatusRunning || now.ModifyIndex <= first.ModifyIndex {
		t.Errorf("%+v has become %+v", first, now)
	}
}

// TestRestore: an index that a client has seen never comes again, and a task whose record was lost is pending.
func TestRestore(t *testing.T) {
	var s snapshots.Snapshots
	saved := given()
	saved.ModifyIndex, saved.TaskStates = 7, map[string]*api.TaskState{"one": {State: "running"}}
	s.Restore(&interfaces.Saved{Alloc: saved})
	if got := s.Latest(); got.ModifyIndex <= 7 || got.TaskStates["one"].State != "running" || got.TaskStates["two"].State != "pending" || len(saved.TaskStates) != 1 {
		t.Errorf("%+v of %+v", got, saved)
	}
}

// TestWait returns with the next change, or with the end of its context.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s snapshots.Snapshots
		s.Init(given(), nil)
		seen := s.Latest().ModifyIndex
		got := make(chan uint64)
		ctx, cancel := context.WithCancel(t.Context())
		wait := func(index uint64) { got <- s.Wait(ctx, index).ModifyIndex }
		go wait(seen - 1)
		if index := <-got; index != seen {
			t.Errorf("what is there already: index %d, want %d", index, seen)
		}
		go wait(seen)
		synctest.Wait()
		select {
		case <-got:
			t.Error("it does not wait for a change")
		default:
		}
		s.Change(func(*api.Allocation) {})
		if index := <-got; index != seen+1 {
			t.Errorf("after a change: index %d, want %d", index, seen+1)
		}
		go wait(seen + 1)
		cancel()
		if index := <-got; index != seen+1 {
			t.Errorf("after the end of the context: index %d, want %d", index, seen+1)
		}
	})
}

// TestStop: a second request that says the same is no change.
func TestStop(t *testing.T) {
	var s snapshots.Snapshots
	s.Init(given(), nil)
	for i, want := range []bool{true, false} {
		if got := s.Stop(interfaces.StopRequest{}); got != want || s.Latest().DesiredStatus != api.AllocDesiredStatusStop {
			t.Errorf("request %d: changed %v, want %v; %+v", i, got, want, s.Latest())
		}
	}
	if !s.Stop(interfaces.StopRequest{NoShutdownDelay: true}) {
		t.Error("a request without a shutdown delay is a change")
	}
}
