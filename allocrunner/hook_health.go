package allocrunner

import (
	"context"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/health"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/readiness"
)

// healthHook evaluates the allocation's health by its job's update block, and shows the decision in the
// DeploymentStatus. Each version of the job is evaluated once, as a deployment would be.
type healthHook struct {
	runner *Runner

	// guards the fields below; held during the watcher's Observe, so that the watcher's last observation is the latest
	mu      sync.Mutex
	watcher *health.Watcher
	end     context.CancelFunc
	ended   bool // nothing is evaluated any more
	running sync.WaitGroup
}

var (
	_ interfaces.RunnerPrerunHook  = (*healthHook)(nil)
	_ interfaces.RunnerPreKillHook = (*healthHook)(nil)
	_ interfaces.RunnerPostrunHook = (*healthHook)(nil)
	_ interfaces.RunnerUpdateHook  = (*healthHook)(nil)
	_ interfaces.ShutdownHook      = (*healthHook)(nil)
)

func (h *healthHook) Name() string { return "health" }

// Prerun keeps the decision of an earlier runner. If there is none, the whole healthy_deadline begins again, since
// nobody has watched meanwhile.
func (h *healthHook) Prerun(_ context.Context, req *interfaces.RunnerPrerunRequest) error {
	if status := req.Alloc.DeploymentStatus; status == nil || status.Healthy == nil {
		h.watch(req.Alloc)
	}
	return nil
}

// judgeAgain forgets the health of a saved allocation whose tasks ran, and were lost: by a reboot, in a back-up, with
// the keeper. Its health is decided again once they run. It is called before anybody can read the allocation here.
func (r *Runner) judgeAgain() {
	if r.Alloc().DeploymentStatus == nil || TasksRunning(r.cfg.Dir) {
		return
	}
	for _, t := range r.group().Tasks {
		if s := r.Alloc().TaskStates[t.Name]; lifecycle.Of(t).Serves() && s != nil && s.State == "running" {
			r.snapshots.Change(func(a *api.Allocation) { a.DeploymentStatus = nil })
			return
		}
	}
}

// watch begins to evaluate the allocation, unless its job does not want an evaluation or the allocation is ending.
func (h *healthHook) watch(alloc *api.Allocation) {
	policy, ok := health.For(alloc.Job, alloc.GetTaskGroup())
	if !ok {
		return
	}
	ctx, end := context.WithCancel(context.Background())
	watcher := health.NewWatcher(policy, func(s health.State) { h.decided(ctx, s) })
	h.mu.Lock()
	if h.ended {
		end()
	} else {
		h.watcher, h.end = watcher, end
		h.running.Go(func() { watcher.Run(ctx) })
	}
	h.mu.Unlock()
	h.observe()
}

// observe shows the watcher how the allocation stands.
func (h *healthHook) observe() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watcher != nil {
		results, _ := h.runner.serving.results()
		unready := map[string]bool{}
		for name, s := range h.runner.standing().States {
			unready[name] = s.Unready
		}
		h.watcher.Observe(health.Event{Tasks: h.runner.Alloc().TaskStates, Unready: unready, Checks: results})
	}
}

func (h *healthHook) decided(ctx context.Context, s health.State) {
	healthy := s.Phase == health.Healthy
	h.mu.Lock()
	h.watcher = nil
	h.mu.Unlock()
	h.runner.setHealth(healthy)
	h.runner.logger.Info("allocation's health decided", "healthy", healthy, "reason", s.Reason)
	if !s.Late { // a task that has failed has events that say so
		return
	}
	for _, t := range h.runner.order() {
		if t.Name == s.About || s.About == "" && t.Serves() {
			h.runner.task(t.Name).AllocUnhealthy(ctx, s.Reason)
		}
	}
}

// PreKill ends the evaluation: an allocation that ends has no health.
func (h *healthHook) PreKill() { h.Shutdown() }

func (h *healthHook) Postrun(context.Context) error {
	h.Shutdown()
	return nil
}

func (h *healthHook) Shutdown() {
	h.mu.Lock()
	h.ended = true
	h.mu.Unlock()
	h.unwatch()
}

// unwatch ends the evaluation that is under way.
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

// Update evaluates the new version.
func (h *healthHook) Update(_ context.Context, req *interfaces.RunnerUpdateRequest) error {
	h.unwatch()
	h.watch(req.Alloc)
	return nil
}

// DecidesHealth reports whether an allocation's health is ever decided. It is not for a batch job, nor if the update
// block turns it off.
func DecidesHealth(alloc *api.Allocation) bool {
	_, ok := health.For(alloc.Job, alloc.GetTaskGroup())
	return ok
}

// HealthProblem says why an allocation is not healthy yet, and which task or check (its ID) that is about. The text is
// empty if everything is healthy, or if nothing decides about its health.
func HealthProblem(alloc *api.Allocation, results api.AllocCheckStatuses) (text, task, check string) {
	policy, _ := health.For(alloc.Job, alloc.GetTaskGroup())
	unready := map[string]bool{}
	for name, state := range alloc.TaskStates {
		ready, _ := readiness.Shown(state)
		unready[name] = !ready
	}
	return policy.Problem(health.Event{Tasks: alloc.TaskStates, Unready: unready, Checks: results})
}
