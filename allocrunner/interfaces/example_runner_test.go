package interfaces_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// An idler is the least that a runner does: its tasks have no processes, and run until the allocation is stopped.
type idler struct {
	updates interfaces.Updates // may be nil
	stop    context.CancelCauseFunc
	stopped context.Context // its cause is what Run returns

	mu      sync.Mutex // guards what follows
	alloc   *api.Allocation
	changed chan struct{} // closed at the next change
}

// newIdler makes an idler. Errors: an allocation that ran before, since nothing is saved.
func newIdler(c interfaces.Config) (interfaces.AllocRunner, error) {
	if c.Saved != nil {
		return nil, fmt.Errorf("allocation %s can't be resumed", c.Alloc.ID)
	}
	r := &idler{updates: c.Updates, alloc: c.Alloc, changed: make(chan struct{})}
	r.stopped, r.stop = context.WithCancelCause(context.Background())
	return r, nil
}

var _ interfaces.Factory = newIdler

func (r *idler) Run(ctx context.Context) error {
	r.enter(api.AllocClientStatusRunning, "running")
	select {
	case <-ctx.Done():
	case <-r.stopped.Done():
		if cause := context.Cause(r.stopped); !errors.Is(cause, context.Canceled) {
			return cause
		}
	}
	r.enter(api.AllocClientStatusComplete, "dead")
	return nil
}

// enter makes the next version, in which every task has the state.
func (r *idler) enter(status, state string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := *r.alloc
	next.ClientStatus, next.TaskStates = status, map[string]*api.TaskState{}
	for _, task := range next.GetTaskGroup().Tasks {
		next.TaskStates[task.Name] = &api.TaskState{State: state}
	}
	next.ModifyIndex++
	r.alloc = &next
	close(r.changed)
	r.changed = make(chan struct{})
	if r.updates != nil {
		r.updates.AllocUpdated(&next)
	}
}

func (r *idler) Wait(ctx context.Context, index uint64) *api.Allocation {
	for {
		r.mu.Lock()
		alloc, changed := r.alloc, r.changed
		r.mu.Unlock()
		if alloc.ModifyIndex > index || ctx.Err() != nil {
			return alloc
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// Stats sends nothing: there is no process.
func (r *idler) Stats(ctx context.Context, _ time.Duration) (<-chan *api.AllocResourceUsage, error) {
	none := make(chan *api.AllocResourceUsage)
	context.AfterFunc(ctx, func() { close(none) })
	return none, nil
}

func (r *idler) Stop(context.Context, interfaces.StopRequest) error { r.Kill(); return nil }
func (r *idler) Kill()                                              { r.stop(nil) }
func (r *idler) Detach()                                            { r.stop(interfaces.ErrDetached) }
func (r *idler) Alloc() *api.Allocation                             { return r.Wait(context.Background(), 0) }
func (r *idler) Terminal() bool                                     { return r.Alloc().ClientTerminalStatus() }
func (r *idler) Checks() (api.AllocCheckStatuses, uint64)           { return nil, 0 }
func (r *idler) Files(*interfaces.Reader) interfaces.Files          { return nil }
func (r *idler) RestartTask(context.Context, string) error          { return interfaces.ErrTaskNotRunning }
func (r *idler) RestartRunning(context.Context) error               { return nil }
func (r *idler) RestartAll(context.Context) error                   { return interfaces.ErrTerminal }
func (r *idler) Signal(context.Context, string, string) error       { return interfaces.ErrNotSupported }
func (r *idler) Update(context.Context, *api.Job) error             { return interfaces.ErrInvalidJob }
func (r *idler) Destroy(context.Context) error                      { return nil }

func (r *idler) Exec(context.Context, interfaces.ExecRequest) (interfaces.ExecSession, error) {
	return nil, interfaces.ErrNotSupported
}

// Another runner than this module's is a Factory, with all that the interface asks for.
func ExampleFactory() {
	group := "web"
	runner, err := newIdler(interfaces.Config{Alloc: &api.Allocation{
		ID: "1", TaskGroup: group, ModifyIndex: 1, ClientStatus: api.AllocClientStatusPending,
		Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: &group, Tasks: []*api.Task{{Name: "nginx"}}}}},
	}})
	fmt.Println(runner.Alloc().ClientStatus, err)
	ended := make(chan error, 1)
	go func() { ended <- runner.Run(context.Background()) }()
	fmt.Println(runner.Wait(context.Background(), 1).TaskStates["nginx"].State)
	_ = runner.Stop(context.Background(), interfaces.StopRequest{})
	fmt.Println(<-ended, runner.Terminal())
	// Output:
	// pending <nil>
	// running
	// <nil> true
}
