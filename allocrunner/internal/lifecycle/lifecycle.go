// Package lifecycle decides which tasks of a group start, which are killed, and when the group has ended. It is a pure
// function, Ending.Next, of the tasks' states; it starts nothing.
//
// The order is Nomad's:
//
//	prestart (ephemeral and sidecar, together)
//	   │ every ephemeral one dead and not failed, every sidecar running
//	main
//	   │ no main task pending any more
//	poststart
//	   │ all of the above dead: by themselves, or killed in the order leader, others, sidecars
//	poststop
//	   │ dead
//	done
//
// A task that says when it is ready counts as running in this order only from then on.
package lifecycle

import "github.com/hashicorp/nomad/api"

// The hooks of tasks, in the job file's words.
const (
	Main      = "" // a task without a lifecycle block
	Prestart  = api.TaskLifecycleHookPrestart
	Poststart = api.TaskLifecycleHookPoststart
	Poststop  = api.TaskLifecycleHookPoststop
)

// Task holds the attributes of a task that the order depends on.
type Task struct {
	Name    string
	Hook    string
	Sidecar bool // runs beside the main tasks; only with Prestart and Poststart
	Leader  bool // its end ends the group
}

// Of returns the Task of a job's task.
func Of(t *api.Task) Task {
	task := Task{Name: t.Name, Leader: t.Leader}
	if t.Lifecycle != nil {
		task.Hook, task.Sidecar = t.Lifecycle.Hook, t.Lifecycle.Sidecar && t.Lifecycle.Hook != Poststop
	}
	return task
}

// Serves reports whether the task is a main task or a sidecar.
func (t Task) Serves() bool { return t.Hook == Main || t.Sidecar }

// Phase is a task's phase.
type Phase int

const (
	Waiting Phase = iota // its gate has not opened
	Pending              // its gate has opened and no process runs: starting, or in a restart delay
	Running
	Dead // for good, unless the whole group is restarted
)

// State is a task's phase, and whether it failed.
type State struct {
	Phase   Phase
	Failed  bool
	Unready bool // it is Running, and has not said yet that it is ready, as it is going to
	Stopped bool // it is Pending until an operator starts it
}

// Cause is why a group ends before its tasks have ended by themselves.
type Cause int

const (
	NotEnding     Cause = iota
	Stopped             // it was requested
	LeaderDead          // the leader ended without failing
	SiblingFailed       // a task failed for good
	MainTasksDead       // only sidecars are left
	Aborted             // all tasks are killed at once, in no order, and poststop tasks do not run
)

// Ending is the state of a group besides its tasks' states: a cause and, for SiblingFailed, the task that failed. While
// it is Delayed, for the group's shutdown_delay, no task is killed. A task starts then only if it follows tasks that
// have all ended by themselves.
type Ending struct {
	Cause   Cause
	Task    string
	Delayed bool
}

// Group is the present state of a group. Next takes it as the event: each change of a task makes another Group.
type Group struct {
	Tasks  []Task
	States map[string]State // of every task
}

// Effects are the actions to take now. They are a level, not an edge: the same Group has the same effects again.
type Effects struct {
	Start []string // tasks whose gate opens
	Kill  []string // tasks to be killed now, in no order among themselves
	Done  bool     // every task is dead
}

// Next returns the state after the event, and the effects. A cause stays.
func (e Ending) Next(g Group) (Ending, Effects) {
	if e.Cause == NotEnding {
		e = g.ending()
	}
	switch {
	case e.Cause == Aborted:
		alive := g.names(isAlive)
		return e, Effects{Kill: alive, Done: len(alive) == 0}
	case g.Ended():
		return e, Effects{Start: g.names(isPoststop, isWaiting), Done: g.all(isPoststop, isDead)}
	case e.Delayed:
		return e, Effects{}
	case e.Cause != NotEnding:
		return e, Effects{Kill: g.toKill()}
	}
	return e, Effects{Start: g.toStart()}
}

type predicate func(Task, State) bool

