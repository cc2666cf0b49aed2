package review

import (
	"cmp"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/services"
	"taskapi/internal/ptr"
	"taskapi/internal/signals"
)

// This file lists what a job may ask for and does not get here, and what the values of its attributes must be. A
// feature that is implemented removes its row. docs/jobfiles.md is made from these rows.

var jobRows = []row[api.Job]{
	{"periodic", Refused, "nothing here starts a job at set times; leave the block out, and use cron or a systemd timer",
		func(j *api.Job) bool { return j.Periodic != nil }},
	{"parameterized", Refused, "nothing here dispatches jobs; leave the block out, and use variables",
		func(j *api.Job) bool { return j.ParameterizedJob != nil }},
	{"multiregion", Refused, "there is one machine and no region; leave the block out",
		func(j *api.Job) bool { return j.Multiregion != nil }},
	{"type", Note, "one machine runs one allocation: system is run as service is, sysbatch as batch is",
		func(j *api.Job) bool {
			return ptr.Deref(j.Type) == api.JobTypeSystem || ptr.Deref(j.Type) == api.JobTypeSysbatch
		}},
	{"stop", Refused, "the job says that it is stopped", func(j *api.Job) bool { return ptr.Deref(j.Stop) }},
	{"payload", Refused, "nothing here hands a dispatch payload to a task", func(j *api.Job) bool { return len(j.Payload) > 0 }},
	{"vault_namespace", Refused, "there is no Vault here", func(j *api.Job) bool { return ptr.Deref(j.VaultNamespace) != "" }},
	{"ui", Note, "there is no web UI to show the description and the links", func(j *api.Job) bool { return j.UI != nil }},
}

var groupRows = []row[api.TaskGroup]{
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
		func(g *api.TaskGroup) bool { return g.EphemeralDisk != nil && ptr.Deref(g.EphemeralDisk.Sticky) }},
	{"ephemeral_disk migrate", Warning, "there is no other machine to take data from",
		func(g *api.TaskGroup) bool { return g.EphemeralDisk != nil && ptr.Deref(g.EphemeralDisk.Migrate) }},
}

var networkRows = []row[api.NetworkResource]{
	{"network dns", Refused, "tasks use the machine's name resolution", func(n *api.NetworkResource) bool { return n.DNS != nil }},
	{"network cni", Refused, "there are no CNI networks here", func(n *api.NetworkResource) bool { return n.CNI != nil }},
	{"network hostname", Refused, "tasks have the machine's host name", func(n *api.NetworkResource) bool { return n.Hostname != "" }},
	{"network device", Refused, "ports are not tied to a network device", func(n *api.NetworkResource) bool { return n.Device != "" }},
	{"network cidr", Refused, "ports are not tied to a network", func(n *api.NetworkResource) bool { return n.CIDR != "" }},
	{"network ip", Refused, "ports are not tied to an address of the job's", func(n *api.NetworkResource) bool { return n.IP != "" }},
	{"network mbits", Warning, "bandwidth is not limited", func(n *api.NetworkResource) bool { return n.MBits != nil }},
}

var taskRows = []row[api.Task]{
	{"artifact", Refused, "artifacts are not fetched; put the files on the machine beforehand", func(t *api.Task) bool { return len(t.Artifacts) > 0 }},
	{"template", Refused, "templates are not rendered; use env, files on the machine, or consul-template in the task", func(t *api.Task) bool { return len(t.Templates) > 0 }},
	{"volume_mount", Refused, "volumes are not supported; use a path of the machine", func(t *api.Task) bool { return len(t.VolumeMounts) > 0 }},
	{"vault", Refused, "there is no Vault here; leave the block out", func(t *api.Task) bool { return t.Vault != nil }},
	{"secret", Refused, "secrets are not fetched from a provider", func(t *api.Task) bool { return len(t.Secrets) > 0 }},
	{"csi_plugin", Refused, "there is no storage to be a plugin of", func(t *api.Task) bool { return t.CSIPluginConfig != nil }},
	{"dispatch_payload", Refused, "nothing here dispatches jobs", func(t *api.Task) bool { return t.DispatchPayload != nil }},
	{"schedule", Refused, "tasks are not started and stopped by the clock", func(t *api.Task) bool { return t.Schedule != nil }},
	{"kind", Refused, "there is no Consul service mesh to give a task's kind a meaning", func(t *api.Task) bool { return t.Kind != "" }},
	{"restart render_templates", Warning, "nothing renders templates again at a restart",
		func(t *api.Task) bool { return t.RestartPolicy != nil && ptr.Deref(t.RestartPolicy.RenderTemplates) }},
	{"scaling", Note, "there is no autoscaler", func(t *api.Task) bool { return len(t.ScalingPolicies) > 0 }},
}

