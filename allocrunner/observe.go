package allocrunner

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/checks"
	"taskapi/allocrunner/internal/services"
	"taskapi/internal/ptr"
)

func (r *Runner) TaskEvent(task string, e *api.TaskEvent) {
	if r.cfg.OnEvent == nil {
		return
	}
	r.eventMu.Lock() // events of different tasks come from different goroutines
	defer r.eventMu.Unlock()
	r.cfg.OnEvent(task, e)
}

// TaskChanged publishes the task's new state at once, so that the caller of a request can read it. drive handles the
// consequences.
func (r *Runner) TaskChanged(task string) {
	r.publish(task)
	r.journal.taskChanged(task)
	r.fsm.changed.Send()
}

func (r *Runner) TaskRecorded(task string) { r.journal.taskChanged(task) }

func (r *Runner) Save(task string) error { return r.journal.taskSafe(task) }

// publish updates the allocation with the present states of tasks.
func (r *Runner) publish(tasks ...string) {
	r.snapshots.Change(func(a *api.Allocation) {
		a.TaskStates = maps.Clone(a.TaskStates)
		for _, name := range tasks {
			a.TaskStates[name] = r.byName[name].Wire()
		}
		a.ClientStatus, a.ClientDescription = r.standing().ClientStatus()
	})
	r.updated()
}

// updated hands a new version of the allocation to the journal and to subscribers.
func (r *Runner) updated() {
	r.journal.allocChanged()
	if r.cfg.Updates != nil {
		r.cfg.Updates.AllocUpdated(r.Alloc())
	}
	r.health.observe()
}

func (r *Runner) checksChanged(results api.AllocCheckStatuses) {
	r.journal.checksChanged(results)
	r.health.observe()
}

// setHealth publishes and saves the health. The allocation may have ended meanwhile, so nothing else would save it.
func (r *Runner) setHealth(healthy bool) {
	r.snapshots.Change(func(a *api.Allocation) {
		a.DeploymentStatus = &api.AllocDeploymentStatus{Healthy: &healthy, Timestamp: time.Now().UTC(),
			ModifyIndex: a.ModifyIndex + 1}
	})
	r.updated()
	_ = r.save() // the journal logs what goes wrong
}

// SetHealth decides the allocation's health in place of its checks and task states.
func (r *Runner) SetHealth(healthy bool) {
	r.health.unwatch()
	r.setHealth(healthy)
}

// FailDeployment ends a deployment that runs as failed. The tasks run on.
func (r *Runner) FailDeployment(id string) { r.failDeployment(id, false) }

// enforceDeadlines fails deployments that run beyond their progress_deadline, until ctx ends.
func (r *Runner) enforceDeadlines(ctx context.Context) {
	for {
		id := r.snapshots.AwaitOverdue(ctx)
		if id == "" {
			return
		}
		r.logger.Warn("the deployment failed: its progress_deadline has passed, and the allocation's health is not "+
			"known", "deployment", id)
		r.failDeployment(id, true)
	}
}

func (r *Runner) failDeployment(id string, overdue bool) {
	r.snapshots.FailDeployment(id, overdue)
	r.updated()
	_ = r.save() // the journal logs what goes wrong
}

func (r *Runner) resolver(alloc *api.Allocation) services.Resolver {
	return services.Resolver{
		Replace: func(task, s string) string {
			if !strings.Contains(s, "${") {
				return s
			}
			if t := taskOf(alloc, task); t != nil {
				return r.taskEnv(alloc, t).ReplaceEnv(s)
			}
			return r.env(alloc).ReplaceEnv(s)
		},
		Ports:  r.ports(),
		Job:    ptr.Deref(alloc.Job.Name),
		Group:  alloc.TaskGroup,
		HostIP: r.cfg.HostIP,
	}
}

// services refuses services with a provider that does not exist: nobody would register them.
func (r *Runner) services(alloc *api.Allocation) (services.Owned, error) {
	owned, err := r.resolver(alloc).ResolveAll(alloc, r.cfg.Datacenter)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", interfaces.ErrInvalidJob, err)
	}
	for _, list := range owned {
		for _, s := range list {
			provider := s.Service.Provider
			if _, ok := r.serving.registrar.Provider(provider); !ok && provider != services.ProviderNomad {
				return nil, fmt.Errorf("%w: service %q: there is no provider %q here", interfaces.ErrInvalidJob, s.ServiceName,
					provider)
			}
		}
	}
	return owned, nil
}

func (r *Runner) checkConfig(alloc *api.Allocation) checks.Config {
	return checks.Config{
		Alloc:    alloc,
		Resolver: r.resolver(alloc),
		Provider: r.serving.registrar.Provider,
		Version:  r.cfg.Version,
		Logger:   r.logger,
		Exec:     r.execCheck,
	}
}

func (r *Runner) checkedTasks(task string) []checkedTask {
	var list []checkedTask
	for _, t := range r.order() {
		if t.Name == task || task == "" && t.Serves() {
			list = append(list, r.task(t.Name))
		}
	}
	return list
}
