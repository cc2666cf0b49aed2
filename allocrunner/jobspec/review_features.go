package jobspec

import (
	"slices"

	"github.com/hashicorp/nomad/api"
)

// This file is the table of what a job may ask for and does not get here. A feature that arrives takes its row away.

// row is one feature of a part of the job: what it is called, what its use means, and how to tell that it is used.
type row[T any] struct {
	feature  string
	severity Severity
	message  string
	used     func(*T) bool
}

var jobRows = []row[api.Job]{
	{"periodic", Refused, "nothing here starts a job at set times; leave the block out, and use cron or a systemd timer",
		func(j *api.Job) bool { return j.Periodic != nil }},
	{"parameterized", Refused, "nothing here dispatches jobs; leave the block out, and use variables",
		func(j *api.Job) bool { return j.ParameterizedJob != nil }},
	{"multiregion", Refused, "there is one machine and no region; leave the block out",
		func(j *api.Job) bool { return j.Multiregion != nil }},
	{"type", Refused, `the job type must be "service", "batch", "system" or "sysbatch"`,
		func(j *api.Job) bool {
			return !slices.Contains([]string{"", api.JobTypeService, api.JobTypeBatch, api.JobTypeSystem, api.JobTypeSysbatch}, deref(j.Type))
		}},
	{"type", Note, "one machine runs one allocation: system is run as service is, sysbatch as batch is",
		func(j *api.Job) bool {
			return deref(j.Type) == api.JobTypeSystem || deref(j.Type) == api.JobTypeSysbatch
		}},
	{"stop", Refused, "the job says that it is stopped", func(j *api.Job) bool { return deref(j.Stop) }},
	{"payload", Refused, "nothing here hands a dispatch payload to a task", func(j *api.Job) bool { return len(j.Payload) > 0 }},
	{"consul_namespace", Refused, "there is no Consul here", func(j *api.Job) bool { return deref(j.ConsulNamespace) != "" }},
	{"vault_namespace", Refused, "there is no Vault here", func(j *api.Job) bool { return deref(j.VaultNamespace) != "" }},
	{"ui", Note, "there is no web UI to show the description and the links", func(j *api.Job) bool { return j.UI != nil }},
}

var groupRows = []row[api.TaskGroup]{
	{"consul", Refused, "there is no Consul here; leave the block out", func(g *api.TaskGroup) bool { return g.Consul != nil }},
	{"volume", Refused, "volumes are not supported; use a path of the machine in the task's config or env",
		func(g *api.TaskGroup) bool { return len(g.Volumes) > 0 }},
	{"scaling", Note, "there is no autoscaler; one allocation runs", func(g *api.TaskGroup) bool { return g.Scaling != nil }},
	{"disconnect", Warning, "there is no server to be disconnected from; nothing acts on the block",
		func(g *api.TaskGroup) bool { return g.Disconnect != nil }},
	{"stop_after_client_disconnect", Warning, "there is no server to be disconnected from; nothing acts on it",
		//lint:ignore SA1019 job files may still say it
		func(g *api.TaskGroup) bool { return g.StopAfterClientDisconnect != nil }},
	{"max_client_disconnect", Warning, "there is no server to be disconnected from; nothing acts on it",
		//lint:ignore SA1019 job files may still say it
		func(g *api.TaskGroup) bool { return g.MaxClientDisconnect != nil }},
	{"max_run_duration", Warning, "nothing ends the allocation after that time yet", func(g *api.TaskGroup) bool { return g.MaxRunDuration != nil }},
	{"ephemeral_disk sticky", Warning, "each allocation begins with an empty directory; nothing is taken over from an earlier one",
		func(g *api.TaskGroup) bool { return g.EphemeralDisk != nil && deref(g.EphemeralDisk.Sticky) }},
	{"ephemeral_disk migrate", Warning, "there is no other machine to take data from",
		func(g *api.TaskGroup) bool { return g.EphemeralDisk != nil && deref(g.EphemeralDisk.Migrate) }},
}

