package jobdiff

import (
	"slices"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/services"
	"taskapi/allocrunner/jobspec/internal/schema"
	"taskapi/internal/ptr"
)

// withDefaults returns a copy of a job, with defaults that an earlier version of this program did not add to the jobs
// that it saved: the same job file has no changes after an upgrade. Default identities have no audience in the copy,
// because the machine decides it.
func withDefaults(job *api.Job) *api.Job {
	job = copyOf(job)
	job.TaskGroups = copies(job.TaskGroups)
	for _, group := range job.TaskGroups {
		addServices := func(list []*api.Service, task string) []*api.Service {
			list = copies(list)
			for _, s := range list {
				s.Checks = slices.Clone(s.Checks)
				services.AddDefaults(s, ptr.Deref(job.Name), ptr.Deref(group.Name), task)
			}
			return list
		}
		group.Services, group.Tasks = addServices(group.Services, ""), copies(group.Tasks)
		for _, task := range group.Tasks {
			task.Services = addServices(task.Services, task.Name)
			task.Identity, task.Identities = copyOf(task.Identity), copies(task.Identities)
			task.Vault = copyOf(task.Vault)
			schema.AddTaskDefaults(task)
			task.Identity.Audience = nil
		}
	}
	return job
}

func copyOf[T any](value *T) *T {
	if value == nil {
		return nil
	}
	return new(*value)
}

// copies returns copies of all values but the nil ones.
func copies[T any](values []*T) (all []*T) {
	for _, value := range values {
		if value != nil {
			all = append(all, copyOf(value))
		}
	}
	return all
}
