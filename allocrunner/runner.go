// Package allocrunner runs one allocation: its directories and ports, its tasks in their order, its checks, and what
// the API shows of all that. It promises that Run leaves nothing behind unless the runner is detached, and that readers
// see a consistent state. It knows nothing of HTTP, tokens or sockets, which hooks add.
package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/drivers/builtin"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/allocfs"
	"taskapi/allocrunner/internal/hookmeter"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/registration"
	"taskapi/allocrunner/internal/snapshots"
	"taskapi/allocrunner/internal/stats"
	"taskapi/allocrunner/internal/taskrunner"
	"taskapi/allocrunner/readiness"
	"taskapi/internal/ptr"
	"taskapi/internal/wake"
)

// ErrFailed is what Run returns for an allocation that ended with a failed task.
var ErrFailed = errors.New("allocation failed")

// Runner is an AllocRunner whose tasks are real processes.
type Runner struct {
	cfg     interfaces.Config
	drivers *drivers.Registry
	logger  *slog.Logger

	snapshots snapshots.Snapshots
	tasks     []*taskrunner.Runner
	byName    map[string]*taskrunner.Runner
	madeOf    *api.Job // the version from which tasks and hooks were made
	journal   *journal
	fsm       fsm
	resources resources  // acquired by Run before the first task starts
	updating  sync.Mutex // held during an update, so that updates follow one another
	eventMu   sync.Mutex // held while OnEvent is called

	hookList   []interfaces.RunnerHook
	prerunList []interfaces.RunnerHook // the same, the given ones first
	serving    servicesHook
	health     healthHook
	given      interfaces.HookResources // set by the prerun hooks, for all tasks
	meter      hookmeter.Meter
	stats      *stats.Sampler
	files      *allocfs.Tree
}

var (
	_ interfaces.AllocRunner = (*Runner)(nil)
	_ taskrunner.Observer    = (*Runner)(nil)
	_ servedAlloc            = (*Runner)(nil)
)

// WithDrivers returns a factory of runners whose tasks may have these drivers.
func WithDrivers(known *drivers.Registry) interfaces.Factory {
	return func(cfg interfaces.Config) (interfaces.AllocRunner, error) { return newRunner(cfg, known) }
}

// New returns a runner of an allocation, which must name a group of its job. Its tasks may use the built-in drivers.
// New does no I/O. Errors: a job that no machine could run, such as one with an unknown kill_signal.
func New(cfg interfaces.Config) (*Runner, error) { return newRunner(cfg, builtin.Drivers) }

func newRunner(cfg interfaces.Config, known *drivers.Registry) (*Runner, error) {
	r := &Runner{
		cfg:     cfg,
		drivers: known,
		logger:  cfg.Logger,
		byName:  map[string]*taskrunner.Runner{},
	}
	if cfg.Saved != nil {
		r.snapshots.Restore(cfg.Saved)
	} else {
		r.snapshots.Init(cfg.Alloc, cfg.Previous)
	}
	group := r.group()
	if group == nil {
		return nil, fmt.Errorf("allocation %s: job %q has no group %q", cfg.Alloc.ID, cfg.Alloc.JobID,
			cfg.Alloc.TaskGroup)
	}
	r.fsm.init(newState(r.Alloc(), cfg.Saved != nil && cfg.Saved.Terminal))
	r.madeOf = r.Alloc().Job
	r.journal = &journal{runner: r, wake: wake.New()}
	r.stats = stats.New(stats.Config{Tasks: r.measuredTasks, Logger: r.logger})
	r.serving.alloc, r.serving.logger, r.serving.registrar = r, r.logger, registration.New(cfg.Alloc.ID,
		cfg.ServiceProviders)
	r.health.runner = r
	if cfg.Saved != nil {
		r.serving.saved = cfg.Saved.Checks
	}
	own := []interfaces.RunnerHook{&r.serving, &r.health}
	r.hookList, r.prerunList = slices.Concat(own, cfg.Hooks), slices.Concat(cfg.Hooks, own)
	for _, t := range group.Tasks {
		tr, err := r.newTask(t)
		if err != nil {
			return nil, err
		}
		r.tasks = append(r.tasks, tr)
		r.byName[t.Name] = tr
	}
	r.files = allocfs.New(cfg.Dir, taskNames(group))
	return r, nil
}

// newTask makes the runner of one task. The resources of the machine are acquired later, before any task starts.
func (r *Runner) newTask(t *api.Task) (*taskrunner.Runner, error) {
	hooks := []interfaces.TaskHook{&taskServices{services: &r.serving, task: t.Name, serves: lifecycle.Of(t).Serves()}}
	if r.cfg.TaskHooks != nil {
		hooks = append(hooks, r.cfg.TaskHooks(r.Alloc(), t)...)
	}
	return taskrunner.New(taskrunner.Config{
		Task:     t,
		JobType:  ptr.Deref(r.cfg.Alloc.Job.Type),
		Drivers:  r.drivers,
		Starter:  &starter{runner: r, task: t.Name},
		Hooks:    hooks,
		Logger:   r.logger,
		Meter:    &r.meter,
		Observer: r,
	})
}