var resourceRows = []row[api.Resources]{
	{"resources cores", Refused, "no cores are set aside for a task; use cpu", func(r *api.Resources) bool { return ptr.Deref(r.Cores) > 0 }},
	{"resources device", Refused, "no devices are given to a task", func(r *api.Resources) bool { return len(r.Devices) > 0 }},
	{"resources iops", Warning, "operations on disks are not limited", func(r *api.Resources) bool { return ptr.Deref(r.IOPS) > 0 }},
	{"resources numa", Refused, "NUMA nodes are not chosen", func(r *api.Resources) bool { return r.NUMA != nil }},
	{"resources network", Refused, "a task has no network of its own; put the block into the group", func(r *api.Resources) bool { return len(r.Networks) > 0 }},
}

var serviceRows = []row[api.Service]{
	{"connect", Refused, "there is no Consul service mesh; leave the block out", func(s *api.Service) bool { return s.Connect != nil }},
	{"service identity", Warning, "a service gets no identity of its own: its token of Consul is the agent's", func(s *api.Service) bool { return s.Identity != nil }},
}

// nomadServiceRows are about services of provider "nomad", which can do less than Consul's.
var nomadServiceRows = []row[api.Service]{
	{"service kind", Refused, "kind is for Consul", func(s *api.Service) bool { return s.Kind != "" }},
	{"enable_tag_override", Refused, "it is for Consul", func(s *api.Service) bool { return s.EnableTagOverride }},
	{"tagged_addresses", Refused, "they are for Consul", func(s *api.Service) bool { return len(s.TaggedAddresses) > 0 }},
	{"service weights", Refused, "weights are for Consul", func(s *api.Service) bool { return s.Weights != nil }},
	{"service cluster", Refused, "clusters are for Consul", func(s *api.Service) bool { return s.Cluster != "" && s.Cluster != "default" }},
	{"service meta", Warning, "the registration has no place for it", func(s *api.Service) bool { return len(s.Meta) > 0 }},
	{"service canary_meta", Warning, "the registration has no place for it", func(s *api.Service) bool { return len(s.CanaryMeta) > 0 }},
	{"canary_tags", Note, "there are no canaries; tags are used", func(s *api.Service) bool { return len(s.CanaryTags) > 0 }},
}

// nomadCheckRows are about checks of services of provider "nomad".
var nomadCheckRows = []row[api.ServiceCheck]{
	{"failures_before_warning", Refused, "a check here is a success or a failure, and never a warning; use failures_before_critical",
		func(c *api.ServiceCheck) bool { return c.FailuresBeforeWarning != 0 }},
	{"grpc_service", Refused, "grpc checks are made by an agent of Consul alone", func(c *api.ServiceCheck) bool { return c.GRPCService != "" }},
	{"grpc_use_tls", Refused, "grpc checks are made by an agent of Consul alone", func(c *api.ServiceCheck) bool { return c.GRPCUseTLS }},
	{"check notes", Note, "they are for Consul", func(c *api.ServiceCheck) bool { return c.Notes != "" }},
	{"on_update", Note, `a check here is never a warning, so "ignore_warnings" is the same as "require_healthy"`,
		func(c *api.ServiceCheck) bool { return c.OnUpdate == api.OnUpdateIgnoreWarn }},
}

// checkRows are about all checks.
var checkRows = []row[api.ServiceCheck]{
	{"expose", Refused, "it is for Consul's service mesh", func(c *api.ServiceCheck) bool { return c.Expose }},
	{"check advertise", Refused, "it is for Consul's service mesh", func(c *api.ServiceCheck) bool { return c.Advertise != "" }},
}

var identityRows = []row[api.WorkloadIdentity]{
	{"identity service_name", Refused, "it is for Consul", func(w *api.WorkloadIdentity) bool { return w.ServiceName != "" }},
	{"identity extra_claims", Refused, "they are not put into tokens", func(w *api.WorkloadIdentity) bool { return len(w.ExtraClaims) > 0 }},
}

var jobLimits = []limit[api.Job]{
	among("type", func(j *api.Job) string { return ptr.Deref(j.Type) },
		"", api.JobTypeService, api.JobTypeBatch, api.JobTypeSystem, api.JobTypeSysbatch),
}

var groupLimits = []limit[api.TaskGroup]{
	atLeast("count", 0, func(g *api.TaskGroup) int { return ptr.Deref(g.Count) }),
	atLeast("shutdown_delay", 0, func(g *api.TaskGroup) time.Duration { return ptr.Deref(g.ShutdownDelay) }),
}

var networkLimits = []limit[api.NetworkResource]{
	among("network mode", func(n *api.NetworkResource) string { return n.Mode }, "", "host"),
}