var networkRows = []row[api.NetworkResource]{
	{"network mode", Refused, `tasks share the machine's network; the mode must be "host" or left out`,
		func(n *api.NetworkResource) bool { return n.Mode != "" && n.Mode != "host" }},
	{"network dns", Refused, "tasks use the machine's name resolution", func(n *api.NetworkResource) bool { return n.DNS != nil }},
	{"network cni", Refused, "there are no CNI networks here", func(n *api.NetworkResource) bool { return n.CNI != nil }},
	{"network hostname", Refused, "tasks have the machine's host name", func(n *api.NetworkResource) bool { return n.Hostname != "" }},
	{"network device", Refused, "ports are not tied to a network device; leave device, cidr and ip out",
		func(n *api.NetworkResource) bool { return n.Device != "" || n.CIDR != "" || n.IP != "" }},
	{"network mbits", Warning, "bandwidth is not limited", func(n *api.NetworkResource) bool { return n.MBits != nil }},
}

var portRows = []row[api.Port]{
	{"port host_network", Refused, "there are no named host networks; leave host_network out",
		func(p *api.Port) bool { return p.HostNetwork != "" && p.HostNetwork != "default" }},
}

var taskRows = []row[api.Task]{
	{"artifact", Refused, "artifacts are not fetched; put the files on the machine beforehand", func(t *api.Task) bool { return len(t.Artifacts) > 0 }},
	{"template", Refused, "templates are not rendered; use env, or files on the machine", func(t *api.Task) bool { return len(t.Templates) > 0 }},
	{"volume_mount", Refused, "volumes are not supported; use a path of the machine", func(t *api.Task) bool { return len(t.VolumeMounts) > 0 }},
	{"vault", Refused, "there is no Vault here; leave the block out", func(t *api.Task) bool { return t.Vault != nil }},
	{"consul", Refused, "there is no Consul here; leave the block out", func(t *api.Task) bool { return t.Consul != nil }},
	{"secret", Refused, "secrets are not fetched from a provider", func(t *api.Task) bool { return len(t.Secrets) > 0 }},
	{"csi_plugin", Refused, "there is no storage to be a plugin of", func(t *api.Task) bool { return t.CSIPluginConfig != nil }},
	{"dispatch_payload", Refused, "nothing here dispatches jobs", func(t *api.Task) bool { return t.DispatchPayload != nil }},
	{"schedule", Refused, "tasks are not started and stopped by the clock", func(t *api.Task) bool { return t.Schedule != nil }},
	{"kind", Refused, "there is no Consul service mesh to give a task's kind a meaning", func(t *api.Task) bool { return t.Kind != "" }},
	{"restart render_templates", Warning, "nothing renders templates anew at a restart",
		func(t *api.Task) bool { return t.RestartPolicy != nil && deref(t.RestartPolicy.RenderTemplates) }},
	{"action", Warning, "actions can't be run yet", func(t *api.Task) bool { return len(t.Actions) > 0 }},
	{"scaling", Note, "there is no autoscaler", func(t *api.Task) bool { return len(t.ScalingPolicies) > 0 }},
}

var resourceRows = []row[api.Resources]{
	{"resources cores", Refused, "no cores are set aside for a task; use cpu", func(r *api.Resources) bool { return deref(r.Cores) > 0 }},
	{"resources device", Refused, "no devices are given to a task", func(r *api.Resources) bool { return len(r.Devices) > 0 }},
	{"resources numa", Refused, "NUMA nodes are not chosen", func(r *api.Resources) bool { return r.NUMA != nil }},
	{"resources network", Refused, "a task's network block is of old; put it into the group", func(r *api.Resources) bool { return len(r.Networks) > 0 }},
}

var serviceRows = []row[api.Service]{
	{"connect", Refused, "there is no Consul service mesh; leave the block out", func(s *api.Service) bool { return s.Connect != nil }},
	{"service provider", Warning, `a service whose provider is Consul, which is the default, is not registered and its checks don't run; say provider = "nomad"`,
		func(s *api.Service) bool { return s.Provider == "" || s.Provider == api.ServiceProviderConsul }},
	{"service provider", Refused, `the provider must be "nomad"`,
		func(s *api.Service) bool {
			return !slices.Contains([]string{"", api.ServiceProviderConsul, "nomad"}, s.Provider)
		}},
	{"service identity", Warning, "identities of services are for Consul; none is made", func(s *api.Service) bool { return s.Identity != nil }},
}