func (r *Runner) Alloc() *api.Allocation { return r.snapshots.Latest() }

// Deployments returns the deployments of the job's latest versions, the latest first. They are shared and must not be
// changed.
func (r *Runner) Deployments() []*api.Deployment { return r.snapshots.Deployments() }

func (r *Runner) Wait(ctx context.Context, index uint64) *api.Allocation {
	return r.snapshots.Wait(ctx, index)
}

func (r *Runner) Terminal() bool { return r.fsm.state().phase == terminal }

func (r *Runner) Detach() { r.fsm.handle(detachRequested{}) }

func (r *Runner) Kill() {
	was := r.fsm.state()
	if s := r.fsm.handle(killRequested{}); s.stopped && !was.stopped &&
		r.snapshots.Stop(interfaces.StopRequest{}) {
		r.updated()
	}
}

func (r *Runner) Stop(_ context.Context, how interfaces.StopRequest) error {
	if r.Terminal() {
		return nil
	}
	r.requestStop(how)
	if err := r.save(); err != nil {
		return fmt.Errorf("the allocation stops, but that could not be saved: %w", err)
	}
	return nil
}

// Touch makes another version of the allocation without a change. It reports false when the allocation has ended, so
// that no version follows.
func (r *Runner) Touch() bool {
	if r.Terminal() {
		return false
	}
	r.snapshots.Change(func(*api.Allocation) {})
	r.updated()
	return true
}

func (r *Runner) requestStop(how interfaces.StopRequest) {
	if r.snapshots.Stop(how) {
		r.updated()
	}
	r.handOver(how.ReplacedBy)
	r.fsm.handle(stopRequested{how.NoShutdownDelay})
}

func (r *Runner) Checks() (api.AllocCheckStatuses, uint64) {
	switch s := r.fsm.state(); {
	case !s.begun() && r.cfg.Saved != nil: // the services are not set up yet, and their tasks run
		return r.cfg.Saved.Checks, math.MaxUint64
	case !s.begun() || s.phase == terminal || s.ending.Cause != lifecycle.NotEnding:
		return nil, 0
	}
	return r.serving.results()
}

// save returns when the allocation's latest version is saved, or with the reason why it can't be saved for now.
func (r *Runner) save() error {
	return r.journal.flush(r.journal.allocChanged())
}

// Run returns ErrFailed, wrapped, when the allocation ended with a failed task, and the first error of the set-up when
// the allocation never began. If an allocation can't be resumed, its tasks run on. The error is not ErrDetached then,
// since nobody called Detach.
func (r *Runner) Run(ctx context.Context) (err error) {
	r.fsm.handle(setUpBegun{})
	// A stop is an event and does not cancel the goroutines: they end when the tasks have ended.
	tasksCtx, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer func() {
		if r.fsm.state().phase != detached {
			err = errors.Join(err, eachHook(r, "postrun", func(h interfaces.RunnerPostrunHook) error {
				return h.Postrun(tasksCtx)
			}))
		}
	}()
	defer func() { err = errors.Join(err, r.resources.release(), r.releaseUsers()) }()
	if err := r.setUp(ctx, tasksCtx); err != nil {
		return r.failSetUp(err)
	}
	return r.runTasks(ctx, tasksCtx)
}

// setUp acquires the resources of the tasks and calls the prerun hooks.
func (r *Runner) setUp(ctx, tasksCtx context.Context) error {
	if err := r.acquire(tasksCtx); err != nil {
		return err
	}
	if r.cfg.Saved != nil {
		r.judgeAgain()
		// the raised index, before a client sees it: it must not fall back after another crash. The journal logs what
		// goes wrong
		_ = r.save()
	}
	if err := r.prerun(ctx, tasksCtx); err != nil {
		return err
	}
	if err := r.checkGiven(); err != nil {
		return err
	}
	r.allocate()
	if r.cfg.Saved == nil { // meanwhile the keeper starts
		r.receiveTasks()
		if r.cfg.Unused { // so that nothing can be in a new keeper's way, and each start of a task waits for it
			return nil
		}
		return r.resources.await()
	}
	if err := r.resources.await(); err != nil {
		return err
	}
	for _, t := range r.tasks {
		task := drivers.Task{
			AllocID: r.cfg.Alloc.ID, Task: taskOf(r.Alloc(), t.Name()), Dir: allocdir.Paths(r.cfg.Dir, t.Name()),
			Processes: r.resources.processes,
		}
		if err := t.Restore(tasksCtx, r.cfg.Saved.Tasks[t.Name()], task); err != nil {
			return err
		}
	}
	r.saveFirst()
	return nil
}

// receiveTasks begins the life of the tasks of a new allocation.
func (r *Runner) receiveTasks() {
	var before map[string]interfaces.SavedTask
	if r.cfg.Previous != nil {
		before = r.cfg.Previous.Tasks
	}
	for _, t := range r.tasks {
		t.Receive(before[t.Name()].Override)
	}
	r.saveFirst()
}

