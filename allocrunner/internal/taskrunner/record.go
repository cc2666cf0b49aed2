package taskrunner

import (
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/lifecycle"
)

// record is what others see of a task: its state on the wire and its phase in the group. It is written by the task's own
// goroutine and read by anyone.
type record struct {
	mu     sync.Mutex // guards the fields below
	state  api.TaskState
	phase  lifecycle.Phase
	failed bool
	kept   interfaces.SavedTask
}

// add stamps an event and puts it at the end, dropping the oldest beyond maxEvents, and notes what the event says of the task.
func (r *record) add(e *api.TaskEvent, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.Time = now.UnixNano()
	r.state.Events = append(slices.Clone(r.state.Events), e)
	if n := len(r.state.Events) - maxEvents; n > 0 {
		r.state.Events = r.state.Events[n:]
	}
	switch e.Type {
	case api.TaskStarted:
		r.state.StartedAt = now.UTC()
	case api.TaskRestarting:
		r.state.Restarts++
		r.state.LastRestart = now.UTC()
	}
}

// set takes over where the task is now. A task's FinishedAt is that of its first death, as in Nomad.
func (r *record) set(m machine, now, due time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase, r.failed = m.lifecyclePhase(), m.failed
	r.kept = interfaces.SavedTask{
		Phase: m.phase.String(), Restarting: m.intent == restart, Failed: m.failed, SetUp: m.setUp,
		IntervalStart: m.tracker.Start, Attempts: m.tracker.Count,
	}
	if m.phase == backoff {
		r.kept.Due = due
	}
	r.state.Failed = m.failed
	switch r.phase {
	case lifecycle.Running:
		r.state.State = "running"
	case lifecycle.Dead:
		r.state.State = "dead"
		if r.state.FinishedAt.IsZero() {
			r.state.FinishedAt = now.UTC()
		}
	default:
		r.state.State = "pending"
	}
}

// wire is a copy for the wire. Events are shared: they do not change once they are stamped.
func (r *record) wire() *api.TaskState {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := r.state
	return &state
}

// restore takes over a state that was written down.
func (r *record) restore(state *api.TaskState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = *state
}

func (r *record) saved() interfaces.SavedTask {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kept
}

func (r *record) startedAt() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.StartedAt
}

func (r *record) lifecycle() lifecycle.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return lifecycle.State{Phase: r.phase, Failed: r.failed}
}

func (r *record) running() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.phase == lifecycle.Running
}