var portLimits = []limit[api.Port]{
	among("port host_network", func(p *api.Port) string { return p.HostNetwork }, "", "default"),
	{"port to", "it must be from 1 to 65535, or -1", func(p *api.Port) any { return p.To },
		func(p *api.Port) bool { return p.To >= -1 && p.To <= 65535 }},
}

var staticPortLimits = []limit[api.Port]{
	{"port static", "it must be from 1 to 65535", func(p *api.Port) any { return p.Value },
		func(p *api.Port) bool { return p.Value >= 1 && p.Value <= 65535 }},
}

// minInterval is the shortest interval of a restart policy that Nomad takes.
const minInterval = 5 * time.Second

var restartLimits = []limit[api.RestartPolicy]{
	among("restart mode", func(p *api.RestartPolicy) string { return ptr.Deref(cmp.Or(p.Mode, new(api.RestartPolicyModeFail))) },
		api.RestartPolicyModeFail, api.RestartPolicyModeDelay),
	atLeast("restart attempts", 0, func(p *api.RestartPolicy) int { return ptr.Deref(p.Attempts) }),
	atLeast("restart delay", 0, func(p *api.RestartPolicy) time.Duration { return ptr.Deref(p.Delay) }),
	{"restart interval", "it must be at least 5s", func(p *api.RestartPolicy) any { return ptr.Deref(p.Interval) },
		func(p *api.RestartPolicy) bool { return p.Interval == nil || *p.Interval >= minInterval }},
	{"restart attempts", `it must be above 0 with mode "delay", which would wait for ever; or the mode "fail"`,
		func(p *api.RestartPolicy) any { return ptr.Deref(p.Attempts) },
		func(p *api.RestartPolicy) bool {
			return p.Attempts == nil || *p.Attempts != 0 || ptr.Deref(p.Mode) != api.RestartPolicyModeDelay
		}},
	{"restart attempts", "it must be so few that they, each with its delay, fit into the interval",
		func(p *api.RestartPolicy) any { return ptr.Deref(p.Attempts) },
		func(p *api.RestartPolicy) bool {
			interval, delay := ptr.Deref(p.Interval), ptr.Deref(p.Delay)
			return interval < minInterval || delay <= 0 || time.Duration(ptr.Deref(p.Attempts)) <= interval/delay
		}},
}

var updateLimits = []limit[api.UpdateStrategy]{
	atLeast("update max_parallel", 0, func(u *api.UpdateStrategy) int { return ptr.Deref(u.MaxParallel) }),
	atLeast("update min_healthy_time", 0, func(u *api.UpdateStrategy) time.Duration { return ptr.Deref(u.MinHealthyTime) }),
	among("update health_check", func(u *api.UpdateStrategy) string { return ptr.Deref(u.HealthCheck) }, "", "checks", "task_states", "manual"),
	{"update healthy_deadline", "it must be longer than min_healthy_time, or the allocation could never become healthy in time",
		func(u *api.UpdateStrategy) any { return ptr.Deref(u.HealthyDeadline) },
		func(u *api.UpdateStrategy) bool {
			return u.HealthyDeadline == nil || ptr.Deref(u.MinHealthyTime) < *u.HealthyDeadline
		}},
	{"update progress_deadline", "it must be longer than healthy_deadline, or 0s for none; it is 10m unless it is given",
		func(u *api.UpdateStrategy) any { return ptr.Deref(u.ProgressDeadline) },
		func(u *api.UpdateStrategy) bool {
			by := ptr.Deref(u.ProgressDeadline)
			return by == 0 || by > ptr.Deref(u.HealthyDeadline)
		}},
}

var taskLimits = []limit[api.Task]{
	signalName("kill_signal", func(t *api.Task) string { return t.KillSignal }),
	atLeast("kill_timeout", 0, func(t *api.Task) time.Duration { return ptr.Deref(t.KillTimeout) }),
	atLeast("shutdown_delay", 0, func(t *api.Task) time.Duration { return t.ShutdownDelay }),
}

var lifecycleLimits = []limit[api.TaskLifecycle]{
	among("lifecycle hook", func(l *api.TaskLifecycle) string { return l.Hook },
		api.TaskLifecycleHookPrestart, api.TaskLifecycleHookPoststart, api.TaskLifecycleHookPoststop),
}

var logsLimits = []limit[api.LogConfig]{
	atLeast("logs max_files", 1, func(l *api.LogConfig) int { return ptr.Deref(cmp.Or(l.MaxFiles, new(1))) }),
	atLeast("logs max_file_size", 1, func(l *api.LogConfig) int { return ptr.Deref(cmp.Or(l.MaxFileSizeMB, new(1))) }),
	{"logs enabled", "it must be the opposite of disabled, which is enough alone", func(l *api.LogConfig) any { return ptr.Deref(l.Enabled) },
		func(l *api.LogConfig) bool { return l.Enabled == nil || *l.Enabled != ptr.Deref(l.Disabled) }},
}