func isWaiting(_ Task, s State) bool   { return s.Phase == Waiting }
func isDead(_ Task, s State) bool      { return s.Phase == Dead }
func isAlive(_ Task, s State) bool     { return s.Phase != Dead }
func isLeader(t Task, _ State) bool    { return t.Leader && t.Hook != Poststop }
func isSidecar(t Task, _ State) bool   { return t.Sidecar }
func isPoststop(t Task, _ State) bool  { return t.Hook == Poststop }
func notPoststop(t Task, _ State) bool { return t.Hook != Poststop }
func isMain(t Task, _ State) bool      { return t.Hook == Main }
func isEphemeral(t Task, _ State) bool { return t.Hook != Poststop && !t.Sidecar }
func isPrestart(t Task, _ State) bool  { return t.Hook == Prestart }
func isPoststart(t Task, _ State) bool { return t.Hook == Poststart }
func hasStarted(_ Task, s State) bool  { return isReady(s) || s.Phase == Dead }
func hasFailed(_ Task, s State) bool   { return s.Phase == Dead && s.Failed }
func prestartDone(t Task, s State) bool {
	if t.Sidecar {
		return isReady(s)
	}
	return s.Phase == Dead && !s.Failed
}

func isStopped(_ Task, s State) bool { return s.Stopped }

func isReady(s State) bool { return s.Phase == Running && !s.Unready }

// names returns the tasks for which every predicate holds.
func (g Group) names(ps ...predicate) []string {
	var names []string
next:
	for _, t := range g.Tasks {
		for _, p := range ps {
			if !p(t, g.States[t.Name]) {
				continue next
			}
		}
		names = append(names, t.Name)
	}
	return names
}

// all reports whether every task of the set satisfies p; it is true of an empty set.
func (g Group) all(set, p predicate) bool {
	return len(g.names(set)) == len(g.names(set, p))
}

// ending returns the reason to end a group that was not stopped. A dead leader comes before a failed sibling.
func (g Group) ending() Ending {
	for _, t := range g.Tasks {
		if s := g.States[t.Name]; isLeader(t, s) && s.Phase == Dead && !s.Failed {
			return Ending{Cause: LeaderDead, Task: t.Name}
		}
	}
	if failed := g.names(notPoststop, hasFailed); len(failed) > 0 {
		return Ending{Cause: SiblingFailed, Task: failed[0]}
	}
	if len(g.names(isSidecar, isAlive)) > 0 && g.all(isEphemeral, isDead) {
		return Ending{Cause: MainTasksDead}
	}
	return Ending{}
}

// StopCause returns why the next tasks of a stopped group are killed. As in Nomad, the reason for the tasks after a
// leader is that it has ended without failing. The reason for the sidecars is the end of the main tasks.
func (g Group) StopCause() Cause {
	switch {
	case len(g.names(isLeader, isDead)) > 0 && len(g.names(isLeader, hasFailed)) == 0:
		return LeaderDead
	case len(g.names(isSidecar, isAlive)) > 0 && g.all(isEphemeral, isDead) &&
		len(g.names(notPoststop, hasFailed)) == 0:
		return MainTasksDead
	}
	return Stopped
}

// toKill returns the next rank of living tasks: the leader alone, then all others but sidecars, then the sidecars.
func (g Group) toKill() []string {
	for _, rank := range []predicate{isLeader, isEphemeral, isSidecar} {
		if alive := g.names(rank, isAlive); len(alive) > 0 {
			return alive
		}
	}
	return nil
}

// toStart returns the waiting tasks whose gate is open.
func (g Group) toStart() []string {
	start := g.names(isPrestart, isWaiting)
	if !g.all(isPrestart, prestartDone) {
		return start
	}
	start = append(start, g.names(isMain, isWaiting)...)
	if g.all(isMain, hasStarted) {
		start = append(start, g.names(isPoststart, isWaiting)...)
	}
	return start
}

// Ended reports whether all tasks except poststop tasks are dead.
func (g Group) Ended() bool { return g.all(notPoststop, isDead) }

// ClientStatus returns the allocation's status and description by Nomad's rules: a failed task comes before a running
// one, a running one before a pending one, and a pending one before completion. An allocation whose tasks an operator
// has stopped is running, since it began and has not ended.
func (g Group) ClientStatus() (status, description string) {
	isRunning := func(_ Task, s State) bool { return s.Phase == Running }
	switch {
	case len(g.names(hasFailed)) > 0:
		return api.AllocClientStatusFailed, "Failed tasks"
	case len(g.names(isRunning)) > 0:
		return api.AllocClientStatusRunning, "Tasks are running"
	case len(g.names(isStopped)) > 0:
		return api.AllocClientStatusRunning, "Tasks are stopped"
	case len(g.names(isAlive)) > 0:
		return api.AllocClientStatusPending, "No tasks have started"
	}
	return api.AllocClientStatusComplete, "All tasks have completed"
}
