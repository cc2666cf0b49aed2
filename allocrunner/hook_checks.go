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
)

// checkedAlloc is what the checks of an allocation's services need of it.
type checkedAlloc interface {
	// checkConfig returns what the checks of a version of the allocation are made of.
	checkConfig(alloc *api.Allocation) checks.Config
	// checkedTasks returns the tasks that a check of this task is about: the one, or, for the group's checks, all that serve. Neither what
	// prepares the others, nor what follows them, nor what clears up after them is to blame for what the group's services do.
	checkedTasks(task string) []checkedTask
	// preTaskRestart calls the hooks that come before tasks are restarted together.
	preTaskRestart(ctx context.Context)
	// checksChanged saves results and has the allocation's health evaluated by them.
	checksChanged(results api.AllocCheckStatuses)
}

// checkedTask is a task that checks may restart.
type checkedTask interface {
	State() lifecycle.State
	Up() time.Time
	Unhealthy(reason string)
}

// checksHook runs the checks of the allocation's services while the allocation lives.
type checksHook struct {
	alloc checkedAlloc
	saved api.AllocCheckStatuses // results of an earlier runner

	current atomic.Pointer[runningChecks] // nil before Prerun
	running sync.WaitGroup
	owed    atomic.Bool // the group's checks have requested a restart, and begin again with the next start of a task that serves
	saving  sync.Mutex  // held from the reading of results until they are to be saved, so that older ones never follow newer ones
}

type runningChecks struct {
	*checks.Runner
	end context.CancelFunc
}

var (
	_ interfaces.RunnerPrerunHook      = (*checksHook)(nil)
	_ interfaces.RunnerPreKillHook     = (*checksHook)(nil)
	_ interfaces.RunnerPostrunHook     = (*checksHook)(nil)
	_ interfaces.RunnerUpdateHook      = (*checksHook)(nil)
	_ interfaces.RunnerTaskRestartHook = (*checksHook)(nil)
	_ interfaces.ShutdownHook          = (*checksHook)(nil)
)

func (h *checksHook) Name() string { return "checks" }

// Prerun begins the checks of the group's services. A resumed allocation whose checks can't be set up goes on without them: it has to be
// stoppable.
func (h *checksHook) Prerun(_ context.Context, req *interfaces.RunnerPrerunRequest) error {
	cfg := h.alloc.checkConfig(req.Alloc)
	cfg.OnChange, cfg.Restart, cfg.Up, cfg.Saved = h.onChange, h.restart, h.up, h.saved
	made, err := checks.New(cfg)
	if err != nil && req.Restored {
		cfg.Logger.Warn("the allocation goes on without its checks, of which one can't be set up", "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(context.Background())
	h.current.Store(&runningChecks{made, end})
	made.Begin("")
	h.running.Go(func() { made.Run(ctx) })
	return nil
}

func (h *checksHook) results() (api.AllocCheckStatuses, uint64) {
	if made := h.current.Load(); made != nil {
		return made.Results()
	}
	return nil, 0
}

func (h *checksHook) onChange() {
	h.saving.Lock()
	defer h.saving.Unlock()
	results, _ := h.results()
	h.alloc.checksChanged(results)
}

// up returns the latest start among the tasks that a check of this task is about. It is the zero time while one of them is neither up nor
// dead, be it that it has not started yet, is being stopped, or waits for its next start; and when none lives.
func (h *checksHook) up(task string) time.Time {
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

// restart restarts the tasks that a check is about which has been unhealthy for too long.
func (h *checksHook) restart(task, reason string) {
	if task == "" {
		h.owed.Store(true)
		h.alloc.preTaskRestart(context.Background())
	}
	for _, t := range h.alloc.checkedTasks(task) {
		t.Unhealthy(reason)
	}
}

// groupEnded removes the group's services when only its poststop tasks are left, and adds them again when all tasks were restarted then.
func (h *checksHook) groupEnded(ended bool) {
	switch made := h.current.Load(); {
	case made == nil:
	case ended:
		made.Suspend()
	default:
		made.Begin("")
	}
}

func (h *checksHook) PreKill() {
	if made := h.current.Load(); made != nil {
		made.Stop()
	}
}

func (h *checksHook) Postrun(context.Context) error {
	h.Shutdown()
	return nil
}

func (h *checksHook) Shutdown() {
	if made := h.current.Load(); made != nil {
		made.end()
		h.running.Wait()
	}
}

func (h *checksHook) Update(_ context.Context, req *interfaces.RunnerUpdateRequest) error {
	if made := h.current.Load(); made != nil {
		return made.Update(h.alloc.checkConfig(req.Alloc))
	}
	return nil
}

// PreTaskRestart registers the group's services again.
func (h *checksHook) PreTaskRestart(context.Context) error {
	if made := h.current.Load(); made != nil {
		made.Begin("")
	}
	return nil
}

// taskChecks registers the checks of one task's services with each start of the task.
type taskChecks struct {
	checks *checksHook
	task   string
	serves bool // the group's checks are about it, too
}

var (
	_ interfaces.TaskPrestartHook  = (*taskChecks)(nil)
	_ interfaces.TaskPoststartHook = (*taskChecks)(nil)
	_ interfaces.TaskPreKillHook   = (*taskChecks)(nil)
	_ interfaces.TaskExitedHook    = (*taskChecks)(nil)
	_ interfaces.TaskStopHook      = (*taskChecks)(nil)
)

func (h *taskChecks) Name() string { return "checks" }

// Prestart begins the checks of a task that runs already.
func (h *taskChecks) Prestart(_ context.Context, req *interfaces.TaskPrestartRequest) (*interfaces.TaskPrestartResponse, error) {
	if req.Restored {
		h.begin()
	}
	return nil, nil
}

func (h *taskChecks) Poststart(context.Context, *interfaces.TaskPoststartRequest) error {
	h.begin()
	return nil
}

func (h *taskChecks) begin() {
	made := h.checks.current.Load()
	if made == nil {
		return
	}
	made.Begin(h.task)
	if h.serves && h.checks.owed.CompareAndSwap(true, false) {
		made.Begin("")
	}
}

func (h *taskChecks) PreKilling(context.Context) error { return h.end() }

func (h *taskChecks) Exited(context.Context, interfaces.ExitResult) error { return h.end() }

func (h *taskChecks) Stop(context.Context) error { return h.end() }

func (h *taskChecks) end() error {
	if made := h.checks.current.Load(); made != nil {
		made.End(h.task)
	}
	return nil
}
