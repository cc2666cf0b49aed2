package machine

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/handlers"
	"taskapi/handlers/apierror"
)

// over is an allocation that has ended, as it was saved. Its runner is never run: it reads files.
type over struct {
	machine *Machine
	alloc   *api.Allocation
	runner  interfaces.AllocRunner
}

var _ handlers.Alloc = (*over)(nil)

// over returns an allocation that has ended.
func (m *Machine) over(saved *interfaces.Saved) (*over, error) {
	runner, err := allocrunner.New(interfaces.Config{Alloc: saved.Alloc, Dir: m.cfg.Dir.Alloc(saved.Alloc.ID),
		Logger: slog.New(slog.DiscardHandler), Saved: saved})
	if err != nil {
		return nil, fmt.Errorf("allocation %s: %w", saved.Alloc.ID, err)
	}
	return &over{m, saved.Alloc, runner}, nil
}

// Saved returns an allocation as it was saved; nil when there is none, or none that can be read.
func (m *Machine) Saved(id string) handlers.Alloc {
	dump, err := state.Inspect(m.cfg.Dir.State(id))
	if err != nil || dump.Saved.Alloc == nil || dump.Saved.Alloc.ID != id {
		return nil
	}
	saved, err := m.over(dump.Saved)
	if err != nil {
		return nil
	}
	return saved
}

// Deployments returns the deployments of an allocation, as they were saved.
func (m *Machine) Deployments(id string) []*api.Deployment {
	dump, err := state.Inspect(m.cfg.Dir.State(id))
	if err != nil {
		return nil
	}
	return dump.Saved.Deployments
}

func (o *over) Snapshot() *api.Allocation { return o.alloc }

// Wait waits in vain.
func (o *over) Wait(ctx context.Context, _ uint64) *api.Allocation {
	<-ctx.Done()
	return o.alloc
}

func (o *over) Files(reader *interfaces.Reader) interfaces.Files   { return o.runner.Files(reader) }
func (o *over) Checks() (results api.AllocCheckStatuses, v uint64) { return o.runner.Checks() }
func (o *over) Stop(context.Context, bool) error                   { return nil }
func (o *over) Kill()                                              {}
func (o *over) RestartTask(context.Context, string) error          { return interfaces.ErrTerminal }
func (o *over) RestartRunning(context.Context) error               { return interfaces.ErrTerminal }
func (o *over) RestartAll(context.Context) error                   { return interfaces.ErrTerminal }
func (o *over) Signal(context.Context, string, string) error       { return interfaces.ErrTaskNotRunning }
func (o *over) Exec(context.Context, interfaces.ExecRequest) (interfaces.ExecSession, error) {
	return nil, interfaces.ErrTaskNotRunning
}

// Stats sends that nothing is used. Errors: Unavailable while tasks may run, beside a process that does not answer.
func (o *over) Stats(ctx context.Context, interval time.Duration) (<-chan *api.AllocResourceUsage, error) {
	if !o.alloc.ClientTerminalStatus() {
		return nil, apierror.New(apierror.Unavailable, "the taskapi of the allocation does not answer; try again")
	}
	return o.runner.Stats(ctx, interval)
}

// Collect removes the allocation with its directory. Errors: interfaces.ErrSticky.
func (o *over) Collect(ctx context.Context) error {
	if err := o.machine.cfg.Dir.StickyLeft(o.alloc); err != nil {
		return err
	}
	return o.machine.command(ctx, nil, "gc", "--data-dir="+string(o.machine.cfg.Dir), o.alloc.ID)
}

// self stands for the machine where a route needs an allocation.
type self struct {
	machine *Machine
	ctx     context.Context // of everything that the machine follows
	alloc   *api.Allocation
}

// The job, the group and the namespace that tokens of the machine's operator name.
const (
	selfJob   = "taskapi-agent"
	selfGroup = "agent"
	region    = "global"
)

// newSelf returns what stands for a machine. Its ID is that of the machine and the data directory.
func newSelf(m *Machine) *self {
	_, about := m.node()
	group := &api.TaskGroup{Name: new(selfGroup), Count: new(1)}
	return &self{machine: m, ctx: context.Background(), alloc: &api.Allocation{
		ID:   uuid.NewSHA1(uuid.NameSpaceOID, []byte("taskapi agent "+about.NodeID+string(m.cfg.Dir))).String(),
		Name: selfJob, Namespace: api.DefaultNamespace, NodeID: about.NodeID, NodeName: about.NodeName, JobID: selfJob,
		TaskGroup: selfGroup, ClientStatus: api.AllocClientStatusRunning, DesiredStatus: api.AllocDesiredStatusRun,
		CreateIndex: m.Index(), ModifyIndex: m.Index(), CreateTime: int64(m.Index()) * 1e6,
		Job: &api.Job{
			ID: new(selfJob), Name: new(selfJob), Region: new(region), Namespace: new(api.DefaultNamespace),
			Type: new(api.JobTypeSystem), TaskGroups: []*api.TaskGroup{group},
		},
	}}
}

func (s *self) Snapshot() *api.Allocation {
	now := *s.alloc
	now.ModifyIndex = s.machine.Index()
	return &now
}

func (s *self) Wait(ctx context.Context, index uint64) *api.Allocation {
	s.machine.Wait(ctx, index)
	return s.Snapshot()
}

// Collect removes every allocation that has ended.
func (s *self) Collect(ctx context.Context) error {
	return s.machine.command(ctx, nil, "gc", "--all", "--data-dir="+string(s.machine.cfg.Dir))
}
