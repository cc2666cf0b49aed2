// Package allocrunner runs one allocation: its directories and ports, its tasks in their order, its checks, and what the API shows
// of all that. It promises that Run leaves nothing behind unless it was told to, and that whoever reads sees a whole state. It
// knows nothing of HTTP, tokens or sockets: those come to it as hooks.
package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/drivers/rawexec"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/hookmeter"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/memory"
	"taskapi/allocrunner/internal/proc"
	"taskapi/allocrunner/internal/processes"
	"taskapi/allocrunner/internal/ptr"
	"taskapi/allocrunner/internal/taskrunner"
)

// ErrFailed is what Run returns for an allocation that ended with a failed task.
var ErrFailed = errors.New("allocation failed")

// Runner is the AllocRunner of real processes.
type Runner struct {
	cfg     interfaces.Config
	drivers *drivers.Registry
	logger  *slog.Logger

	snapshots snapshots
	tasks     []*taskrunner.Runner
	byName    map[string]*taskrunner.Runner
	madeOf    *api.Job // what tasks and hooks were made of
	journal   *journal
	life      life
	resources resources  // acquired by Run before the first task starts
	updating  sync.Mutex // held over an update, so that they follow each other
	eventMu   sync.Mutex // held while OnEvent is called

	hookList []interfaces.RunnerHook
	checks   checksHook
	health   healthHook
	shared   interfaces.HookResources
	meter    hookmeter.Meter
}

var (
	_ interfaces.AllocRunner = (*Runner)(nil)
	_ taskrunner.Observer    = (*Runner)(nil)
	_ journaled              = (*Runner)(nil)
	_ checkedAlloc           = (*Runner)(nil)
	_ evaluatedAlloc         = (*Runner)(nil)
)

// GiveBackMemory gives back to the system what the program's start has taken and what it needs no more, once it is over.
func GiveBackMemory() { memory.GiveBack() }

// Undumpable keeps what is in this program's memory, keys and tokens among it, from core dumps and from other processes of its user. A
// kernel that can't do that is no reason not to run.
func Undumpable() { _ = proc.Undumpable() }

// Drivers are the task drivers that are built in.
var Drivers = drivers.NewRegistry(rawexec.Driver{})

// Factory is New as an interfaces.Factory.
var Factory = WithDrivers(Drivers)

// WithDrivers returns New, with other drivers than those that are built in.
func WithDrivers(known *drivers.Registry) interfaces.Factory {
	return func(cfg interfaces.Config) (interfaces.AllocRunner, error) { return newRunner(cfg, known) }
}

// New makes a runner of an allocation whose job has the group that it names. It does no I/O. Errors: what the group says that no
// machine could run, such as an unknown kill_signal.
func New(cfg interfaces.Config) (*Runner, error) { return newRunner(cfg, Drivers) }

func newRunner(cfg interfaces.Config, known *drivers.Registry) (*Runner, error) {
	r := &Runner{
		cfg:     cfg,
		drivers: known,
		logger:  cfg.Logger,
		byName:  map[string]*taskrunner.Runner{},
	}
	if cfg.Saved != nil {
		r.snapshots.restore(cfg.Saved)
	} else {
		r.snapshots.init(cfg.Alloc)
	}
	group := r.group()
	if group == nil {
		return nil, fmt.Errorf("allocation %s: job %q has no group %q", cfg.Alloc.ID, cfg.Alloc.JobID, cfg.Alloc.TaskGroup)
	}
	r.life.init(newState(r.Alloc(), cfg.Saved != nil && cfg.Saved.Over))
	r.madeOf = r.Alloc().Job
	r.journal = newJournal(cfg, r)
	r.checks.alloc, r.health.alloc, r.health.logger = r, r, r.logger
	if cfg.Saved != nil {
		r.checks.saved = cfg.Saved.Checks
	}
	r.hookList = append([]interfaces.RunnerHook{&r.checks, &r.health}, cfg.Hooks...)
	for _, t := range group.Tasks {
		tr, err := r.newTask(t)
		if err != nil {
			return nil, err
		}
		r.tasks = append(r.tasks, tr)
		r.byName[t.Name] = tr
	}
	return r, nil
}

