package taskrunner

import (
	"testing"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/driver"
)

// TestResume decides for every way in which an earlier runner can have left a task.
func TestResume(t *testing.T) {
	now := time.Unix(10_000, 0)
	startedAt := now.Add(-time.Minute)
	runs := &driver.Status{StartedAt: startedAt}
	old := &driver.Status{StartedAt: startedAt.Add(-time.Second), Exit: &interfaces.ExitResult{}}
	newer := &driver.Status{StartedAt: startedAt.Add(time.Second), Exit: &interfaces.ExitResult{}}
	for _, tc := range []struct {
		name    string
		saved   interfaces.SavedTask
		known   *driver.Status
		phase   phase
		process bool
		first   any
		wait    time.Duration
	}{
		{"it ran, and runs", interfaces.SavedTask{Phase: "running"}, runs, running, true, nil, 0},
		{"it ran, and has ended since", interfaces.SavedTask{Phase: "running"}, old, running, true, nil, 0},
		{"it ran, and its keeper is gone", interfaces.SavedTask{Phase: "running"}, nil, running, true, nil, 0},
		{"it was being killed", interfaces.SavedTask{Phase: "stopping"}, runs, running, true, nil, 0},
		{"it was being restarted", interfaces.SavedTask{Phase: "stopping", Restarting: true}, runs, running, true, restarted{"restart was under way"}, 0},
		{"it was started unnoticed", interfaces.SavedTask{Phase: "starting"}, runs, starting, true, started{}, 0},
		{"it was started and ended unnoticed", interfaces.SavedTask{Phase: "backoff"}, newer, starting, true, started{}, 0},
		{"it never came to a process", interfaces.SavedTask{Phase: "starting"}, old, backoff, false, elapsed{}, 0},
		{"it waits", interfaces.SavedTask{Phase: "backoff", Due: now.Add(time.Second)}, old, backoff, false, nil, time.Second},
		{"its wait is over", interfaces.SavedTask{Phase: "backoff", Due: now.Add(-time.Second)}, old, backoff, false, nil, 1},
		{"it was dead", interfaces.SavedTask{Phase: "dead", Failed: true}, old, dead, false, nil, 0},
		{"its turn had not come", interfaces.SavedTask{Phase: "waiting"}, nil, waiting, false, nil, 0},
		{"nothing that can be read", interfaces.SavedTask{Phase: "?"}, nil, waiting, false, nil, 0},
	} {
		got := resume(tc.saved, startedAt, tc.known, now)
		if got.machine.phase != tc.phase || got.process != tc.process || got.first != tc.first || got.wait != tc.wait || got.machine.failed != tc.saved.Failed {
			t.Errorf("%s: got %+v", tc.name, got)
		}
	}
}
