package simulate

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/registration"
	"taskapi/allocrunner/internal/services"
	"taskapi/allocrunner/taskenv"
	"taskapi/internal/ptr"
)

// servicesHook has the services of the allocation registered as a real one's are. Nothing listens at their addresses: a port has its static
// number, or the one that it leads to, or 0.
type servicesHook struct {
	runner    *runner
	registrar *registration.Registrar
}

var (
	_ interfaces.RunnerPrerunHook      = servicesHook{}
	_ interfaces.RunnerTaskRestartHook = servicesHook{}
	_ interfaces.RunnerPreKillHook     = servicesHook{}
	_ interfaces.RunnerPostrunHook     = servicesHook{}
	_ interfaces.ShutdownHook          = servicesHook{}
)

func (h servicesHook) Name() string { return "services" }

func (h servicesHook) Prerun(ctx context.Context, req *interfaces.RunnerPrerunRequest) error {
	all, err := h.resolver(req.Alloc).ResolveAll(req.Alloc, h.runner.cfg.Datacenter)
	if err != nil {
		return err
	}
	h.registrar.Update(all)
	return h.apply(ctx, "", registration.Began)
}

func (h servicesHook) resolver(alloc *api.Allocation) services.Resolver {
	group := alloc.GetTaskGroup()
	var ports []api.PortMapping
	for _, n := range group.Networks {
		for _, p := range slices.Concat(n.ReservedPorts, n.DynamicPorts) {
			ports = append(ports, api.PortMapping{Label: p.Label, Value: max(p.Value, p.To, 0)})
		}
	}
	return services.Resolver{
		Replace: func(task, s string) string {
			if !strings.Contains(s, "${") {
				return s
			}
			env := h.runner.env()
			for _, t := range group.Tasks {
				if t.Name == task {
					return env.WithTask(taskenv.Task{Task: t}).ReplaceEnv(s)
				}
			}
			return env.ReplaceEnv(s)
		},
		Ports:  func(string) []api.PortMapping { return ports },
		Job:    ptr.Deref(alloc.Job.Name),
		Group:  alloc.TaskGroup,
		HostIP: h.runner.cfg.HostIP,
	}
}

func (h servicesHook) apply(ctx context.Context, task string, e registration.Event) error {
	h.registrar.Apply(task, e)
	return h.registrar.Sync(ctx)
}

func (h servicesHook) PreTaskRestart(ctx context.Context) error {
	return h.apply(ctx, "", registration.Renewed)
}

// leaveTimeout bounds how long the end waits for services to leave.
const leaveTimeout = 5 * time.Second

func (h servicesHook) PreKill() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if err := h.apply(ctx, "", registration.Dropped); err != nil {
		h.runner.cfg.Logger.Warn("services may still be registered", "error", err)
	}
}

func (h servicesHook) Postrun(ctx context.Context) error {
	h.registrar.Drop()
	return h.registrar.Sync(ctx)
}

func (h servicesHook) Shutdown() { h.registrar.Leave() }

// taskServices has the services of one task registered while it runs.
type taskServices struct {
	services servicesHook
	task     string
}

var (
	_ interfaces.TaskPoststartHook = taskServices{}
	_ interfaces.TaskPreKillHook   = taskServices{}
)

func (h taskServices) Name() string { return "services" }

func (h taskServices) Poststart(ctx context.Context, _ *interfaces.TaskPoststartRequest) error {
	return h.services.apply(ctx, h.task, registration.Started)
}

func (h taskServices) PreKilling(ctx context.Context) error {
	return h.services.apply(ctx, h.task, registration.Ended)
}