// newTask makes the runner of one task. The machine it runs on is acquired later, before any task starts.
func (r *Runner) newTask(t *api.Task) (*taskrunner.Runner, error) {
	hooks := []interfaces.TaskHook{&taskChecks{checks: &r.checks, task: t.Name, serves: lifecycle.Of(t).Serves()}}
	if r.cfg.TaskHooks != nil {
		hooks = append(hooks, r.cfg.TaskHooks(r.Alloc(), t)...)
	}
	return taskrunner.New(taskrunner.Config{
		Task:      t,
		JobType:   ptr.Deref(r.cfg.Alloc.Job.Type),
		Starter:   &starter{runner: r, task: t.Name},
		Hooks:     hooks,
		Logger:    r.logger,
		Resources: &r.shared,
		Meter:     &r.meter,
		Observer:  r,
	})
}

func (r *Runner) Alloc() *api.Allocation { return r.snapshots.latest() }

func (r *Runner) Wait(ctx context.Context, index uint64) *api.Allocation {
	return r.snapshots.wait(ctx, index)
}

func (r *Runner) Terminal() bool { return r.life.state().phase == terminal }

func (r *Runner) Detach() { r.life.handle(detachRequested{}) }

func (r *Runner) Kill() {
	was := r.life.state()
	if s := r.life.handle(killRequested{}); s.requested && !was.requested && r.snapshots.stop(interfaces.StopRequest{}) {
		r.updated()
	}
}

func (r *Runner) Stop(_ context.Context, how interfaces.StopRequest) error {
	if r.Terminal() {
		return nil
	}
	r.requestStop(how)
	if err := r.save(); err != nil {
		return fmt.Errorf("the allocation stops, but that could not be written down: %w", err)
	}
	return nil
}

func (r *Runner) requestStop(how interfaces.StopRequest) {
	if r.snapshots.stop(how) {
		r.updated()
	}
	r.life.handle(stopRequested{how.NoShutdownDelay})
}

func (r *Runner) Checks() (api.AllocCheckStatuses, uint64) {
	if s := r.life.state(); !s.begun() || s.phase == terminal || s.ending.Cause != lifecycle.NotEnding {
		return nil, 0
	}
	return r.checks.results()
}

// save returns when the allocation is written down as it stands, or says why it can't be for now.
func (r *Runner) save() error {
	return r.journal.allocSafe()
}

// allocation reads over first: it is never written with a version from before the end.
func (r *Runner) allocation() (alloc *api.Allocation, over bool) {
	over = r.Terminal()
	return r.Alloc(), over
}

func (r *Runner) savedTask(name string) interfaces.SavedTask { return r.byName[name].Saved() }

// Run returns ErrFailed, wrapped, for an allocation that ended with a failed task, and the
// first error of the set-up for one that never began. When an allocation can't be taken over, its tasks run on, and the error is no
// ErrDetached: nobody has asked for that.
func (r *Runner) Run(ctx context.Context) (err error) {
	r.life.handle(setUpBegun{})
	// Stopping is a step of the allocation's life, not the end of its goroutines: those live until Run has brought the tasks down.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer func() {
		if r.life.state().phase != detached {
			err = errors.Join(err, r.postrun(life))
		}
	}()
	defer func() { err = errors.Join(err, r.resources.release(), r.releaseUsers()) }()
	if err := r.setUp(ctx, life); err != nil {
		return r.failSetUp(err)
	}
	return r.runTasks(ctx, life)
}

// setUp takes what the tasks need and calls the hooks that come before them.
func (r *Runner) setUp(ctx, life context.Context) error {
	if err := r.acquire(life); err != nil {
		return err
	}
	if r.cfg.Saved != nil {
		_ = r.save() // the raised index, before a client sees it: a second kill must not take it back. The journal says what goes wrong
	}
	if r.life.state().requested { // there is nothing to be set up for
		r.ending(ctx)
	} else if err := r.prerun(ctx); err != nil {
		return err
	}
	return r.resources.await()
}

// failSetUp ends a new allocation. One that can't be resumed is left as it is, for another try.
func (r *Runner) failSetUp(err error) error {
	if r.cfg.Saved == nil {
		r.failBefore(err)
		return errors.Join(err, r.save())
	}
	r.life.handle(setUpFailed{resumed: true})
	r.shutdownHooks()
	return errors.Join(err, r.resources.leave())
}

// failBefore ends an allocation whose set-up failed: every task is dead and failed, with the reason.
func (r *Runner) failBefore(reason error) {
	for _, t := range r.tasks {
		t.FailBefore(reason)
		r.journal.taskChanged(t.Name())
	}
	r.snapshots.failBefore(r.wireStates(), reason)
	r.life.handle(setUpFailed{})
	r.updated()
}

