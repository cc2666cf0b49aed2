package allocrunner

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/checks"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/registration"
	"taskapi/allocrunner/internal/services"
)

// servedAlloc has the parts of an allocation that its services and checks need.
type servedAlloc interface {
	// services resolves the services of a version of the allocation. Errors: the services that can't be resolved.
	services(alloc *api.Allocation) (services.Owned, error)
	// checkConfig returns the configuration of the checks of a version of the allocation.
	checkConfig(alloc *api.Allocation) checks.Config
	// checkedTasks returns the tasks that a check restarts: the check's own task or, for the group's checks, the main
	// tasks and sidecars. Other prestart, poststart and poststop tasks are not to blame for the group's services.
	checkedTasks(task string) []checkedTask
	// preTaskRestart calls the hooks that come before tasks are restarted together.
	preTaskRestart(ctx context.Context)
	// checksChanged saves results and evaluates the allocation's health by them.
	checksChanged(results api.AllocCheckStatuses)
}

// checkedTask is a task that checks may restart.
type checkedTask interface {
	State() lifecycle.State
	Up() time.Time
	Unhealthy(reason string)
}

// leaveTimeout bounds how long the end of a task, of the allocation or of this process waits for the deregistration of
// services. They are deregistered sooner or later in any case.
const leaveTimeout = 5 * time.Second

// servicesHook registers and checks the services of the allocation while their tasks can be reached. registration.State
// decides about both, so the results of checks always belong to the present registration.
type servicesHook struct {
	alloc     servedAlloc
	logger    *slog.Logger
	registrar *registration.Registrar
	saved     api.AllocCheckStatuses // results of an earlier runner

	stepping sync.Mutex // held during a transition, so that checks follow in its order; guards over
	over     bool       // no checks begin any more
	current  atomic.Pointer[checks.Runner]
	running  sync.WaitGroup
	unknown  atomic.Bool // an earlier runner may have registered services, and this runner could not set up its own
	// the group's checks have requested a restart, and begin again with the next start of a task that serves
	owed atomic.Bool
	// held from the reading of results until they are handed to the journal, so that older results never follow newer
	// ones
	saving sync.Mutex
}

var (
	_ interfaces.RunnerPrerunHook      = (*servicesHook)(nil)
	_ interfaces.RunnerEndingHook      = (*servicesHook)(nil)
	_ interfaces.RunnerPreKillHook     = (*servicesHook)(nil)
	_ interfaces.RunnerPostrunHook     = (*servicesHook)(nil)
	_ interfaces.RunnerUpdateHook      = (*servicesHook)(nil)
	_ interfaces.RunnerTaskRestartHook = (*servicesHook)(nil)
	_ interfaces.ShutdownHook          = (*servicesHook)(nil)
)

func (h *servicesHook) Name() string { return "services" }

// Prerun begins the group's services. If a resumed allocation's services can't be set up, the allocation goes on
// without checks, since it must be possible to stop it. Its registrations stay until an update succeeds or the
// allocation ends.
func (h *servicesHook) Prerun(ctx context.Context, req *interfaces.RunnerPrerunRequest) error {
	ctx, end := context.WithTimeout(ctx, hookTimeout)
	defer end()
	err := h.setUp(req)
	if err == nil {
		h.step("", registration.Began)
		err = h.registrar.Sync(ctx)
	} else if req.Restored {
		h.hold(req.Alloc)
		h.step("", registration.Found)
		h.unknown.Store(true)
	}
	if err != nil && req.Restored {
		h.logger.Warn("the allocation goes on, and not all of its services are registered and checked", "error", err)
		return nil
	}
	return err
}

