package authtest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/handlers/allocations"
	"taskapi/handlers/events"
	"taskapi/identity/workload"
)

// allocation is one allocation, whose tasks have no processes.
type allocation struct {
	id       string
	claims   *auth.Allocation
	manager  *workload.Manager
	operator *Task
	provider *registry.Provider
	events   *events.Log
	api      *handlers.API
	ended    atomic.Bool

	leased sync.Mutex    // held during a registration, so that no service outlasts the lease; guards the field below
	lease  cluster.Lease // with which the services last; nil after the end

	mu      sync.Mutex // guards the fields below
	alloc   *api.Allocation
	changed chan struct{} // closed with the next change
}

// allocs are all allocations, by ID. The map is complete before the first request.
type allocs map[string]*allocation

// Get returns the allocation with the ID.
func (a allocs) Get(id string) (handlers.Alloc, bool) {
	found, ok := a[id]
	return found, ok
}

// Lookup returns what the tokens of the allocation with the ID must claim.
func (a allocs) Lookup(id string) (*auth.Allocation, auth.Liveness) {
	found, ok := a[id]
	switch {
	case !ok:
		return nil, auth.Unknown
	case found.ended.Load():
		return found.claims, auth.Terminal
	}
	return found.claims, auth.Live
}

var _ interface {
	handlers.Alloc
	allocations.Checker
	allocations.Restarter
	allocations.Signaler
	allocations.Stopper
} = (*allocation)(nil)

func (s *Server) run(index int, job Job) (err error) {
	a := &allocation{id: uuid.NewString(), events: events.New(), changed: make(chan struct{})}
	a.claims = &auth.Allocation{
		Region: region, Namespace: job.Namespace, JobID: job.ID, TaskGroup: job.Group, Life: uuid.NewString(),
	}
	a.alloc = newAllocation(a.id, job)
	a.events.Begin()
	_ = a.events.PutAllocs(s.running, []*api.Allocation{a.alloc}) // never fails
	a.manager = workload.New(workload.Config{
		Keyring: s.ring, Logger: discard,
		Region: region, Namespace: job.Namespace, JobID: job.ID, TaskGroup: job.Group,
		AllocationID: a.id, Life: a.claims.Life, Issuer: s.config.issuer, Audiences: s.config.audience, TTL: time.Hour,
		Revocations: s.revoked, Now: s.Now,
	})
	if a.lease, err = s.cluster.Hold(s.running, a.id); err != nil {
		return err
	}
	a.provider = s.registry.Provider(a.alloc, discard)
	s.background.Go(func() { a.provider.Run(s.running) })
	s.allocs[a.id] = a
	services := s.registry.Feed(s.running, job.Namespace)
	s.background.Go(func() { services.Run(s.running) })
	a.events.FollowServices(services)
	served := s.served
	served.Events = a.events
	a.api = handlers.New(served)
	dir := filepath.Join(s.dir, fmt.Sprint(index))
	for i, name := range append(slices.Clone(job.Tasks), "") {
		t := &Task{
			server: s, alloc: a, name: name, dir: filepath.Join(dir, name),
			socket: filepath.Join(s.dir, fmt.Sprintf("%d-%d.sock", index, i)),
		}
		if name == "" {
			t.dir = filepath.Join(dir, "operator") // a task of that name would share it, which does no harm
			a.operator = t
		}
		if err := t.start(job.Identities); err != nil {
			return err
		}
		s.tasks = append(s.tasks, t)
		s.firstTask = s.tasks[0]
	}
	s.background.Go(func() { a.manager.Run(s.running) })
	return os.MkdirAll(filepath.Join(dir, "alloc"), 0o700)
}

func newAllocation(id string, job Job) *api.Allocation {
	spec := api.NewServiceJob(job.ID, job.ID, region, 50)
	spec.Namespace, spec.Datacenters = &job.Namespace, []string{datacenter}
	group, states := api.NewTaskGroup(job.Group, 1), map[string]*api.TaskState{}
	for _, name := range job.Tasks {
		group.AddTask(api.NewTask(name, "authtest"))
		started := []*api.TaskEvent{event(api.TaskStarted, "Task started by client")}
		states[name] = &api.TaskState{State: "running", StartedAt: time.Now(), Events: started}
	}
	spec.AddTaskGroup(group)
	spec.Canonicalize()
	status, index := "running", uint64(1)
	spec.Status, spec.CreateIndex, spec.ModifyIndex, spec.JobModifyIndex = &status, &index, &index, &index
	now := time.Now().UnixNano()
	return &api.Allocation{
		ID: id, EvalID: uuid.NewString(), Name: job.ID + "." + job.Group + "[0]", Namespace: job.Namespace,
		NodeID: agent.NodeID, NodeName: agent.NodeName, JobID: job.ID, Job: spec, TaskGroup: job.Group,
		DesiredStatus: api.AllocDesiredStatusRun,
		ClientStatus:  api.AllocClientStatusRunning, ClientDescription: "Tasks are running",
		TaskStates: states, CreateIndex: 1, ModifyIndex: 1, AllocModifyIndex: 1, CreateTime: now, ModifyTime: now,
	}
}

