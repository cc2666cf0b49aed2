package snapshots_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/snapshots"
	"taskapi/internal/same"
)

func given() *api.Allocation {
	group := "g"
	return &api.Allocation{TaskGroup: group, Job: &api.Job{TaskGroups: []*api.TaskGroup{{
		Name: &group, Tasks: []*api.Task{{Name: "one"}, {Name: "two"}}}}}}
}

// TestChange: a version that was read stays as it was, and the index grows.
func TestChange(t *testing.T) {
	var s snapshots.Snapshots
	alloc := given()
	s.Init(alloc, nil)
	first := s.Latest()
	if first == alloc || first.ModifyIndex == 0 || len(first.TaskStates) != 2 ||
		first.TaskStates["one"].State != "pending" {
		t.Errorf("it begins as %+v", first)
	}
	s.Change(func(a *api.Allocation) { a.ClientStatus = api.AllocClientStatusRunning })
	if now := s.Latest(); first.ClientStatus != api.AllocClientStatusPending ||
		now.ClientStatus != api.AllocClientStatusRunning || now.ModifyIndex <= first.ModifyIndex {
		t.Errorf("%+v has become %+v", first, now)
	}
}

// TestRestore: the index is above all that a client can have seen, and a task whose saved state was lost is pending.
func TestRestore(t *testing.T) {
	var s snapshots.Snapshots
	saved := given()
	saved.ModifyIndex, saved.TaskStates = 7, map[string]*api.TaskState{"one": {State: "running"}}
	s.Restore(&interfaces.Saved{Alloc: saved})
	if got := s.Latest(); got.ModifyIndex <= 7 || got.TaskStates["one"].State != "running" ||
		got.TaskStates["two"].State != "pending" || len(saved.TaskStates) != 1 {
		t.Errorf("%+v of %+v", got, saved)
	}
}

// TestWait: a wait ends with the next change, or with its context.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s snapshots.Snapshots
		s.Init(given(), nil)
		seen := s.Latest().ModifyIndex
		got := make(chan uint64)
		ctx, cancel := context.WithCancel(t.Context())
		wait := func(index uint64) { got <- s.Wait(ctx, index).ModifyIndex }
		go wait(seen - 1)
		same.As(t, seen, <-got, "what is there already: index")
		go wait(seen)
		synctest.Wait()
		select {
		case <-got:
			t.Error("it does not wait for a change")
		default:
		}
		s.Change(func(*api.Allocation) {})
		same.As(t, seen+1, <-got, "after a change: index")
		go wait(seen + 1)
		cancel()
		same.As(t, seen+1, <-got, "after the end of the context: index")
	})
}

// deployed returns an allocation that has a deployment, with a progress_deadline.
func deployed(deadline time.Duration) *api.Allocation {
	alloc := given()
	alloc.DeploymentID = "first"
	alloc.Job.TaskGroups[0].Update = &api.UpdateStrategy{ProgressDeadline: &deadline}
	return alloc
}

// TestAwaitOverdue: a wait ends when the progress_deadline passes, and not before. A restart does not prolong it.
func TestAwaitOverdue(t *testing.T) {
	for name, c := range map[string]struct {
		deadline time.Duration
		during   func(s *snapshots.Snapshots) *snapshots.Snapshots // after a quarter of an hour
		want     time.Duration                                     // 0 for never
	}{
		"nothing happens": {time.Hour, func(s *snapshots.Snapshots) *snapshots.Snapshots { return s }, time.Hour},
		"no deadline":     {0, func(s *snapshots.Snapshots) *snapshots.Snapshots { return s }, 0},
		"a restart": {time.Hour, func(s *snapshots.Snapshots) *snapshots.Snapshots {
			var next snapshots.Snapshots
			next.Restore(&interfaces.Saved{Alloc: s.Latest(), Deployments: s.Deployments()})
			return &next
		}, time.Hour},
		"healthy": {time.Hour, func(s *snapshots.Snapshots) *snapshots.Snapshots {
			s.Change(func(a *api.Allocation) { a.DeploymentStatus = &api.AllocDeploymentStatus{Healthy: new(true)} })
			return s
		}, 0},
		"failed by an operator": {time.Hour, func(s *snapshots.Snapshots) *snapshots.Snapshots {
			s.FailDeployment("first", false)
			return s
		}, 0},
		"another version": {time.Hour, func(s *snapshots.Snapshots) *snapshots.Snapshots {
			s.Change(func(a *api.Allocation) {
				job := *a.Job
				job.Version, a.Job, a.DeploymentID = new(uint64(1)), &job, "second"
			})
			return s
		}, 75 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, began := new(snapshots.Snapshots), time.Now()
				s.Init(deployed(c.deadline), nil)
				got := make(chan string, 2)
				ctx, cancel := context.WithCancel(t.Context())
				go func() { got <- s.AwaitOverdue(ctx) }()
				time.Sleep(15 * time.Minute)
				if next := c.during(s); next != s {
					cancel()
					same.As(t, "", <-got, "is overdue before its time")
					s, ctx = next, t.Context()
					ctx, cancel = context.WithCancel(ctx)
					go func() { got <- s.AwaitOverdue(ctx) }()
				}
				defer cancel()
				if c.want == 0 {
					time.AfterFunc(24*time.Hour, cancel)
					if id := <-got; id != "" {
						t.Errorf("%q is overdue after %v", id, time.Since(began))
					}
					return
				}
				id := <-got
				if after := time.Since(began); id != s.Latest().DeploymentID || after != c.want {
					t.Errorf("%q is overdue after %v, want %s after %v", id, after, s.Latest().DeploymentID, c.want)
				}
				s.FailDeployment(id, true)
				if d := s.Deployments()[0]; d.Status != "failed" ||
					d.StatusDescription != "Failed due to progress deadline" {
					t.Errorf("it is %s: %s", d.Status, d.StatusDescription)
				}
			})
		})
	}
}

// TestAVersionIsStable: a version is stable once its deployment was successful. The next version is not stable yet.
func TestAVersionIsStable(t *testing.T) {
	var s snapshots.Snapshots
	s.Init(deployed(time.Hour), nil)
	before := s.Latest()
	s.Change(func(a *api.Allocation) { a.DeploymentStatus = &api.AllocDeploymentStatus{Healthy: new(true)} })
	if now := s.Latest(); *before.Job.Stable || !*now.Job.Stable || before.Job == now.Job {
		t.Errorf("stable: %v, and then %v", *before.Job.Stable, *now.Job.Stable)
	}
	var next snapshots.Snapshots
	next.Init(s.Latest(), &interfaces.Saved{Alloc: s.Latest(), Deployments: s.Deployments()})
	if *next.Latest().Job.Stable {
		t.Error("the next version is stable from its beginning")
	}
}

// TestStop: the same request for the second time changes nothing.
func TestStop(t *testing.T) {
	var s snapshots.Snapshots
	s.Init(given(), nil)
	for i, want := range []bool{true, false} {
		if got := s.Stop(interfaces.StopRequest{}); got != want ||
			s.Latest().DesiredStatus != api.AllocDesiredStatusStop {
			t.Errorf("request %d: changed %v, want %v; %+v", i, got, want, s.Latest())
		}
	}
	if !s.Stop(interfaces.StopRequest{NoShutdownDelay: true}) {
		t.Error("a request without a shutdown delay is a change")
	}
}
