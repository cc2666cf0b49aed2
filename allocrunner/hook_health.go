package allocrunner

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/health"
)

// healthHook judges the allocation's health by its job's update block, and shows the verdict in the DeploymentStatus. Each version of
// the job is judged once, as a deployment would be.
type healthHook struct {
	runner *Runner

	mu      sync.Mutex // guards the fields below; held while the watcher is told, so that the last thing it hears is the latest
	watcher *health.Watcher
	end     context.CancelFunc
	ended   bool // nothing is judged any more
	running sync.WaitGroup
}

var (
	_ interfaces.RunnerPrerunHook  = (*healthHook)(nil)
	_ interfaces.RunnerPreKillHook = (*healthHook)(nil)
	_ interfaces.RunnerPostrunHook = (*healthHook)(nil)
	_ interfaces.RunnerUpdateHook  = (*healthHook)(nil)
	_ interfaces.ShutdownHook      = (*healthHook)(nil)
)

// Name implements interfaces.RunnerHook.
func (h *healthHook) Name() string { return "health" }

// Prerun implements interfaces.RunnerPrerunHook. What an earlier runner has found stays; what it has not found out has its deadline
// anew, since nobody has looked meanwhile.
func (h *healthHook) Prerun(_ context.Context, req *interfaces.RunnerPrerunRequest) error {
	if !judged(req.Alloc) {
		h.watch(req.Alloc)
	}
	return nil
}

func judged(alloc *api.Allocation) bool {
	return alloc.DeploymentStatus != nil && alloc.DeploymentStatus.Healthy != nil
}

// watch begins to judge the allocation from now on, unless its job asks for no judgement, or it is late for one.
func (h *healthHook) watch(alloc *api.Allocation) {
	policy, ok := health.For(alloc.Job, alloc.GetTaskGroup())
	if !ok {
		return
	}
	watcher := health.NewWatcher(health.WatcherConfig{Policy: policy, OnDecision: h.decided})
	h.mu.Lock()
	if !h.ended {
		ctx, end := context.WithCancel(context.Background())
		h.watcher, h.end = watcher, end
		h.running.Go(func() { watcher.Run(ctx) })
	}
	h.mu.Unlock()
	h.observe()
}

// observe shows the allocation as it is to whoever judges it.
func (h *healthHook) observe() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watcher == nil {
		return
	}
	results, _ := h.runner.checks.results()
	h.watcher.Observe(h.runner.Alloc().TaskStates, results)
}

// decided shows the verdict.
func (h *healthHook) decided(healthy bool, reason string) {
	h.mu.Lock()
	h.watcher = nil
	h.mu.Unlock()
	r := h.runner
	r.snapshots.change(func(a *api.Allocation) {
		a.DeploymentStatus = &api.AllocDeploymentStatus{Healthy: &healthy, Timestamp: time.Now().UTC(), ModifyIndex: a.ModifyIndex + 1}
	})
	r.updated()
	r.logger.Info("allocation judged", "healthy", healthy, "reason", reason)
}

// PreKill implements interfaces.RunnerPreKillHook. An allocation that ends is judged no more.
func (h *healthHook) PreKill() { h.Shutdown() }

// Postrun implements interfaces.RunnerPostrunHook.
func (h *healthHook) Postrun(context.Context) error {
	h.Shutdown()
	return nil
}

// Shutdown implements interfaces.ShutdownHook.
func (h *healthHook) Shutdown() {
	h.mu.Lock()
	h.ended = true
	h.mu.Unlock()
	h.unwatch()
}

// unwatch ends the judging that is under way.
func (h *healthHook) unwatch() {
	h.mu.Lock()
	end := h.end
	h.watcher, h.end = nil, nil
	h.mu.Unlock()
	if end != nil {
		end()
		h.running.Wait()
	}
}

// Update implements interfaces.RunnerUpdateHook. The new version is judged anew.
func (h *healthHook) Update(_ context.Context, req *interfaces.RunnerUpdateRequest) error {
	h.unwatch()
	h.runner.snapshots.change(func(a *api.Allocation) { a.DeploymentStatus = nil })
	h.runner.updated()
	h.watch(req.Alloc)
	return nil
}
