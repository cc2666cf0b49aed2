package taskrunner

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/readiness"
)

// record is the visible part of a task: its state on the wire and its phase in the group. The task's goroutine writes
// it, and every goroutine may read it.
type record struct {
	mu        sync.Mutex // guards the fields below
	state     api.TaskState
	standing  standing
	savedTask interfaces.SavedTask
}

// standing is the part of a task's state that is not on the wire.
type standing struct {
	lifecycle.State           // in its group
	resetting       bool      // it is being stopped for a reset
	restarting      bool      // a restart is under way and the old process gone
	start           time.Time // the latest, by the monotonic clock as well
	running         bool      // and not being stopped
	schedule        interfaces.ScheduleState
}

// up returns when the process started. It is the zero time if there is no process or the process is being stopped.
func (s standing) up() time.Time {
	if !s.running {
		return time.Time{}
	}
	return s.start
}

func (r *record) stands() standing {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.standing
}

// add stamps an event and appends it, dropping the oldest beyond maxEvents, and updates the fields that the event is
// about. The event that says why the task is paused or forced to run stays for as long as it holds.
func (r *record) add(e *api.TaskEvent, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.Time = now.UnixNano()
	r.state.Events = slices.Clone(r.state.Events)
	if n := len(r.state.Events); e.Type == readiness.EventStatus && n > 0 && r.state.Events[n-1].Type == e.Type {
		r.state.Events = r.state.Events[:n-1] // only the latest of several statuses leaves room for other events
	}
	r.state.Events = append(r.state.Events, e)
	if len(r.state.Events) > maxEvents {
		oldest := 0
		if interfaces.SaysSchedule(r.state.Events[0]) && !slices.ContainsFunc(r.state.Events[1:], interfaces.SaysSchedule) {
			oldest = 1
		}
		r.state.Events = slices.Delete(r.state.Events, oldest, oldest+1)
	}
	switch e.Type {
	case api.TaskStarted:
		r.state.StartedAt, r.standing.start = now.UTC(), now
	case api.TaskRestarting:
		r.state.Restarts++
		r.state.LastRestart = now.UTC()
	}
}

// set records the task's state. A task's FinishedAt is that of its first death, as in Nomad. timer is the transition's
// arm, disarm or stop, nil when the timer stays as it is.
func (r *record) set(s state, now time.Time, timer any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.standing.State = lifecycle.State{Phase: s.lifecyclePhase(), Failed: s.failed,
		Stopped: s.phase == paused && s.override == interfaces.ScheduleForcedPause}
	r.standing.Unready = s.unready && r.standing.Phase == lifecycle.Running
	r.standing.resetting, r.standing.restarting = s.beingStopped() && s.intent == reset, s.restarting()
	r.standing.running, r.standing.schedule = s.phase == running, s.schedule()
	r.savedTask.Outside, r.savedTask.Override = s.outside, s.override
	r.savedTask.Phase, r.savedTask.Intent = s.phase.String(), s.intent.String()
	r.savedTask.Failed, r.savedTask.SetUp = s.failed, s.setUp
	r.savedTask.IntervalStart, r.savedTask.Attempts = s.attempts.Start, s.attempts.Count
	switch timer := timer.(type) {
	case arm:
		r.savedTask.Due = now.Add(timer.after)
	case stop:
		r.savedTask.Due = now.Add(timer.timeout)
	case disarm:
		r.savedTask.Due = time.Time{}
	}
	r.state.Failed = s.failed
	switch r.standing.Phase {
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

// wire returns a copy for the wire. Events are shared: they do not change once they are stamped.
func (r *record) wire() *api.TaskState {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := r.state
	return &state
}

// restore begins with the saved state.
func (r *record) restore(saved interfaces.SavedTask, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.savedTask = saved
	if saved.State != nil {
		r.state = *saved.State
		// never in the future, even if the clock was set back meanwhile
		r.standing.start = now.Add(-max(0, now.Sub(r.state.StartedAt)))
	}
}

// saved returns the state that a runner needs to resume the task. Its maps are shared: they are replaced, not changed.
func (r *record) saved() interfaces.SavedTask {
	r.mu.Lock()
	defer r.mu.Unlock()
	saved, state := r.savedTask, r.state
	saved.State = &state
	return saved
}

func (r *record) setHandle(h interfaces.Handle) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.savedTask.Handle = h
}

func (r *record) hookData(hook string) map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.savedTask.Hooks[hook])
}

func (r *record) saveHookData(hook string, kept map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	hooks := make(map[string]map[string]string, len(r.savedTask.Hooks)+1)
	maps.Copy(hooks, r.savedTask.Hooks)
	hooks[hook] = maps.Clone(kept)
	r.savedTask.Hooks = hooks
}

// doneKey is where the response of a hook that is done is saved, beside the hook's own data. Earlier versions of this
// program saved it as HOOK done, also for artifacts, which a later version of the job may change: nobody reads that.
func doneKey(hook string) string { return hook + " is done" }

// hookDone returns the response of a hook that is done, nil for a hook that must be called.
func (r *record) hookDone(hook string) *interfaces.TaskPrestartResponse {
	var resp *interfaces.TaskPrestartResponse
	if json.Unmarshal([]byte(r.hookData(doneKey(hook))["response"]), &resp) != nil {
		return nil
	}
	return resp
}

func (r *record) setHookDone(hook string, resp *interfaces.TaskPrestartResponse) error {
	data, err := json.Marshal(resp)
	r.saveHookData(doneKey(hook), map[string]string{"response": string(data)})
	return err
}
