package jobspec

import (
	"cmp"
	"reflect"

	"taskapi/allocrunner/jobspec/internal/schema"

	"github.com/hashicorp/nomad/api"
)

// addServerDefaults adds what a Nomad server puts into a job besides Job.Canonicalize, as the job of an allocation shows it
// on the wire.
func addServerDefaults(job *api.Job, audience string) {
	if len(job.Datacenters) == 0 {
		job.Datacenters = []string{"*"}
	}
	if *job.NodePool == "" {
		job.NodePool = new("default")
	}
	job.DispatchIdempotencyToken = cmp.Or(job.DispatchIdempotencyToken, new(""))
	job.Update = serverUpdate(job.Update)
	for _, group := range job.TaskGroups {
		//lint:ignore SA1019 a server still writes it
		if group.PreventRescheduleOnLost == nil {
			//lint:ignore SA1019 a server still writes it
			group.PreventRescheduleOnLost = new(false)
		}
		defaultHostNetworks(group.Networks)
		for _, task := range group.Tasks {
			task.Identity = serverIdentity(task.Identity, audience)
			serverResources(task.Resources)
		}
	}
}

// serverUpdate returns the job's update block as a server keeps it: its groups have taken the rest over.
func serverUpdate(update *api.UpdateStrategy) *api.UpdateStrategy {
	if update == nil {
		return nil
	}
	zero := &api.UpdateStrategy{Stagger: update.Stagger, MaxParallel: update.MaxParallel, HealthCheck: new("")}
	setNilPointers(reflect.ValueOf(zero).Elem())
	return zero
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

// serverIdentity returns a task's default identity, which every task has.
func serverIdentity(identity *api.WorkloadIdentity, audience string) *api.WorkloadIdentity {
	identity = cmp.Or(identity, &api.WorkloadIdentity{})
	identity.Name = schema.DefaultIdentity
	if len(identity.Audience) == 0 && audience != "" {
		identity.Audience = []string{audience}
	}
	return identity
}

// serverResources sets what was left out to zero.
func serverResources(resources *api.Resources) {
	for _, field := range []**int{&resources.DiskMB, &resources.MemoryMaxMB, &resources.SecretsMB, &resources.IOPS} {
		*field = cmp.Or(*field, new(0))
	}
	defaultHostNetworks(resources.Networks)
}

// setNilPointers makes every nil pointer of a struct point to a zero value.
func setNilPointers(v reflect.Value) {
	for _, f := range v.Fields() {
		if f.Kind() == reflect.Pointer && f.IsNil() {
			f.Set(reflect.New(f.Type().Elem()))
		}
	}
}

// emptyMapsToNil makes a block without entries the same as no block, as a server does: meta {}.
func emptyMapsToNil(job *api.Job) {
	eachMap(reflect.ValueOf(job), func(m reflect.Value) {
		if m.Len() == 0 {
			m.SetZero()
		}
	})
}

// eachMap calls f with every map within v, but for those of which the type does not tell.
func eachMap(v reflect.Value, f func(reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			eachMap(v.Elem(), f)
		}
	case reflect.Struct:
		for field, value := range v.Fields() {
			if field.IsExported() {
				eachMap(value, f)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachMap(v.Index(i), f)
		}
	case reflect.Map:
		f(v)
		for _, key := range v.MapKeys() {
			eachMap(v.MapIndex(key), f)
		}
	}
}