// runTasks runs the tasks to the end of the allocation, or leaves them.
func (r *Runner) runTasks(ctx, life context.Context) error {
	for _, t := range r.tasks {
		r.receive(t)
	}
	r.publishAll()
	if err := r.save(); err != nil { // whoever comes after a kill must know of this allocation
		r.logger.Warn("nothing is written down before the tasks start: if taskapi is killed before it can be, their allocation is not known")
	}
	r.driveTasks(ctx, life)
	if r.life.state().phase == detached {
		r.shutdownHooks()
		if err := errors.Join(r.save(), r.resources.leave()); err != nil {
			r.logger.Warn("the allocation was left, and whoever takes it over may find it as it was some time ago", "error", err)
		}
		return interfaces.ErrDetached
	}
	err := r.save()
	if err != nil {
		err = fmt.Errorf("the allocation is %s, and that could not be written down: %w", r.Alloc().ClientStatus, err)
	}
	if r.Alloc().ClientStatus == api.AllocClientStatusFailed {
		return errors.Join(fmt.Errorf("%w: %w", ErrFailed, r.failures()), err)
	}
	return err
}

// driveTasks runs the goroutines of the tasks, and returns when the last of them has ended.
func (r *Runner) driveTasks(ctx, life context.Context) {
	var background sync.WaitGroup
	defer background.Wait()
	defer r.life.work.Wait()
	life, end := context.WithCancel(life)
	defer end()
	if r.cfg.State != nil {
		background.Go(func() { r.journal.run(life) })
	}
	for _, t := range r.tasks {
		background.Go(func() { t.Run(life, r.resources.processes) })
		defer t.Close()
	}
	r.begin(life)
	r.drive(ctx)
}

// receive makes a task begin, or go on where an earlier runner left it.
func (r *Runner) receive(t *taskrunner.Runner) {
	if r.cfg.Saved == nil {
		t.Receive()
		return
	}
	var known *processes.Status
	for _, s := range r.resources.known {
		if s.Task == t.Name() {
			known = &s
		}
	}
	t.Restore(r.cfg.Saved.Tasks[t.Name()], known)
}

func (r *Runner) Destroy(ctx context.Context) error {
	if !r.Terminal() {
		return fmt.Errorf("remove allocation %s: %w", r.cfg.Alloc.ID, interfaces.ErrNotTerminal)
	}
	err := eachHook(r, "destroy", func(h interfaces.RunnerDestroyHook) error { return h.Destroy(ctx) })
	return errors.Join(err, allocdir.Remove(r.cfg.Dir))
}

// group is the task group of the job as it is now.
func (r *Runner) group() *api.TaskGroup { return r.Alloc().GetTaskGroup() }

func (r *Runner) task(name string) *taskrunner.Runner { return r.byName[name] }

func (r *Runner) order() []lifecycle.Task {
	group := r.group()
	order := make([]lifecycle.Task, len(group.Tasks))
	for i, t := range group.Tasks {
		order[i] = lifecycle.Of(t)
	}
	return order
}

func (r *Runner) states() map[string]lifecycle.State {
	states := make(map[string]lifecycle.State, len(r.tasks))
	for _, t := range r.tasks {
		states[t.Name()] = t.State()
	}
	return states
}

// failures names the failed tasks, each with what went wrong.
func (r *Runner) failures() error {
	var errs []error
	states := r.Alloc().TaskStates
	for _, t := range r.tasks {
		if s := states[t.Name()]; s.Failed {
			errs = append(errs, fmt.Errorf("task %q: %s", t.Name(), whatFailed(s.Events)))
		}
	}
	return errors.Join(errs...)
}

// whatFailed is what the newest event says that tells of the failure itself: neither what was to follow, nor what was cleared away after
// it, nor how the process ended that a check found unhealthy.
func whatFailed(events []*api.TaskEvent) string {
	word := ""
	for i, e := range slices.Backward(events) {
		word = e.DisplayMessage
		if e.Type == api.TaskTerminated && i > 0 && events[i-1].Type == api.TaskRestartSignal {
			return events[i-1].DisplayMessage
		}
		if e.Type != api.TaskNotRestarting && e.Type != api.TaskRestarting && e.Type != api.TaskDriverMessage {
			break
		}
	}
	return word
}