// setUp makes the checks and looks up the registrations of an earlier runner. The registrations of a task that is
// likely to run stay until it is known what became of that task.
func (h *servicesHook) setUp(req *interfaces.RunnerPrerunRequest) error {
	owned, err := h.alloc.services(req.Alloc)
	if err != nil {
		return err
	}
	cfg := h.alloc.checkConfig(req.Alloc)
	cfg.Restart, cfg.Up, cfg.Saved = h.restart, h.up, h.saved
	cfg.OnChange = func() {
		h.saving.Lock()
		defer h.saving.Unlock()
		results, _ := h.results()
		h.alloc.checksChanged(results)
	}
	made, err := checks.New(cfg)
	if err != nil {
		return err
	}
	h.registrar.Update(owned)
	if req.Restored {
		h.registrar.Adopt()
		h.hold(req.Alloc)
		h.step("", registration.Found)
	}
	h.stepping.Lock()
	defer h.stepping.Unlock()
	if !h.over {
		h.current.Store(made)
		h.running.Go(func() { made.Run(context.Background()) })
	}
	for task := range owned {
		if h.registrar.State(task).Phase == registration.Registered { // a resumed task that is set up late
			made.Begin(task)
		}
	}
	if h.registrar.State("").Phase == registration.Closed {
		made.Stop()
	}
	return nil
}

// hold keeps the registrations of tasks that may run. A task whose saved state is "pending" may run, too: its services
// are registered before the state "running" is saved.
func (h *servicesHook) hold(alloc *api.Allocation) {
	for task, s := range alloc.TaskStates {
		if s.State != "dead" {
			h.step(task, registration.Found)
		}
	}
}

// Ending deregisters the group's services that an earlier runner has registered. The services of running tasks are
// deregistered before the tasks are killed.
func (h *servicesHook) Ending(ctx context.Context, req *interfaces.RunnerPrerunRequest) error {
	if !req.Restored {
		return nil
	}
	owned, err := h.alloc.services(req.Alloc)
	h.registrar.Adopt()
	h.registrar.Update(owned)
	h.hold(req.Alloc)
	h.step("", registration.Dropped)
	return errors.Join(err, h.registrar.Sync(ctx))
}

// step applies an event to an owner's services, and starts or stops their checks.
func (h *servicesHook) step(task string, e registration.Event) {
	h.stepping.Lock()
	defer h.stepping.Unlock()
	was, is := h.registrar.Apply(task, e)
	made := h.current.Load()
	switch {
	case made == nil || was == is:
	case is.Phase == registration.Registered:
		made.Begin(task)
	case is.Phase == registration.Closed && task == "":
		made.Stop() // the tasks' results go, too: the allocation is ending
	case is.Phase == registration.Absent && task == "":
		made.Suspend()
	case is.Phase == registration.Absent:
		made.End(task)
	}
}

// recheck begins those of the group's checks again that have requested the restart of a task, once that task has
// started.
func (h *servicesHook) recheck() {
	h.stepping.Lock()
	defer h.stepping.Unlock()
	made := h.current.Load()
	if made != nil && h.registrar.State("").Phase == registration.Registered && h.owed.CompareAndSwap(true, false) {
		made.Begin("")
	}
}

// settle applies an event to the group's services, and waits at most leaveTimeout until the registrations agree.
func (h *servicesHook) settle(e registration.Event) {
	if e == registration.Dropped && h.unknown.CompareAndSwap(true, false) {
		h.registrar.Adopt()
	}
	h.step("", e)
	ctx, end := context.WithTimeout(context.Background(), leaveTimeout)
	defer end()
	if err := h.registrar.Sync(ctx); err != nil {
		h.logger.Warn("some services may not be registered or deregistered as they should be", "error", err)
	}
}

func (h *servicesHook) results() (api.AllocCheckStatuses, uint64) {
	if made := h.current.Load(); made != nil {
		return made.Results()
	}
	return nil, 0
}

// up returns the latest start among the tasks that a check of this task restarts. It is the zero time when none of them
// lives, and while one of them has not started yet, is being stopped, or waits for its next start.
func (h *servicesHook) up(task string) time.Time {
	var latest time.Time
	for _, t := range h.alloc.checkedTasks(task) {
		if t.State().Phase == lifecycle.Dead {
			continue
		}
		up := t.Up()
		if up.IsZero() {
			return up
		}
		if up.After(latest) {
			latest = up
		}
	}
	return latest
}

// restart restarts the tasks of a check that has been unhealthy for too long.
func (h *servicesHook) restart(task, reason string) {
	if task == "" {
		h.owed.Store(true)
		h.alloc.preTaskRestart(context.Background())
	}
	for _, t := range h.alloc.checkedTasks(task) {
		t.Unhealthy(reason)
	}
}

