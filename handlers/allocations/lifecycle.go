package allocations

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/evaluations"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
)

// Restarter is an allocation whose tasks can be restarted, as interfaces.AllocRunner restarts them.
type Restarter interface {
	RestartTask(ctx context.Context, task string) error
	RestartRunning(ctx context.Context) error
	RestartAll(ctx context.Context) error
}

// done is Nomad's answer to an action on a client: an index that is always 0.
type done struct{ Index uint64 }

// restart answers PUT /v1/client/allocation/:id/restart: one task by name, all tasks from the beginning of their life
// cycle, or, with neither, those that run. The answer comes when the old processes are gone.
func restart(ctx context.Context, r *route.Request, alloc Restarter) (route.Answer, error) {
	var want api.AllocationRestartRequest
	if err := r.Decode(&want, true); err != nil {
		return route.Answer{}, err
	}
	var err error
	switch {
	case want.AllTasks && want.TaskName != "":
		err = apierror.New(apierror.TaskAndAllTasks)
	case want.AllTasks:
		err = alloc.RestartAll(ctx)
	case want.TaskName != "":
		err = apierror.Reword(alloc.RestartTask(ctx, want.TaskName), apierror.NoTask, apierror.NoTaskRunner, want.TaskName)
	default:
		err = alloc.RestartRunning(ctx)
	}
	if err != nil {
		return route.Answer{}, fmt.Errorf("restart: %w", err)
	}
	return route.Respond(done{})
}

// Signaler is an allocation whose tasks take signals, as interfaces.AllocRunner sends them.
type Signaler interface {
	Signal(ctx context.Context, task, signal string) error
}

// signal answers PUT /v1/client/allocation/:id/signal: a signal by name, to one task or, without a task, to all.
func signal(ctx context.Context, r *route.Request, alloc Signaler) (route.Answer, error) {
	var want api.AllocSignalRequest
	if err := r.Decode(&want, false); err != nil {
		return route.Answer{}, err
	}
	err := alloc.Signal(ctx, want.Task, want.Signal)
	if err := apierror.Reword(err, apierror.UnknownSignal, apierror.UnknownSignal, route.Clip(want.Signal)); err != nil {
		return route.Answer{}, fmt.Errorf("signal: %w", err)
	}
	return route.Respond(done{})
}

// Stopper is an allocation that can be stopped.
type Stopper interface {
	route.Alloc
	// Stop begins to stop the allocation, with its shutdown_delay or without, and does not wait for the end. It is no
	// error when the allocation is stopping or has ended. Errors: Conflict.
	Stop(ctx context.Context, noShutdownDelay bool) error
	// Kill makes a stop that is under way, or starts one, skip every delay: processes get SIGKILL at once.
	Kill()
}

type stopped struct {
	EvalID string
	Index  uint64
}

// stop answers PUT /v1/allocation/:id/stop: the allocation begins to stop, if it has not begun, and the answer does not
// wait. no_shutdown_delay skips every shutdown_delay, also one under way. now, which Nomad does not have, skips every
// delay and sends SIGKILL. Index is the allocation's ModifyIndex after the request.
func (h *handlers) stop(ctx context.Context, r *route.Request, alloc Stopper) (route.Answer, error) {
	if r.Flag("now", false) { // before a stop sends the kill_signal
		alloc.Kill()
	}
	if err := alloc.Stop(ctx, r.Flag("no_shutdown_delay", false)); err != nil {
		return route.Answer{}, fmt.Errorf("stop: %w", err)
	}
	current := alloc.Snapshot()
	made := h.Evaluations.Add(evaluations.TriggerStop, current, api.DesiredUpdates{Stop: 1})
	return route.Indexed(stopped{EvalID: made, Index: current.ModifyIndex}, current.ModifyIndex)
}

// Collector is an allocation that can be removed.
type Collector interface {
	// Collect removes an allocation that has ended, with its directory. Errors:
	// interfaces.ErrNotTerminal.
	Collect(ctx context.Context) error
}

// gc answers PUT and GET /v1/client/allocation/:id/gc: an allocation that has ended is removed.
func gc(ctx context.Context, r *route.Request, alloc Collector) (route.Answer, error) {
	if err := alloc.Collect(ctx); err != nil {
		return route.Answer{}, fmt.Errorf("collect: %w", err)
	}
	return route.Respond(struct{}{}) // Nomad sends nothing, which the SDK's Allocations.GC takes for an error
}

// Pauser is an allocation whose tasks can be stopped and started.
type Pauser interface {
	route.Alloc
	interfaces.Pauser
}

// overrides are the words of a request to stop or start a task.
var overrides = map[string]interfaces.ScheduleState{
	"pause": interfaces.ScheduleForcedPause, "run": interfaces.ScheduleForcedRun, "scheduled": interfaces.ScheduleRun,
}

// pauseGet answers GET /v1/client/allocation/:id/pause: what holds for a task. It is empty for one that nobody stopped
// and its schedule, if it has one, lets run, and without the name of a task.
func pauseGet(_ context.Context, r *route.Request, alloc Pauser) (route.Answer, error) {
	var state interfaces.ScheduleState
	if task := r.Query().Get("task"); task != "" {
		if wire.OwnTask(alloc.Snapshot(), task) == nil {
			return route.Answer{}, apierror.New(apierror.NoTask)
		}
		state, _ = alloc.PauseState(task) // it is a task of the allocation
	}
	return route.Respond(api.AllocGetPauseResponse{ScheduleState: string(state)})
}

// pauseSet answers PUT /v1/client/allocation/:id/pause: a task is stopped, runs, or follows its schedule. The answer
// does not wait for its process.
func pauseSet(ctx context.Context, r *route.Request, alloc Pauser) (route.Answer, error) {
	var want api.AllocPauseRequest
	if err := r.Decode(&want, false); err != nil {
		return route.Answer{}, err
	}
	override, ok := overrides[want.ScheduleState]
	if !ok {
		return route.Answer{}, route.Invalid(`Not a valid task schedule state: give "pause", "run" or "scheduled", not %s`,
			route.Clip(want.ScheduleState))
	}
	if wire.OwnTask(alloc.Snapshot(), want.Task) == nil {
		return route.Answer{}, apierror.New(apierror.NoTask)
	}
	if err := alloc.SetPauseState(ctx, want.Task, override); err != nil {
		return route.Answer{}, fmt.Errorf("pause: %w", err)
	}
	return route.Respond(done{})
}