// nomadServiceRows are about services of provider "nomad", which can do less than Consul's.
var nomadServiceRows = []row[api.Service]{
	{"service kind", Refused, "kind is for Consul", func(s *api.Service) bool { return s.Kind != "" }},
	{"enable_tag_override", Refused, "it is for Consul", func(s *api.Service) bool { return s.EnableTagOverride }},
	{"tagged_addresses", Refused, "they are for Consul", func(s *api.Service) bool { return len(s.TaggedAddresses) > 0 }},
	{"service weights", Refused, "weights are for Consul", func(s *api.Service) bool { return s.Weights != nil }},
	{"service cluster", Refused, "clusters are for Consul", func(s *api.Service) bool { return s.Cluster != "" && s.Cluster != "default" }},
	{"service meta", Warning, "the registration has no place for it", func(s *api.Service) bool { return len(s.Meta)+len(s.CanaryMeta) > 0 }},
	{"canary_tags", Note, "there are no canaries; tags are used", func(s *api.Service) bool { return len(s.CanaryTags) > 0 }},
	{"address_mode", Refused, `the address mode must be "auto" or "host"`,
		func(s *api.Service) bool { return !slices.Contains([]string{"", "auto", "host"}, s.AddressMode) }},
}

// checkRows are about checks of services of provider "nomad".
var checkRows = []row[api.ServiceCheck]{
	{"check type", Refused, `grpc checks are not made; use "http", "tcp" or "script"`, func(c *api.ServiceCheck) bool { return c.Type == "grpc" }},
	{"check type", Refused, `the type must be "http", "tcp" or "script"`,
		func(c *api.ServiceCheck) bool {
			return !slices.Contains([]string{"http", "tcp", checkScript, "grpc"}, c.Type)
		}},
	{"failures_before_warning", Refused, "a check here is a success or a failure, and never a warning; use failures_before_critical",
		func(c *api.ServiceCheck) bool { return c.FailuresBeforeWarning != 0 }},
	{"check command", Refused, `command and args are for checks of the type "script"`,
		func(c *api.ServiceCheck) bool { return c.Type != checkScript && (c.Command != "" || len(c.Args) > 0) }},
	{"check command", Refused, "a script check needs a command", func(c *api.ServiceCheck) bool { return c.Type == checkScript && c.Command == "" }},
	{"grpc_service", Refused, "grpc checks are not made; leave grpc_service and grpc_use_tls out",
		func(c *api.ServiceCheck) bool { return c.GRPCService != "" || c.GRPCUseTLS }},
	{"expose", Refused, "it is for Consul's service mesh", func(c *api.ServiceCheck) bool { return c.Expose }},
	{"check advertise", Refused, "it is for Consul", func(c *api.ServiceCheck) bool { return c.Advertise != "" }},
	{"initial_status", Refused, `it must be "passing", "warning" or "critical", or left out`,
		func(c *api.ServiceCheck) bool {
			return !slices.Contains([]string{"", "passing", "warning", "critical"}, c.InitialStatus)
		}},
	{"check notes", Note, "they are for Consul", func(c *api.ServiceCheck) bool { return c.Notes != "" }},
	{"on_update", Refused, `it must be "require_healthy", "ignore_warnings" or "ignore"`,
		func(c *api.ServiceCheck) bool {
			return !slices.Contains([]string{"", api.OnUpdateRequireHealthy, api.OnUpdateIgnoreWarn, api.OnUpdateIgnore}, c.OnUpdate)
		}},
	{"on_update", Note, `a check here is never a warning, so "ignore_warnings" is the same as "require_healthy"`,
		func(c *api.ServiceCheck) bool { return c.OnUpdate == api.OnUpdateIgnoreWarn }},
	{"check address_mode", Refused, `the address mode must be "auto" or "host"`,
		func(c *api.ServiceCheck) bool { return !slices.Contains([]string{"", "auto", "host"}, c.AddressMode) }},
	{"check protocol", Refused, `it must be "http" or "https"`,
		func(c *api.ServiceCheck) bool {
			return c.Type == "http" && !slices.Contains([]string{"", "http", "https"}, c.Protocol)
		}},
	{"check path", Refused, "an http check needs a path", func(c *api.ServiceCheck) bool { return c.Type == "http" && c.Path == "" }},
}
