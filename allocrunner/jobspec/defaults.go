package jobspec

import (
	"cmp"
	"reflect"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/services"
	"taskapi/allocrunner/jobspec/internal/schema"
)

// addServerDefaults adds the defaults that a Nomad server adds to a job besides those of Job.Canonicalize. As a server
// does, it drops the job's blocks that Canonicalize has merged into those of the groups.
func addServerDefaults(job *api.Job, audience string) {
	if len(job.Datacenters) == 0 {
		job.Datacenters = []string{"*"}
	}
	if *job.NodePool == "" {
		job.NodePool = new("default")
	}
	if *job.Priority == 0 {
		job.Priority = new(api.JobDefaultPriority)
	}
	job.DispatchIdempotencyToken = cmp.Or(job.DispatchIdempotencyToken, new(""))
	if p := job.ParameterizedJob; p != nil {
		p.Payload = cmp.Or(p.Payload, "optional")
	}
	if job.Update != nil {
		job.Update = updateOfJob(job.Update)
	}
	job.Reschedule, job.Migrate = nil, nil
	for _, group := range job.TaskGroups {
		//lint:ignore SA1019 a server still writes it
		if group.PreventRescheduleOnLost == nil {
			//lint:ignore SA1019 a server still writes it
			group.PreventRescheduleOnLost = new(false)
		}
		if group.Scaling != nil {
			group.Scaling.Target = scalingTarget(job, group)
		}
		defaultHostNetworks(group.Networks)
		defaultServices(group.Services, *job.Name, *group.Name, "")
		for _, task := range group.Tasks {
			schema.AddTaskDefaults(task)
			if audience != "" { // the default identity is for the API alone
				task.Identity.Audience = []string{audience}
			}
			defaultServices(task.Services, *job.Name, *group.Name, task.Name)
			for _, policy := range task.ScalingPolicies {
				policy.Target = scalingTarget(job, group)
				policy.Target["Task"] = task.Name
			}
			r := task.Resources
			for _, field := range []**int{&r.DiskMB, &r.MemoryMaxMB, &r.SecretsMB, &r.IOPS} {
				*field = cmp.Or(*field, new(0))
			}
			defaultHostNetworks(r.Networks)
		}
	}
}

// updateOfJob returns the part of a job's update block that the groups do not take over.
func updateOfJob(u *api.UpdateStrategy) *api.UpdateStrategy {
	rest := &api.UpdateStrategy{HealthCheck: new("")}
	if *u.MaxParallel > 0 {
		rest.Stagger, rest.MaxParallel = u.Stagger, u.MaxParallel
	}
	for _, f := range reflect.ValueOf(rest).Elem().Fields() {
		if f.Kind() == reflect.Pointer && f.IsNil() {
			f.Set(reflect.New(f.Type().Elem()))
		}
	}
	return rest
}

func scalingTarget(job *api.Job, group *api.TaskGroup) map[string]string {
	return map[string]string{"Namespace": *job.Namespace, "Job": *job.ID, "Group": *group.Name}
}

func defaultServices(list []*api.Service, job, group, task string) {
	for _, s := range list {
		services.AddDefaults(s, job, group, task)
	}
}

// defaultHostNetworks names the host network of each port.
func defaultHostNetworks(networks []*api.NetworkResource) {
	for _, network := range networks {
		for _, ports := range [][]api.Port{network.DynamicPorts, network.ReservedPorts} {
			for i := range ports {
				ports[i].HostNetwork = cmp.Or(ports[i].HostNetwork, "default")
			}
		}
	}
}
