// Package children runs a job that runs no task itself: a parameterized or periodic job, which starts children. It
// promises that an accepted child, and a child whose time has come, is started once, also when this process is killed
// in between. A schedule goes on where it was. A child has a process and an allocation of its own, which outlive this
// runner. Host starts and finds children.
package children

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/allocfs"
	"taskapi/allocrunner/internal/snapshots"
	"taskapi/allocrunner/internal/stats"
	"taskapi/allocrunner/taskenv"
	"taskapi/internal/wake"
)

// Host starts and finds the children of a job.
type Host interface {
	// Start runs a group of a job as the allocation id, in a process of its own, and returns once that process has saved
	// the allocation. If the allocation has begun already, Start does nothing. Errors: why it can't run.
	Start(ctx context.Context, id, group string, job json.RawMessage) error
	// Children returns the allocations of a job's children that have not ended, or all of them, the newest first.
	Children(ctx context.Context, parent *api.Allocation, ended bool) ([]*api.Allocation, error)
	// Resume resumes children that have not ended and whose process has exited.
	Resume(ctx context.Context, parent *api.Allocation)
	// Say prints an event of the parent; pairs are keys and values of its details.
	Say(kind, message string, pairs ...string)
}

// Factory returns a factory that runs the jobs that start children with a host, and other jobs as next does. Without a
// host, the runners only end.
func Factory(next interfaces.Factory, host Host) interfaces.Factory {
	return func(cfg interfaces.Config) (interfaces.AllocRunner, error) {
		job := cfg.Alloc.Job
		if cfg.Saved != nil {
			job = cfg.Saved.Alloc.Job
		}
		if !interfaces.IsParent(job) {
			return next(cfg)
		}
		return newRunner(cfg, host)
	}
}

// runner is the allocation of a job that starts children. It has no tasks.
type runner struct {
	cfg  interfaces.Config
	host Host
	snapshots.Snapshots
	files    *allocfs.Tree
	changed  wake.Signal   // the job has another version
	begun    chan struct{} // closed when children are started
	terminal atomic.Bool
	ending   context.Context
	end      context.CancelCauseFunc // ends ending, with ErrDetached for Detach
	saving   sync.Mutex              // held while the state is saved, so that no older version follows a newer one

	starting sync.Mutex // guards the field below, and is held while a child is started
	record   record
}

var (
	_ interfaces.AllocRunner = (*runner)(nil)
	_ interfaces.Parent      = (*runner)(nil)
	_ interfaces.Validator   = (*runner)(nil)
	_ interfaces.Toucher     = (*runner)(nil)
)

func newRunner(cfg interfaces.Config, host Host) (interfaces.AllocRunner, error) {
	r := &runner{cfg: cfg, host: host, changed: wake.New(), begun: make(chan struct{}), files: allocfs.New(cfg.Dir, nil)}
	r.ending, r.end = context.WithCancelCause(context.Background())
	if cfg.Saved != nil {
		r.Restore(cfg.Saved)
		r.terminal.Store(cfg.Saved.Terminal)
	} else {
		r.Init(cfg.Alloc, cfg.Previous)
	}
	r.Change(func(a *api.Allocation) { a.TaskStates, a.DeploymentID = nil, "" })
	if _, err := scheduleOf(r.Alloc().Job); err != nil {
		return nil, fmt.Errorf("job %q: %w", cfg.Alloc.JobID, err)
	}
	return r, nil
}