// groupEnded removes the group's services when only poststop tasks are left, and adds them again if all tasks are
// restarted after that.
func (h *servicesHook) groupEnded(ended bool) {
	if ended {
		h.settle(registration.Ended)
	} else {
		h.settle(registration.Began)
	}
}

func (h *servicesHook) PreKill() { h.settle(registration.Dropped) }

// Postrun ends all remaining registrations.
func (h *servicesHook) Postrun(context.Context) error {
	h.endChecks()
	h.registrar.Drop()
	h.settle(registration.Dropped)
	return nil
}

// Shutdown leaves the registrations to the next runner.
func (h *servicesHook) Shutdown() {
	h.registrar.Leave()
	h.endChecks()
}

func (h *servicesHook) endChecks() {
	h.stepping.Lock()
	h.over = true
	h.stepping.Unlock()
	if made := h.current.Load(); made != nil {
		made.Stop()
		h.running.Wait()
	}
}

// Update applies the changes of a new version. Before Prerun it does nothing, since Prerun begins with the version that
// it is given. Services that an earlier version could not set up begin.
func (h *servicesHook) Update(ctx context.Context, req *interfaces.RunnerUpdateRequest) error {
	owned, err := h.alloc.services(req.Alloc)
	if err != nil {
		return err
	}
	if h.unknown.Load() { // a resumed allocation whose services could not be set up before
		if err := h.setUp(&interfaces.RunnerPrerunRequest{Alloc: req.Alloc, Restored: true}); err != nil {
			return err
		}
		h.unknown.Store(false)
		if h.registrar.State("").Phase == registration.Held {
			h.step("", registration.Began)
		}
		return h.registrar.Sync(ctx)
	}
	if made := h.current.Load(); made != nil {
		if err := made.Update(h.alloc.checkConfig(req.Alloc)); err != nil {
			return err
		}
	}
	h.registrar.Update(owned)
	return h.registrar.Sync(ctx)
}

// PreTaskRestart registers the group's services again.
func (h *servicesHook) PreTaskRestart(ctx context.Context) error {
	h.step("", registration.Renewed)
	return h.registrar.Sync(ctx)
}

// taskServices registers and checks the services of one task with each start of the task.
type taskServices struct {
	services *servicesHook
	task     string
	serves   bool // the group's checks restart it, too
}

var (
	_ interfaces.TaskPrestartHook  = (*taskServices)(nil)
	_ interfaces.TaskPoststartHook = (*taskServices)(nil)
	_ interfaces.TaskPreKillHook   = (*taskServices)(nil)
	_ interfaces.TaskExitedHook    = (*taskServices)(nil)
	_ interfaces.TaskStopHook      = (*taskServices)(nil)
)

func (h *taskServices) Name() string { return "services" }

// Prestart begins the services of a task that runs already. If they can't be registered, the task's other hooks are
// called all the same.
func (h *taskServices) Prestart(
	ctx context.Context, req *interfaces.TaskPrestartRequest,
) (*interfaces.TaskPrestartResponse, error) {
	if !req.Restored {
		return nil, nil
	}
	if err := h.begin(ctx, registration.Resumed); err != nil {
		h.services.logger.Warn("a running task's services may not all be registered", "task", h.task, "error", err)
	}
	return nil, nil
}

func (h *taskServices) Poststart(ctx context.Context, _ *interfaces.TaskPoststartRequest) error {
	return h.begin(ctx, registration.Started)
}

func (h *taskServices) begin(ctx context.Context, e registration.Event) error {
	h.services.step(h.task, e)
	if h.serves {
		h.services.recheck()
	}
	return h.services.registrar.Sync(ctx)
}

func (h *taskServices) PreKilling(ctx context.Context) error { return h.end(ctx) }

func (h *taskServices) Exited(ctx context.Context, _ interfaces.ExitResult) error { return h.end(ctx) }

func (h *taskServices) Stop(ctx context.Context) error { return h.end(ctx) }

func (h *taskServices) end(ctx context.Context) error {
	h.services.step(h.task, registration.Ended)
	return h.services.registrar.Sync(ctx)
}
