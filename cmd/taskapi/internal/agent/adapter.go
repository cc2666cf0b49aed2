package agent

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/handlers"
	"taskapi/handlers/allocations"
	"taskapi/handlers/exec"
	"taskapi/handlers/files"
)

// allocAdapter is the allocation for the API: its runner, but the agent stops, kills and removes it.
type allocAdapter struct {
	interfaces.AllocRunner
	wiring *wiring
}

var (
	_ handlers.Allocs = (*allocAdapter)(nil)
	_ interface {
		allocations.Checker
		allocations.Collector
		interfaces.Deployer
		interfaces.Parent
		interfaces.Pauser
		files.Filer
		exec.Execer
		allocations.Restarter
		allocations.Signaler
		allocations.Stopper
		interfaces.Toucher
	} = (*allocAdapter)(nil)
)

// Get finds the one allocation of this agent.
func (s *allocAdapter) Get(id string) (handlers.Alloc, bool) { return s, id == s.wiring.cfg.ID }

func (s *allocAdapter) Snapshot() *api.Allocation { return s.Alloc() }

func (s *allocAdapter) Collect(ctx context.Context) error { return s.wiring.agent.collect(ctx) }

func (s *allocAdapter) Touch() bool {
	v, ok := s.AllocRunner.(interfaces.Toucher)
	return ok && v.Touch()
}

// Deployments returns none for a runner that has none.
func (s *allocAdapter) Deployments() []*api.Deployment {
	if v, ok := s.AllocRunner.(interfaces.Deployer); ok {
		return v.Deployments()
	}
	return nil
}

func (s *allocAdapter) FailDeployment(id string) {
	s.AllocRunner.(interfaces.Deployer).FailDeployment(id)
}
func (s *allocAdapter) SetHealth(healthy bool) {
	s.AllocRunner.(interfaces.Deployer).SetHealth(healthy)
}

// Dispatch starts a child, if the job is parameterized.
func (s *allocAdapter) Dispatch(ctx context.Context, d interfaces.Dispatch) (interfaces.Child, error) {
	if v, ok := s.AllocRunner.(interfaces.Parent); ok {
		return v.Dispatch(ctx, d)
	}
	return interfaces.Child{}, interfaces.ErrNotParameterized
}

// Force starts a child, if the job is periodic.
func (s *allocAdapter) Force(ctx context.Context) (interfaces.Child, error) {
	if v, ok := s.AllocRunner.(interfaces.Parent); ok {
		return v.Force(ctx)
	}
	return interfaces.Child{}, interfaces.ErrNotPeriodic
}

func (s *allocAdapter) PauseState(task string) (interfaces.ScheduleState, error) {
	if v, ok := s.AllocRunner.(interfaces.Pauser); ok {
		return v.PauseState(task)
	}
	return interfaces.ScheduleRun, nil
}

func (s *allocAdapter) SetPauseState(ctx context.Context, task string, override interfaces.ScheduleState) error {
	if v, ok := s.AllocRunner.(interfaces.Pauser); ok {
		return v.SetPauseState(ctx, task, override)
	}
	return interfaces.ErrOnlyChildren
}

func (s *allocAdapter) Stop(ctx context.Context, noShutdownDelay bool) error {
	s.wiring.audience.stopping()
	err := s.wiring.agent.stop(ctx, interfaces.StopRequest{NoShutdownDelay: noShutdownDelay}, func() {
		if !s.Terminal() && !s.wiring.agent.present().killed {
			s.wiring.cfg.Events.AllocEvent("Stopping", "requested over the API: stopping gracefully")
		}
	})
	if err != nil { // the stop has begun all the same
		s.wiring.logger.Warn(warnStop, "error", err)
	}
	return nil
}

func (s *allocAdapter) Kill() {
	if !s.Terminal() {
		s.wiring.cfg.Events.AllocEvent("Killing", "requested over the API: killing immediately")
	}
	s.wiring.agent.kill()
}