// Run starts children until the allocation is stopped. The children run on then.
func (r *runner) Run(ctx context.Context) error {
	if r.Alloc().DesiredStatus == api.AllocDesiredStatusStop {
		r.end(nil)
	}
	if err := r.setUp(ctx); err != nil {
		return r.failSetUp(ctx, err)
	}
	if r.ending.Err() == nil {
		s, _ := scheduleOf(r.Alloc().Job) // newRunner has tried it
		next, _ := s.next(time.Now())
		r.show(api.AllocClientStatusRunning, r.describe(next))
		if err := r.save(); err != nil { // after a crash the allocation must be known
			r.cfg.Logger.Warn("the state could not be saved: if taskapi is killed before it is, the next taskapi does not know "+
				"the allocation", "error", err)
		}
		r.serve(ctx)
	}
	if errors.Is(context.Cause(r.ending), interfaces.ErrDetached) {
		r.shutdown()
		_ = r.save() // only the description is lost
		return interfaces.ErrDetached
	}
	if r.Alloc().DesiredStatus != api.AllocDesiredStatusStop { // the context has ended
		r.Snapshots.Stop(interfaces.StopRequest{})
	}
	r.sayChildren(context.WithoutCancel(ctx))
	return r.conclude(ctx, api.AllocClientStatusComplete, "Starts no children any more")
}

// setUp makes the directory and calls the hooks.
func (r *runner) setUp(ctx context.Context) error {
	if err := allocdir.BuildAlloc(r.cfg.Dir, allocdir.OnlyOwner, nil); err != nil {
		return err
	}
	alloc := r.Alloc()
	request := &interfaces.RunnerPrerunRequest{
		Alloc: alloc, Resources: &interfaces.HookResources{}, Restored: r.cfg.Saved != nil,
		Env: taskenv.New(taskenv.Config{Alloc: alloc, Dir: allocdir.Paths(r.cfg.Dir, ""), Node: api.Node{
			ID: alloc.NodeID, Name: alloc.NodeName, Datacenter: r.cfg.Datacenter,
		}}),
	}
	for h := range interfaces.Having[interfaces.RunnerPrerunHook](r.cfg.Hooks) {
		if err := h.Prerun(ctx, request); err != nil {
			return fmt.Errorf("prerun hook %q: %w", h.Name(), err)
		}
	}
	return r.openRecord()
}

// failSetUp ends a new allocation. One that can't be resumed stays, for another try.
func (r *runner) failSetUp(ctx context.Context, err error) error {
	r.end(err)
	if r.cfg.Saved != nil {
		r.shutdown()
		return err
	}
	return errors.Join(err, r.conclude(ctx, api.AllocClientStatusFailed, err.Error()))
}

// conclude shows and saves the end.
func (r *runner) conclude(ctx context.Context, status, description string) error {
	r.show(status, description)
	r.terminal.Store(true)
	err := r.save()
	for h := range interfaces.Having[interfaces.RunnerPostrunHook](r.cfg.Hooks) {
		err = errors.Join(err, h.Postrun(context.WithoutCancel(ctx)))
	}
	return err
}

func (r *runner) shutdown() {
	for h := range interfaces.Having[interfaces.ShutdownHook](r.cfg.Hooks) {
		h.Shutdown()
	}
}

// show gives the allocation a status, unless it has that already.
func (r *runner) show(status, description string) {
	if a := r.Alloc(); a.ClientStatus == status && a.ClientDescription == description {
		return
	}
	r.Change(func(a *api.Allocation) { a.ClientStatus, a.ClientDescription = status, description })
	r.updated()
}

func (r *runner) updated() {
	if r.cfg.Updates != nil {
		r.cfg.Updates.AllocUpdated(r.Alloc())
	}
}

// save returns when the present version is saved.
func (r *runner) save() error {
	if r.cfg.State == nil {
		return nil
	}
	r.saving.Lock()
	defer r.saving.Unlock()
	// Terminal is read before Alloc, so that a terminal state never has a version from before the end.
	saved := interfaces.Saved{Terminal: r.Terminal(), Life: r.cfg.Life}
	saved.Alloc = r.Alloc()
	return r.cfg.State.Put(saved)
}

func (r *runner) Alloc() *api.Allocation { return r.Latest() }

func (r *runner) Terminal() bool { return r.terminal.Load() }

func (r *runner) Stop(_ context.Context, how interfaces.StopRequest) error {
	if r.Terminal() {
		return nil
	}
	if r.Snapshots.Stop(how) {
		r.updated()
	}
	err := r.save()
	r.end(nil)
	if err != nil {
		return fmt.Errorf("the allocation stops, but that could not be saved: %w", err)
	}
	return nil
}