// What Nomad takes for the names of identities and actions. They are compiled when a job has one: every program that is
// run in a task first executes this one, and waits for its packages.
var (
	identityName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9-]{1,128}$`) })
	actionName   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[^\x00\s]{1,128}$`) })
)

var actionLimits = []limit[api.Action]{
	{"action name", "it must be 1 to 128 characters without white space", func(a *api.Action) any { return a.Name },
		func(a *api.Action) bool { return actionName().MatchString(a.Name) }},
	{"action command", "it must name a program", func(a *api.Action) any { return a.Command }, func(a *api.Action) bool { return a.Command != "" }},
}

var identityLimits = []limit[api.WorkloadIdentity]{
	{"identity name", "it must be 1 to 128 letters, digits and hyphens", func(w *api.WorkloadIdentity) any { return w.Name },
		func(w *api.WorkloadIdentity) bool { return w.Name == "" || identityName().MatchString(w.Name) }},
	{"identity aud", "it must hold no empty audience", func(w *api.WorkloadIdentity) any { return w.Audience },
		func(w *api.WorkloadIdentity) bool { return !slices.Contains(w.Audience, "") }},
	atLeast("identity ttl", 0, func(w *api.WorkloadIdentity) time.Duration { return w.TTL }),
	{"identity filepath", "it must be in the task's directory, to which it is relative, and none of taskapi's own names there, such as secrets/api.sock", func(w *api.WorkloadIdentity) any { return w.Filepath },
		func(w *api.WorkloadIdentity) bool {
			path := filepath.Clean(w.Filepath)
			return w.Filepath == "" || filepath.IsLocal(path) && !slices.Contains(taskPaths, path)
		}},
	among("identity change_mode", func(w *api.WorkloadIdentity) string { return w.ChangeMode }, "", "noop", "signal", "restart"),
	{"identity change_signal", `it must be there with change_mode "signal", and with no other`, func(w *api.WorkloadIdentity) any { return w.ChangeSignal },
		func(w *api.WorkloadIdentity) bool { return (w.ChangeSignal != "") == (w.ChangeMode == "signal") }},
	signalName("identity change_signal", func(w *api.WorkloadIdentity) string { return w.ChangeSignal }),
}

var serviceLimits = []limit[api.Service]{
	among("service provider", func(s *api.Service) string { return s.Provider }, "", api.ServiceProviderConsul, services.ProviderNomad),
}

// registeredServiceLimits are about services that are registered, as are those below.
var registeredServiceLimits = []limit[api.Service]{
	{"service address_mode", services.AddressModeWords, func(s *api.Service) any { return s.AddressMode },
		func(s *api.Service) bool { return services.ValidAddressMode(s.AddressMode) }},
	{"service address", services.AddressWords, func(s *api.Service) any { return s.Address }, services.ValidAddress},
}

var checkLimits = slices.Concat(ruleLimits(services.CheckRules), timeLimits())

// ruleLimits returns what the set-up of the checks refuses as well, but for times, which may be shorter there.
func ruleLimits(rules []services.Rule) []limit[api.ServiceCheck] {
	var list []limit[api.ServiceCheck]
	for _, rule := range rules {
		if rule.OfTime() {
			continue
		}
		list = append(list, limit[api.ServiceCheck]{
			"check " + rule.Attribute, rule.Words, func(c *api.ServiceCheck) any { return rule.Value(c) },
			func(c *api.ServiceCheck) bool { return rule.Holds(c) || hasReference(rule.Value(c)) },
		})
	}
	return list
}

// hasReference reports whether text has a value only at run time.
func hasReference(text string) bool { return strings.Contains(text, "${") }

var checkRestartLimits = []limit[api.CheckRestart]{
	atLeast("check_restart limit", 0, func(c *api.CheckRestart) int { return c.Limit }),
	atLeast("check_restart grace", 0, func(c *api.CheckRestart) time.Duration { return ptr.Deref(c.Grace) }),
}

// signalName returns the limit of the name of a signal, with SIG or without.
func signalName[T any](feature string, get func(*T) string) limit[T] {
	return limit[T]{feature, "it must be a signal such as SIGTERM, or left out", func(t *T) any { return get(t) }, func(t *T) bool {
		return get(t) == "" || signals.InJobFile(get(t))
	}}
}

// taskPaths are the directories of a task, and the socket in one of them: no file of a job's can have their names.
var taskPaths = []string{".", "local", "private", "secrets", "tmp", "secrets/api.sock"}