// saveFirst publishes the tasks before the first one starts or goes on, and saves them with the allocation.
func (r *Runner) saveFirst() {
	r.publish(taskNames(r.group())...)
	if err := r.save(); err != nil { // after a crash the allocation must be known
		r.logger.Warn("the state could not be saved before the tasks start: if taskapi is killed before the state " +
			"is saved, the next taskapi does not know the allocation")
	}
}

// checkGiven refuses values of the prerun hooks that a task's driver can't pass to its task.
func (r *Runner) checkGiven() error {
	if len(r.given.Mounts) == 0 && len(r.given.Devices) == 0 && r.given.NetworkNamespace == "" {
		return nil
	}
	for _, t := range r.group().Tasks {
		err := r.drivers.Check(drivers.Task{
			Task: t, Mounts: r.given.Mounts, Devices: r.given.Devices, NetworkNamespace: r.given.NetworkNamespace,
		})
		if err != nil {
			return fmt.Errorf("task %q: %w", t.Name, err)
		}
	}
	return nil
}

// failSetUp ends a new allocation: every task is dead and failed, with the reason. An allocation that can't be resumed,
// or is to be detached, is left for another runner.
func (r *Runner) failSetUp(err error) error {
	leaves := errors.Is(err, interfaces.ErrDetached)
	if leaves && r.cfg.Saved == nil {
		r.receiveTasks()
	}
	if leaves || r.cfg.Saved != nil {
		r.fsm.handle(setUpFailed{leaves: true})
		r.shutdownHooks()
		return errors.Join(err, r.resources.leave())
	}
	states := make(map[string]*api.TaskState, len(r.tasks))
	for _, t := range r.tasks {
		t.FailBefore(err)
		states[t.Name()] = t.Wire()
		r.journal.taskChanged(t.Name())
	}
	r.snapshots.Change(func(a *api.Allocation) {
		a.ClientStatus, a.ClientDescription, a.TaskStates = api.AllocClientStatusFailed, err.Error(), states
	})
	r.fsm.handle(setUpFailed{})
	r.updated()
	return errors.Join(err, r.save())
}

// runTasks runs the tasks until the allocation has ended or is detached.
func (r *Runner) runTasks(ctx, tasksCtx context.Context) error {
	r.driveTasks(ctx, tasksCtx)
	if r.fsm.state().phase == detached {
		r.shutdownHooks()
		if err := errors.Join(r.save(), r.resources.leave()); err != nil {
			r.logger.Warn("the allocation was detached, and its latest state may not be saved", "error", err)
		}
		return interfaces.ErrDetached
	}
	err := r.save()
	if err != nil {
		err = fmt.Errorf("the allocation is %s, and that could not be saved: %w", r.Alloc().ClientStatus, err)
	}
	if r.Alloc().ClientStatus == api.AllocClientStatusFailed {
		return errors.Join(fmt.Errorf("%w: %w", ErrFailed, r.failures()), err)
	}
	return err
}

// driveTasks runs the goroutines of the tasks, and returns when the last of them has ended.
func (r *Runner) driveTasks(ctx, tasksCtx context.Context) {
	var background sync.WaitGroup
	defer background.Wait()
	defer r.fsm.work.Wait()
	tasksCtx, end := context.WithCancel(tasksCtx)
	defer end()
	if r.cfg.State != nil {
		background.Go(func() { r.journal.run(tasksCtx) })
	}
	background.Go(func() { r.enforceDeadlines(tasksCtx) })
	for _, t := range r.tasks {
		background.Go(func() { t.Run(tasksCtx) })
		defer t.Close()
	}
	r.begin(tasksCtx)
	r.drive(ctx)
}

func (r *Runner) Destroy(ctx context.Context) error {
	if !r.Terminal() {
		return fmt.Errorf("remove allocation %s: %w", r.cfg.Alloc.ID, interfaces.ErrNotTerminal)
	}
	err := eachHook(r, "destroy", func(h interfaces.RunnerDestroyHook) error { return h.Destroy(ctx) })
	return errors.Join(err, r.releaseSticky(func() error { return allocdir.Remove(r.cfg.Dir) }))
}

// group returns the task group of the job's present version.
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

// standing returns how the group stands.
func (r *Runner) standing() lifecycle.Group {
	group := lifecycle.Group{Tasks: r.order(), States: make(map[string]lifecycle.State, len(r.tasks))}
	for _, t := range r.tasks {
		group.States[t.Name()] = t.State()
	}
	return group
}

// failures returns an error for each failed task.
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

// whatFailed returns the message of the newest event about the failure itself. It skips events about the next restart,
// about tasks that were killed after the failure, and about the exit of a process that a check found unhealthy. A kill
// that fails the task says why itself.
func whatFailed(events []*api.TaskEvent) string {
	events = slices.DeleteFunc(slices.Clone(events), func(e *api.TaskEvent) bool {
		return e.Type == readiness.EventReady || e.Type == readiness.EventStatus
	})
	for _, e := range slices.Backward(events) {
		if e.Type == api.TaskKilling && e.FailsTask {
			return e.DisplayMessage
		}
	}
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
