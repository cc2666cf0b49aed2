package allocrunner

import (
	"maps"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/lifecycle"
)

// TaskEvent implements taskrunner.Observer.
func (r *Runner) TaskEvent(task string, e *api.TaskEvent) {
	if r.cfg.OnEvent == nil {
		return
	}
	r.eventMu.Lock() // events of different tasks come from different goroutines
	defer r.eventMu.Unlock()
	r.cfg.OnEvent(task, e)
}

// TaskChanged implements taskrunner.Observer. It shows the task's new state at once, so that whoever caused it reads it, and lets
// drive see to what follows.
func (r *Runner) TaskChanged(task string) {
	r.publish(task)
	r.journal.taskChanged(task)
	r.life.wake()
}

// TaskRecorded implements taskrunner.Observer.
func (r *Runner) TaskRecorded(task string) { r.journal.taskChanged(task) }

// Save implements taskrunner.Observer.
func (r *Runner) Save(task string) { r.journal.taskSafe(task) }

// publish makes the present state of a task the allocation's.
func (r *Runner) publish(tasks ...string) {
	r.snapshots.change(func(a *api.Allocation) {
		a.TaskStates = maps.Clone(a.TaskStates)
		for _, name := range tasks {
			a.TaskStates[name] = r.byName[name].Wire()
		}
		a.ClientStatus, a.ClientDescription = lifecycle.ClientStatus(r.states())
	})
	r.updated()
}

func (r *Runner) publishAll() {
	names := make([]string, len(r.tasks))
	for i, t := range r.tasks {
		names[i] = t.Name()
	}
	r.publish(names...)
}

// wireStates returns the state of each task as the API shows it.
func (r *Runner) wireStates() map[string]*api.TaskState {
	states := make(map[string]*api.TaskState, len(r.tasks))
	for _, t := range r.tasks {
		states[t.Name()] = t.Wire()
	}
	return states
}

// updated has a new version of the allocation written, and hands it to subscribers.
func (r *Runner) updated() {
	r.journal.allocChanged()
	if r.cfg.Updates != nil {
		r.cfg.Updates.AllocUpdated(r.Alloc())
	}
	r.health.observe()
}
