package taskrunner

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// TestSinceWhenATaskIsUp: from its latest start until somebody stops it, also for the runner that takes it over, whose
// clock may have been set back.
func TestSinceWhenATaskIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r record
		at := func(p phase, want time.Time) {
			t.Helper()
			r.set(state{phase: p}, time.Now(), nil)
			if got := r.stands().up(); !got.Equal(want) {
				t.Errorf("%v: up since %v, want %v", p, got, want)
			}
		}
		for range 2 {
			begins := time.Now()
			at(starting, time.Time{})
			r.add(startedEvent(nil), begins)
			at(starting, time.Time{})
			time.Sleep(time.Minute)
			at(running, begins)
			at(shutdownDelay, time.Time{})
			at(stopping, time.Time{})
			at(backoff, time.Time{})
		}
		for _, since := range []time.Duration{-time.Hour, 0, time.Hour} {
			now := time.Now()
			r.restore(interfaces.SavedTask{Phase: "running", State: &api.TaskState{StartedAt: now.Add(since).UTC()}},
				now)
			at(running, now.Add(min(since, 0)))
		}
	})
}