func event(kind, message string) *api.TaskEvent {
	return &api.TaskEvent{Type: kind, DisplayMessage: message, Details: map[string]string{}, Time: time.Now().UnixNano()}
}

// Snapshot returns the allocation as it stands.
func (a *allocation) Snapshot() *api.Allocation {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.alloc
}

// Wait returns the allocation once its index is above another one.
func (a *allocation) Wait(ctx context.Context, index uint64) *api.Allocation {
	for {
		a.mu.Lock()
		now, changed := a.alloc, a.changed
		a.mu.Unlock()
		if now.ModifyIndex > index {
			return now
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return now
		}
	}
}

func (a *allocation) change(edit func(*api.Allocation)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := *a.alloc
	next.TaskStates = maps.Clone(next.TaskStates)
	edit(&next)
	next.ModifyIndex++
	next.AllocModifyIndex, next.ModifyTime = next.ModifyIndex, time.Now().UnixNano()
	a.alloc = &next
	_ = a.events.PutAllocs(context.Background(), []*api.Allocation{a.alloc}) // it never fails
	close(a.changed)
	a.changed = make(chan struct{})
}

// happened adds an event to a task, or to every task if the name is empty.
func (a *allocation) happened(task, kind, message string) error {
	if a.ended.Load() {
		return interfaces.ErrTerminal
	}
	if task != "" && a.Snapshot().TaskStates[task] == nil {
		return interfaces.ErrTaskNotFound
	}
	a.change(func(next *api.Allocation) {
		for name, before := range next.TaskStates {
			if task != "" && task != name {
				continue
			}
			state := *before
			latest := state.Events[max(0, len(state.Events)-9):] // Nomad keeps ten
			state.Events = append(slices.Clip(latest), event(kind, message))
			if kind == api.TaskRestarting {
				state.Restarts++
				state.LastRestart = time.Now()
			}
			next.TaskStates[name] = &state
		}
	})
	return nil
}

// Checks returns none: there is nothing to check.
func (a *allocation) Checks() (api.AllocCheckStatuses, uint64) { return api.AllocCheckStatuses{}, 1 }

// RestartTask records a restart, of every task if the name is empty.
func (a *allocation) RestartTask(_ context.Context, task string) error {
	return a.happened(task, api.TaskRestarting, "User requested task to restart")
}

// RestartRunning records a restart of every task.
func (a *allocation) RestartRunning(ctx context.Context) error { return a.RestartTask(ctx, "") }

// RestartAll does what RestartRunning does: all tasks run.
func (a *allocation) RestartAll(ctx context.Context) error { return a.RestartRunning(ctx) }

// Signal records a signal.
func (a *allocation) Signal(_ context.Context, task, signal string) error {
	if unix.SignalNum(signal) == 0 {
		return interfaces.ErrUnknownSignal
	}
	return a.happened(task, api.TaskSignaling, "Task being sent signal "+signal)
}

// Stop ends the allocation.
func (a *allocation) Stop(context.Context, bool) error {
	a.end()
	return nil
}

// Kill does what Stop does.
func (a *allocation) Kill() { a.end() }

// end ends the allocation, and its tasks' identities and services with it.
func (a *allocation) end() {
	if a.ended.Swap(true) {
		return
	}
	a.leased.Lock()
	_ = a.lease.Close() // in memory nothing can fail
	a.lease = nil
	a.leased.Unlock()
	a.change(func(next *api.Allocation) {
		next.DesiredStatus, next.ClientStatus = api.AllocDesiredStatusStop, api.AllocClientStatusComplete
		next.ClientDescription = "All tasks have completed"
		for name, state := range next.TaskStates {
			dead := *state
			dead.State, dead.FinishedAt = "dead", time.Now()
			next.TaskStates[name] = &dead
		}
	})
}