// Kill is Stop: there is no process that could take its time.
func (r *runner) Kill() { _ = r.Stop(context.Background(), interfaces.StopRequest{}) }

func (r *runner) Detach() { r.end(interfaces.ErrDetached) }

func (r *runner) Touch() bool {
	if r.Terminal() {
		return false
	}
	r.Change(func(*api.Allocation) {})
	r.updated()
	return true
}

func (r *runner) Checks() (api.AllocCheckStatuses, uint64) { return nil, 0 }

// Stats has no tasks to show.
func (r *runner) Stats(ctx context.Context, interval time.Duration) (<-chan *api.AllocResourceUsage, error) {
	sampler := stats.New(stats.Config{Logger: r.cfg.Logger, Tasks: func(context.Context) (stats.Tasks, error) {
		return stats.Tasks{}, nil
	}})
	return sampler.Stream(ctx, interval)
}

func (r *runner) Files(reader *interfaces.Reader) interfaces.Files { return r.files.As(reader) }

// none is the error of a request about a task.
func (r *runner) none(task string) error {
	for _, t := range r.Alloc().GetTaskGroup().Tasks {
		if t.Name == task {
			return fmt.Errorf("task %q runs in the job's children alone: %w", task, interfaces.ErrTaskNotRunning)
		}
	}
	return fmt.Errorf("task %q: %w", task, interfaces.ErrTaskNotFound)
}

func (r *runner) RestartTask(_ context.Context, task string) error { return r.none(task) }

// RestartRunning has no tasks to restart: a caller means the children, or another launch.
func (r *runner) RestartRunning(context.Context) error { return interfaces.ErrOnlyChildren }

// RestartAll is RestartRunning.
func (r *runner) RestartAll(context.Context) error { return interfaces.ErrOnlyChildren }

func (r *runner) Signal(_ context.Context, task, _ string) error {
	if task == "" {
		return interfaces.ErrOnlyChildren
	}
	return r.none(task)
}

func (r *runner) Exec(_ context.Context, req interfaces.ExecRequest) (interfaces.ExecSession, error) {
	return nil, r.none(req.Task)
}

// Validate refuses a job that runs tasks itself, and one with a wrong schedule.
func (r *runner) Validate(job *api.Job) error {
	_, err := scheduleOf(job)
	if err == nil && !interfaces.IsParent(job) {
		err = errors.New("it is neither parameterized nor periodic any more")
	}
	if err != nil {
		return fmt.Errorf("%w: %w", interfaces.ErrInvalidJob, err)
	}
	return nil
}

// Update gives the job another version, which later children run. Times of its schedule before now are past.
func (r *runner) Update(_ context.Context, job *api.Job) error {
	if r.ending.Err() != nil || r.Terminal() {
		return fmt.Errorf("update: %w", interfaces.ErrTerminal)
	}
	if err := r.Validate(job); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	r.starting.Lock()
	r.Change(func(a *api.Allocation) { *a = *snapshots.WithJob(a, job) })
	var err error
	if isClosed(r.begun) { // or the record is not read yet
		r.record.Since = time.Now()
		err = r.record.save(r.cfg.Dir)
	}
	r.starting.Unlock()
	r.updated()
	r.changed.Send()
	if err = errors.Join(err, r.save()); err != nil {
		r.cfg.Logger.Warn("the update could not be saved: if taskapi is killed before it is, the job has to be given again",
			"error", err)
	}
	return nil
}

func (r *runner) Destroy(ctx context.Context) error {
	if !r.Terminal() {
		return interfaces.ErrNotTerminal
	}
	var err error
	for h := range interfaces.Having[interfaces.RunnerDestroyHook](r.cfg.Hooks) {
		err = errors.Join(err, h.Destroy(ctx))
	}
	return errors.Join(err, allocdir.Remove(r.cfg.Dir))
}
