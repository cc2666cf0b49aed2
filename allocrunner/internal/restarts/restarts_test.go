package restarts_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/restarts"
	"taskapi/internal/same"
)

var (
	t0     = time.Unix(1_000_000, 0)
	policy = restarts.Policy{Attempts: 2, Interval: 30 * time.Second, Delay: 10 * time.Second}
)

func TestVerdicts(t *testing.T) {
	wait := policy
	wait.Wait = true
	last := wait
	last.Last = true
	service := policy
	service.OnSuccess = true
	failure := restarts.Event{}
	for _, tc := range []struct {
		name    string
		policy  restarts.Policy
		tracker restarts.State
		outcome restarts.Event
		at      time.Duration
		random  float64
		want    restarts.Effect
		count   int
	}{
		{"within the policy", policy, restarts.State{Start: t0}, failure, time.Second, 0,
			restarts.Effect{Restart: true, Delay: 10 * time.Second, Reason: restarts.ReasonWithinPolicy}, 1},
		{"jitter is a quarter at most", policy, restarts.State{Start: t0}, failure, time.Second, 0.5,
			restarts.Effect{Restart: true, Delay: 11250 * time.Millisecond, Reason: restarts.ReasonWithinPolicy}, 1},
		{"beyond the attempts", policy, restarts.State{Start: t0, Count: 2}, failure, 20 * time.Second, 0,
			restarts.Effect{Failed: true, Reason: `Exceeded allowed attempts 2 in interval 30s and mode is "fail"`}, 3},
		{"a new interval counts from zero", policy, restarts.State{Start: t0, Count: 2}, failure, 31 * time.Second, 0,
			restarts.Effect{Restart: true, Delay: 10 * time.Second, Reason: restarts.ReasonWithinPolicy}, 1},
		{"mode delay waits for the next interval", wait, restarts.State{Start: t0, Count: 2}, failure, 12 * time.Second,
			0.9,
			restarts.Effect{Restart: true, Delay: 18 * time.Second, Reason: restarts.ReasonDelay}, 3},
		{"mode delay fails when there is no next interval", last, restarts.State{Start: t0, Count: 2}, failure,
			12 * time.Second, 0.9,
			restarts.Effect{Failed: true,
				Reason: "Exceeded allowed attempts 2 in interval 30s and a stop does not wait for the next"}, 3},
		{"within the policy of the last interval", last, restarts.State{Start: t0, Count: 1}, failure, time.Second, 0,
			restarts.Effect{Restart: true, Delay: 10 * time.Second, Reason: restarts.ReasonWithinPolicy}, 2},
		{"success of a batch task", policy, restarts.State{Start: t0}, restarts.Event{Success: true}, 0, 0,
			restarts.Effect{}, 0},
		{"success of a service task", service, restarts.State{Start: t0}, restarts.Event{Success: true}, 0, 0,
			restarts.Effect{Restart: true, Delay: 10 * time.Second, Reason: restarts.ReasonWithinPolicy}, 1},
		{"no attempts", restarts.Policy{}, restarts.State{Start: t0}, failure, 0, 0,
			restarts.Effect{Failed: true, Reason: restarts.ReasonNoRestarts}, 0},
		{"no attempts, after a success that would be restarted", restarts.Policy{OnSuccess: true},
			restarts.State{Start: t0}, restarts.Event{Success: true}, 0, 0,
			restarts.Effect{Failed: true, Reason: restarts.ReasonNoRestarts}, 0},
		{"no attempts, after a success that is not", restarts.Policy{}, restarts.State{Start: t0},
			restarts.Event{Success: true}, 0, 0,
			restarts.Effect{}, 0},
		{"at the very end of the interval", policy, restarts.State{Start: t0, Count: 2}, failure, 30 * time.Second, 0,
			restarts.Effect{Failed: true, Reason: `Exceeded allowed attempts 2 in interval 30s and mode is "fail"`}, 3},
		{"unrecoverable", policy, restarts.State{Start: t0}, restarts.Event{Unrecoverable: true}, 0, 0,
			restarts.Effect{Failed: true, Reason: restarts.ReasonUnrecoverable}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker, got := tc.policy.Next(tc.tracker, tc.outcome, t0.Add(tc.at), tc.random)
			if diff := cmp.Diff(tc.want, got); diff != "" || tracker.Count != tc.count {
				t.Errorf("count %d, want %d; verdict (-want +got):\n%s", tracker.Count, tc.count, diff)
			}
		})
	}
}

// TestWaiting goes on within the policy, and for the next interval as long as there is one.
func TestWaiting(t *testing.T) {
	for _, tc := range []struct {
		count int
		last  bool
		want  bool
	}{{2, false, true}, {3, false, true}, {2, true, true}, {3, true, false}} {
		p := policy
		p.Wait, p.Last = true, tc.last
		if got := p.Waiting(restarts.State{Start: t0, Count: tc.count}); got.Restart != tc.want || got.Failed == tc.want {
			t.Errorf("%+v: got %+v", tc, got)
		}
	}
}

func TestWhoIsRestartedOnSuccess(t *testing.T) {
	for _, tc := range []struct {
		name, jobType string
		lifecycle     *api.TaskLifecycle
		want          bool
	}{
		{"main of a service", "service", nil, true},
		{"main of a batch job", "batch", nil, false},
		{"ephemeral prestart", "service", &api.TaskLifecycle{Hook: "prestart"}, false},
		{"sidecar of a batch job", "batch", &api.TaskLifecycle{Hook: "prestart", Sidecar: true}, true},
		{"poststop", "service", &api.TaskLifecycle{Hook: "poststop", Sidecar: true}, false},
	} {
		same.As(t, tc.want, restarts.For(&api.Task{Lifecycle: tc.lifecycle}, tc.jobType).OnSuccess, tc.name)
	}
}
