package agent

import (
	"context"
	"log/slog"

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
	agent    *Agent
	audience *audience
	events   Events
	logger   *slog.Logger
}

var (
	_ handlers.Allocs = singleAlloc{}
	_ interface {
		allocations.Checker
		allocations.Collector
		interfaces.Deployer
		files.Filer
		exec.Execer
		allocations.Restarter
		allocations.Signaler
		allocations.Stopper
		interfaces.Toucher
	} = allocAdapter{}
)

func (s allocAdapter) Snapshot() *api.Allocation { return s.Alloc() }

func (s allocAdapter) Collect(ctx context.Context) error { return s.agent.collect(ctx) }

func (s allocAdapter) Touch() bool {
	v, ok := s.AllocRunner.(interfaces.Toucher)
	return ok && v.Touch()
}

// Deployments returns none for a runner that has none.
func (s allocAdapter) Deployments() []*api.Deployment {
	if v, ok := s.AllocRunner.(interfaces.Deployer); ok {
		return v.Deployments()
	}
	return nil
}

func (s allocAdapter) FailDeployment(id string) {
	s.AllocRunner.(interfaces.Deployer).FailDeployment(id)
}
func (s allocAdapter) SetHealth(healthy bool) { s.AllocRunner.(interfaces.Deployer).SetHealth(healthy) }

func (s allocAdapter) Stop(ctx context.Context, noShutdownDelay bool) error {
	s.audience.stopping()
	err := s.agent.stop(ctx, interfaces.StopRequest{NoShutdownDelay: noShutdownDelay}, func() {
		if !s.Terminal() && !s.agent.present().killed {
			s.events.AllocEvent("Stopping", "requested over the API: stopping gracefully")
		}
	})
	if err != nil { // the stop has begun all the same
		s.logger.Warn(warnStop, "error", err)
	}
	return nil
}

func (s allocAdapter) Kill() {
	if !s.Terminal() {
		s.events.AllocEvent("Killing", "requested over the API: killing immediately")
	}
	s.agent.kill()
}

// singleAlloc finds the one allocation of this agent.
type singleAlloc struct {
	id    string
	alloc handlers.Alloc
}

func (o singleAlloc) Get(id string) (handlers.Alloc, bool) { return o.alloc, id == o.id }
