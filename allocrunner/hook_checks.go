package allocrunner

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/checks"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/services"
	"taskapi/allocrunner/internal/taskrunner"
)

// checksHook runs the checks of the allocation's services while the allocation lives.
type checksHook struct {
	runner *Runner
	owed   atomic.Bool // the group's checks have asked for a restart, and begin anew with the next start of a task
	noting sync.Mutex  // held while results are read to be written down, so that older ones never follow newer ones

	mu      sync.Mutex // guards the fields below
	checks  *checks.Runner
	end     context.CancelFunc
	running sync.WaitGroup
}

var (
	_ interfaces.RunnerPrerunHook      = (*checksHook)(nil)
	_ interfaces.RunnerPreKillHook     = (*checksHook)(nil)
	_ interfaces.RunnerPostrunHook     = (*checksHook)(nil)
	_ interfaces.RunnerUpdateHook      = (*checksHook)(nil)
	_ interfaces.RunnerTaskRestartHook = (*checksHook)(nil)
	_ interfaces.ShutdownHook          = (*checksHook)(nil)
)

// Name implements interfaces.RunnerHook.
func (h *checksHook) Name() string { return "checks" }

// Prerun implements interfaces.RunnerPrerunHook. The checks of the group's services begin with the allocation. One that is taken over has
// passed this before, and does without its checks rather than stay without anybody who could stop it.
func (h *checksHook) Prerun(_ context.Context, req *interfaces.RunnerPrerunRequest) error {
	cfg := h.config(h.runner.Alloc())
	cfg.OnChange, cfg.Restart, cfg.Up = h.onChange, h.restart, h.up
	if saved := h.runner.cfg.Saved; saved != nil {
		cfg.Saved = saved.Checks
	}
	made, err := checks.New(cfg)
	if err != nil && req.Restored {
		h.runner.logger.Warn("the allocation goes on without its checks, of which one can't be set up", "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(context.Background())
	h.mu.Lock()
	h.checks, h.end = made, end
	h.mu.Unlock()
	made.Begin("")
	h.running.Go(func() { made.Run(ctx) })
	return nil
}

// config is what the checks of an allocation are made of.
func (h *checksHook) config(alloc *api.Allocation) checks.Config {
	r := h.runner
	return checks.Config{
		Alloc: alloc,
		Resolver: services.Resolver{
			Replace: func(task, s string) string { return r.replaceEnv(alloc, task, s) },
			Ports:   r.portsOf,
			HostIP:  r.cfg.HostIP,
		},
		Version: r.cfg.Version,
		Logger:  r.logger,
		Exec:    r.execCheck,
	}
}

// made is the checks, nil before Prerun.
func (h *checksHook) made() *checks.Runner {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.checks
}

func (h *checksHook) results() (api.AllocCheckStatuses, uint64) {
	if made := h.made(); made != nil {
		return made.Results()
	}
	return nil, 0
}

// onChange has new results written down, and shown to those who judge the allocation's health.
func (h *checksHook) onChange() {
	h.noting.Lock()
	results, _ := h.results()
	h.runner.journal.checksChanged(results)
	h.noting.Unlock()
	h.runner.health.observe()
}

// restartable are the tasks that a check of this task is about: the one, or, for the group's checks, all that serve. Neither what prepares
// the others, nor what follows them, nor what clears up after them is to blame for what the group's services do.
func (h *checksHook) restartable(task string) []*taskrunner.Runner {
	var list []*taskrunner.Runner
	for _, t := range h.runner.order() {
		if t.Name == task || task == "" && t.Serves() {
			list = append(list, h.runner.task(t.Name))
		}
	}
	return list
}

// up is the latest start among the tasks that a check of this task is about. It is the zero time while one of them is neither up nor
// dead, be it that it has not started yet, is being stopped, or waits for its next start; and when none lives.
func (h *checksHook) up(task string) time.Time {
	var latest time.Time
	for _, t := range h.restartable(task) {
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

// restart is what a check asks for that has been unhealthy for too long.
func (h *checksHook) restart(task, reason string) {
	if task == "" {
		h.owed.Store(true)
		h.runner.preTaskRestart(context.Background())
	}
	for _, t := range h.restartable(task) {
		t.Unhealthy(reason)
	}
}

// groupEnded has the group's services leave when only its poststop tasks are left, and come back when all tasks begin anew then.
func (h *checksHook) groupEnded(ended bool) {
	switch made := h.made(); {
	case made == nil:
	case ended:
		made.Leave()
	default:
		made.Begin("")
	}
}

// PreKill implements interfaces.RunnerPreKillHook.
func (h *checksHook) PreKill() {
	if made := h.made(); made != nil {
		made.Stop()
	}
}

// Postrun implements interfaces.RunnerPostrunHook.
func (h *checksHook) Postrun(context.Context) error {
	h.Shutdown()
	return nil
}

// Shutdown implements interfaces.ShutdownHook.
func (h *checksHook) Shutdown() {
	h.mu.Lock()
	end := h.end
	h.mu.Unlock()
	if end != nil {
		end()
		h.running.Wait()
	}
}

// Update implements interfaces.RunnerUpdateHook.
func (h *checksHook) Update(_ context.Context, req *interfaces.RunnerUpdateRequest) error {
	if made := h.made(); made != nil {
		return made.Update(h.config(req.Alloc))
	}
	return nil
}

// validate finds out whether the checks of an allocation could be run.
func (h *checksHook) validate(alloc *api.Allocation) error {
	_, err := checks.New(h.config(alloc))
	return err
}

// PreTaskRestart implements interfaces.RunnerTaskRestartHook. The group's services are registered anew.
func (h *checksHook) PreTaskRestart(context.Context) error {
	if made := h.made(); made != nil {
		made.Begin("")
	}
	return nil
}

// taskChecks registers the checks of one task's services with each start of the task.
type taskChecks struct {
	checks *checksHook
	task   string
}

var (
	_ interfaces.TaskPrestartHook  = (*taskChecks)(nil)
	_ interfaces.TaskPoststartHook = (*taskChecks)(nil)
	_ interfaces.TaskPreKillHook   = (*taskChecks)(nil)
	_ interfaces.TaskExitedHook    = (*taskChecks)(nil)
	_ interfaces.TaskStopHook      = (*taskChecks)(nil)
)

// Name implements interfaces.TaskHook.
func (h *taskChecks) Name() string { return "checks" }

// Prestart implements interfaces.TaskPrestartHook. A task that is taken over has started long since.
func (h *taskChecks) Prestart(_ context.Context, req *interfaces.TaskPrestartRequest) (*interfaces.TaskPrestartResponse, error) {
	if req.Restored {
		h.begin()
	}
	return nil, nil
}

// Poststart implements interfaces.TaskPoststartHook.
func (h *taskChecks) Poststart(context.Context, *interfaces.TaskPoststartRequest) error {
	h.begin()
	return nil
}

func (h *taskChecks) begin() {
	made := h.checks.made()
	if made == nil {
		return
	}
	made.Begin(h.task)
	if h.checks.owed.CompareAndSwap(true, false) {
		made.Begin("")
	}
}

// PreKilling implements interfaces.TaskPreKillHook.
func (h *taskChecks) PreKilling(context.Context) error { return h.end() }

// Exited implements interfaces.TaskExitedHook.
func (h *taskChecks) Exited(context.Context, interfaces.ExitResult) error { return h.end() }

// Stop implements interfaces.TaskStopHook.
func (h *taskChecks) Stop(context.Context) error { return h.end() }

func (h *taskChecks) end() error {
	if made := h.checks.made(); made != nil {
		made.End(h.task)
	}
	return nil
}
