package jobspec

import (
	"cmp"
	"reflect"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec/internal/schema"
)

// addServerDefaults adds the defaults that a Nomad server adds to a job besides those of Job.Canonicalize.
func addServerDefaults(job *api.Job, audience string) {
	if len(job.Datacenters) == 0 {
		job.Datacenters = []string{"*"}
	}
	if *job.NodePool == "" {
		job.NodePool = new("default")
	}
	job.DispatchIdempotencyToken = cmp.Or(job.DispatchIdempotencyToken, new(""))
	if u := job.Update; u != nil { // the groups have taken the rest over
		job.Update = &api.UpdateStrategy{Stagger: u.Stagger, MaxParallel: u.MaxParallel, HealthCheck: new("")}
		for _, f := range reflect.ValueOf(job.Update).Elem().Fields() {
			if f.Kind() == reflect.Pointer && f.IsNil() {
				f.Set(reflect.New(f.Type().Elem()))
			}
		}
	}
	for _, group := range job.TaskGroups {
		//lint:ignore SA1019 a server still writes it
		if group.PreventRescheduleOnLost == nil {
			//lint:ignore SA1019 a server still writes it
			group.PreventRescheduleOnLost = new(false)
		}
		defaultHostNetworks(group.Networks)
		for _, task := range group.Tasks {
			task.Identity = cmp.Or(task.Identity, &api.WorkloadIdentity{})
			task.Identity.Name = schema.DefaultIdentity
			if len(task.Identity.Audience) == 0 && audience != "" {
				task.Identity.Audience = []string{audience}
			}
			r := task.Resources
			for _, field := range []**int{&r.DiskMB, &r.MemoryMaxMB, &r.SecretsMB, &r.IOPS} {
				*field = cmp.Or(*field, new(0))
			}
			defaultHostNetworks(r.Networks)
		}
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
