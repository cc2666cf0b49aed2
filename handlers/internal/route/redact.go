package route

import (
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/slice"
)

// redact returns a copy of the job as a task of a group may see it. The task itself and its services are complete. The
// private parts of other tasks are hidden: their environment, templates, configuration, identities' files and metadata,
// which may hold passwords. redact lists what may be shown, so that a field that the SDK adds later is hidden.
func redact(job *api.Job, group, task string) *api.Job {
	if job == nil {
		return nil
	}
	shown := *job
	shown.TaskGroups, shown.Payload = make([]*api.TaskGroup, len(job.TaskGroups)), nil
	for i, g := range job.TaskGroups {
		own := g.Name != nil && *g.Name == group
		if shown.TaskGroups[i] = groupOf(g, task, own); !own {
			shown.TaskGroups[i].Meta = nil
		}
	}
	return &shown
}

// groupOf returns a group as a task may see it; own says that the task belongs to the group.
func groupOf(group *api.TaskGroup, task string, own bool) *api.TaskGroup {
	shown := *group
	shown.Tasks = make([]*api.Task, len(group.Tasks))
	alone := own && len(group.Tasks) == 1 // the group's services are the task's, too
	for i, t := range group.Tasks {
		if own && t.Name == task {
			shown.Tasks[i] = t
		} else {
			shown.Tasks[i] = taskOf(t)
		}
	}
	if !alone {
		shown.Services = servicesOf(group.Services, func(of string) bool { return own && of != "" && of == task })
	}
	return &shown
}

func taskOf(t *api.Task) *api.Task {
	return &api.Task{
		Name: t.Name, Driver: t.Driver, User: t.User, Kind: t.Kind, Leader: t.Leader, Lifecycle: t.Lifecycle,
		Resources: t.Resources, RestartPolicy: t.RestartPolicy, LogConfig: t.LogConfig,
		KillTimeout: t.KillTimeout, KillSignal: t.KillSignal, ShutdownDelay: t.ShutdownDelay,
		Constraints: t.Constraints, Affinities: t.Affinities, Identity: identityOf(t.Identity),
		Services:   servicesOf(t.Services, func(string) bool { return false }),
		Identities: slice.Map(t.Identities, identityOf),
		Actions:    slice.Map(t.Actions, func(a *api.Action) *api.Action { return &api.Action{Name: a.Name} }),
	}
}

// identityOf returns an identity as another task may see it: the token's audience, but not its file.
func identityOf(i *api.WorkloadIdentity) *api.WorkloadIdentity {
	if i == nil {
		return nil
	}
	return &api.WorkloadIdentity{Name: i.Name, Audience: i.Audience, ServiceName: i.ServiceName, TTL: i.TTL}
}

// servicesOf returns services as a task may see them: without the requests and commands of other tasks' checks. own
// reports whether a name is the task's own.
func servicesOf(services []*api.Service, own func(task string) bool) []*api.Service {
	var list []*api.Service
	for _, service := range services {
		shown := *service
		shown.Checks = make([]api.ServiceCheck, len(service.Checks))
		for i, check := range service.Checks {
			if !own(service.TaskName) && !own(check.TaskName) {
				check.Command, check.Args, check.Header, check.Body, check.Notes = "", nil, nil, "", ""
				check.Path, _, _ = strings.Cut(check.Path, "?")
			}
			shown.Checks[i] = check
		}
		list = append(list, &shown)
	}
	return list
}
