package review

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/services"
	"taskapi/internal/ptr"
	"taskapi/internal/signals"
)

// This file lists what a job may ask for and does not get here, and what the values of its attributes must be. A
// feature that is implemented removes its row. docs/jobfiles.md is made from these rows.

var jobRows = []row[api.Job]{
	{"multiregion", Refused, "there is one machine and no region; leave the block out", nil},
	{"type", Note, "one machine runs one allocation: system is run as service is, sysbatch as batch is",
		func(j *api.Job) bool {
			return ptr.Deref(j.Type) == api.JobTypeSystem || ptr.Deref(j.Type) == api.JobTypeSysbatch
		}},
	{"stop", Refused, "the job says that it is stopped", func(j *api.Job) bool { return ptr.Deref(j.Stop) }},
	{"payload", Refused, "only a job that was dispatched has one; dispatch a parameterized job with --payload",
		func(j *api.Job) bool { return len(j.Payload) > 0 && !j.Dispatched }},
	{"vault_namespace", Refused, "use the setting vault.namespace, or the namespace of a task's vault block",
		func(j *api.Job) bool { return ptr.Deref(j.VaultNamespace) != "" }},
	{"ui", Note, "the page of taskapi ui shows neither the description nor the links", nil},
}

// CountFeature is the feature of the note that run runs one allocation.
const CountFeature = "count"

var groupRows = []row[api.TaskGroup]{
	{CountFeature, Note, "run runs one allocation of the group, and run --all runs all of them",
		func(g *api.TaskGroup) bool { return g.Count != nil && *g.Count >= 0 && *g.Count != 1 }},
	{"scaling", Note, "there is no autoscaler", nil},
	{"disconnect", Warning, "there is no server to be disconnected from; nothing acts on the block", nil},
	{"stop_after_client_disconnect", Warning, "there is no server to be disconnected from; nothing acts on it", nil},
	{"max_client_disconnect", Warning, "there is no server to be disconnected from; nothing acts on it", nil},
	{"ephemeral_disk migrate", Note, "sticky moves the data on this machine; none come from another machine",
		func(g *api.TaskGroup) bool { return g.EphemeralDisk != nil && ptr.Deref(g.EphemeralDisk.Migrate) }},
}

var networkRows = []row[api.NetworkResource]{
	{"network dns", Refused, "tasks use the machine's name resolution", nil},
	{"network cni", Refused, "there are no CNI networks here", nil},
	{"network hostname", Refused, "tasks have the machine's host name", nil},
	{"network device", Refused, "ports are not tied to a network device", nil},
	{"network cidr", Refused, "ports are not tied to a network", nil},
	{"network ip", Refused, "ports are not tied to an address from the job", nil},
	{"network mbits", Warning, "bandwidth is not limited", nil},
}

var taskRows = []row[api.Task]{
	{"secret", Refused, "secrets are not fetched from a provider", nil},
	{"csi_plugin", Refused, "there is no storage to be a plugin of", nil},
	{"kind", Refused, "there is no Consul service mesh to give a task's kind a meaning", nil},
	{"scaling", Note, "there is no autoscaler", nil},
}

var noVaultRows = []row[api.Task]{{"vault", Refused, noVaultWords + ", or leave the block out", nil}}

const noVaultWords = "no Vault is configured: give its address with the setting vault.address"

var vaultRows = []row[api.Vault]{
	{"vault policies", Warning, "the role of Vault says which policies a token has", nil},
}

var vaultLimits = []limit[api.Vault]{
	{"vault cluster", `it must be "default", or left out: there is one Vault`, nil,
		func(v *api.Vault) bool { return isDefault(v.Cluster) }},
	among[api.Vault]("vault change_mode", "", "noop", "signal", "restart"),
	{"vault change_signal", `it must be set with change_mode "signal"`, nil,
		func(v *api.Vault) bool { return ptr.Deref(v.ChangeMode) != "signal" || ptr.Deref(v.ChangeSignal) != "" }},
	signalName[api.Vault]("vault change_signal"),
}

var resourceRows = []row[api.Resources]{
	{"resources memory_max", Refused, "one below memory bounds nothing: give more than memory",
		func(r *api.Resources) bool {
			most := ptr.Deref(r.MemoryMaxMB)
			return most != 0 && most != -1 && most < ptr.Deref(r.MemoryMB)
		}},
	{"resources iops", Warning, "operations on disks are not limited",
		func(r *api.Resources) bool { return ptr.Deref(r.IOPS) > 0 }},
	{"resources numa", Refused, "NUMA nodes are not chosen", nil},
}

var resourceLimits = []limit[api.Resources]{
	{"resources cores", "it must be at least 0", nil, func(r *api.Resources) bool { return ptr.Deref(r.Cores) >= 0 }},
	{"resources cores", "cpu must not stand beside it: a task has one or the other", nil, func(r *api.Resources) bool {
		return ptr.Deref(r.Cores) <= 0 || ptr.Deref(r.CPU) == 0
	}},
	{"resources cpu", "it must be at least 1, unless cores is", nil,
		func(r *api.Resources) bool { return r.CPU == nil || *r.CPU >= 1 || ptr.Deref(r.Cores) != 0 }},
	atLeast[api.Resources]("resources memory", 10),
	{"resources secrets", "it must be from 0 to memory", nil, func(r *api.Resources) bool {
		size := ptr.Deref(r.SecretsMB)
		return size == 0 || size > 0 && size <= ptr.Deref(r.MemoryMB)
	}},
}

var serviceRows = []row[api.Service]{
	{"connect", Refused, "there is no Consul service mesh; leave the block out", nil},
	{"service identity", Warning, "a service gets no identity of its own: its token of Consul is the agent's", nil},
}

// nomadServiceRows are about services of provider "nomad", which can do less than Consul's.
var nomadServiceRows = []row[api.Service]{
	{"service kind", Refused, "kind is for Consul", nil},
	{"enable_tag_override", Refused, "it is for Consul", nil},
	{"tagged_addresses", Refused, "they are for Consul", nil},
	{"service weights", Refused, "weights are for Consul", nil},
	{"service cluster", Refused, "clusters are for Consul",
		func(s *api.Service) bool { return s.Cluster != "" && s.Cluster != "default" }},
	{"service meta", Warning, "the registration has no place for it", nil},
	{"service canary_meta", Warning, "the registration has no place for it", nil},
	{"canary_tags", Note, "there are no canaries; tags are used", nil},
}

var nomadCheckRows = []row[api.ServiceCheck]{
	{"failures_before_warning", Refused,
		"a check here is a success or a failure, and never a warning; use failures_before_critical", nil},
	{"grpc_service", Refused, "grpc checks are made by an agent of Consul alone", nil},
	{"grpc_use_tls", Refused, "grpc checks are made by an agent of Consul alone", nil},
	{"check notes", Note, "they are for Consul", nil},
	{"on_update", Note, `a check here is never a warning, so "ignore_warnings" is the same as "require_healthy"`,
		func(c *api.ServiceCheck) bool { return c.OnUpdate == api.OnUpdateIgnoreWarn }},
}

var checkRows = []row[api.ServiceCheck]{
	{"expose", Refused, "it is for Consul's service mesh", nil},
	{"check advertise", Refused, "it is for Consul's service mesh", nil},
}

var identityRows = []row[api.WorkloadIdentity]{
	{"identity service_name", Refused, "it is for Consul", nil},
}

var jobLimits = []limit[api.Job]{
	among[api.Job]("type", api.JobTypeService, api.JobTypeBatch, api.JobTypeSystem, api.JobTypeSysbatch),
	{"namespace", `it must not be "*", by which a request means all namespaces; leave it out, or name one`, nil,
		func(j *api.Job) bool { return ptr.Deref(j.Namespace) != "*" }},
	{"name", "it must not be empty", nil, func(j *api.Job) bool { return j.Name == nil || *j.Name != "" }},
	{"priority", "it must be from 1 to 32766", nil,
		func(j *api.Job) bool { p := ptr.Deref(j.Priority); return p >= 0 && p <= 1<<15-2 }},
	{"datacenters", "none must be empty", nil, func(j *api.Job) bool { return !slices.Contains(j.Datacenters, "") }},
}

var uiLimits = []limit[api.JobUIConfig]{
	{"ui description", "it must have at most 1000 bytes", nil,
		func(u *api.JobUIConfig) bool { return len(u.Description) <= 1000 }},
}

var groupLimits = []limit[api.TaskGroup]{
	atLeast[api.TaskGroup]("count", 0),
	atLeast[api.TaskGroup]("shutdown_delay", time.Duration(0)),
	{"max_run_duration", "it must be more than 0s", nil,
		func(g *api.TaskGroup) bool { return g.MaxRunDuration == nil || *g.MaxRunDuration > 0 }},
}

var networkLimits = []limit[api.NetworkResource]{
	among[api.NetworkResource]("network mode", "", "host"),
}

var portLimits = []limit[api.Port]{
	among[api.Port]("port host_network", "", "default"),
	{"port to", "it must be from 1 to 65535, or -1", nil,
		func(p *api.Port) bool { return p.To >= -1 && p.To <= 65535 }},
}

var staticPortLimits = []limit[api.Port]{
	{"port static", "it must be from 1 to 65535", nil,
		func(p *api.Port) bool { return p.Value >= 1 && p.Value <= 65535 }},
}

// minInterval is the shortest interval of a restart policy that Nomad takes.
const minInterval = 5 * time.Second

var restartLimits = []limit[api.RestartPolicy]{
	among[api.RestartPolicy]("restart mode", api.RestartPolicyModeFail, api.RestartPolicyModeDelay),
	atLeast[api.RestartPolicy]("restart attempts", 0),
	atLeast[api.RestartPolicy]("restart delay", time.Duration(0)),
	{"restart interval", "it must be at least 5s", nil,
		func(p *api.RestartPolicy) bool { return p.Interval == nil || *p.Interval >= minInterval }},
	{"restart attempts", `it must be above 0 with mode "delay", which would wait for ever; or the mode "fail"`, nil,
		func(p *api.RestartPolicy) bool {
			return p.Attempts == nil || *p.Attempts != 0 || ptr.Deref(p.Mode) != api.RestartPolicyModeDelay
		}},
	{"restart attempts", "all attempts, each with its delay, must fit into the interval", nil,
		func(p *api.RestartPolicy) bool {
			interval, delay := ptr.Deref(p.Interval), ptr.Deref(p.Delay)
			return interval < minInterval || delay <= 0 || time.Duration(ptr.Deref(p.Attempts)) <= interval/delay
		}},
}

var updateLimits = []limit[api.UpdateStrategy]{
	atLeast[api.UpdateStrategy]("update max_parallel", 0),
	atLeast[api.UpdateStrategy]("update min_healthy_time", time.Duration(0)),
	atLeast[api.UpdateStrategy]("update canary", 0),
	{"update auto_promote", "it needs a canary above 0", nil,
		func(u *api.UpdateStrategy) bool { return !ptr.Deref(u.AutoPromote) || ptr.Deref(u.Canary) != 0 }},
	{"update stagger", "it must be above 0s", nil,
		func(u *api.UpdateStrategy) bool { return u.Stagger == nil || *u.Stagger > 0 }},
	among[api.UpdateStrategy]("update health_check", "checks", "task_states", "manual"),
	{"update healthy_deadline",
		"it must be longer than min_healthy_time, or the allocation could never become healthy in time", nil,
		func(u *api.UpdateStrategy) bool {
			return u.HealthyDeadline == nil || ptr.Deref(u.MinHealthyTime) < *u.HealthyDeadline
		}},
	{"update progress_deadline", "it must be longer than healthy_deadline, or 0s for none; it is 10m unless it is given",
		nil,
		func(u *api.UpdateStrategy) bool {
			by := ptr.Deref(u.ProgressDeadline)
			return by == 0 || by > ptr.Deref(u.HealthyDeadline)
		}},
}

var taskLimits = []limit[api.Task]{
	signalName[api.Task]("kill_signal"),
	atLeast[api.Task]("kill_timeout", time.Duration(0)),
	atLeast[api.Task]("shutdown_delay", time.Duration(0)),
}

var lifecycleLimits = []limit[api.TaskLifecycle]{
	among[api.TaskLifecycle]("lifecycle hook", api.TaskLifecycleHookPrestart, api.TaskLifecycleHookPoststart,
		api.TaskLifecycleHookPoststop),
}

var logsLimits = []limit[api.LogConfig]{
	atLeast[api.LogConfig]("logs max_files", 1),
	atLeast[api.LogConfig]("logs max_file_size", 1),
	{"logs enabled", "it must be the opposite of disabled; disabled alone is enough", nil,
		func(l *api.LogConfig) bool { return l.Enabled == nil || *l.Enabled != ptr.Deref(l.Disabled) }},
}

// isName reports whether Nomad takes a text for the name of an identity or an action: 1 to 128 of the characters. The
// bound is not part of an expression, which would take long to compile.
func isName(text, characters string) bool {
	matches, _ := regexp.MatchString("^["+characters+"]+$", text) // the expression is correct
	return matches && utf8.RuneCountInString(text) <= 128
}

var actionLimits = []limit[api.Action]{
	{"action name", "it must be 1 to 128 characters without white space", nil,
		func(a *api.Action) bool { return isName(a.Name, `^\x00\s`) }},
	{"action command", "it must name a program", nil, func(a *api.Action) bool { return a.Command != "" }},
}

var identityLimits = []limit[api.WorkloadIdentity]{
	{"identity name", "it must be 1 to 128 letters, digits, hyphens and underscores", nil,
		func(w *api.WorkloadIdentity) bool { return w.Name == "" || isName(w.Name, "a-zA-Z0-9_-") }},
	{"identity aud", "it must contain no empty audience", nil,
		func(w *api.WorkloadIdentity) bool { return !slices.Contains(w.Audience, "") }},
	atLeast[api.WorkloadIdentity]("identity ttl", time.Duration(0)),
	{"identity filepath", "it must be in the task's directory, to which it is relative, and none of taskapi's own names " +
		"there, such as secrets/api.sock", nil,
		func(w *api.WorkloadIdentity) bool {
			path := filepath.Clean(w.Filepath)
			return w.Filepath == "" || filepath.IsLocal(path) && !slices.Contains(taskPaths, path)
		}},
	{"identity filepath", "it must be left out unless file = true", nil,
		func(w *api.WorkloadIdentity) bool { return w.Filepath == "" || w.File }},
	among[api.WorkloadIdentity]("identity change_mode", "", "noop", "signal", "restart"),
	{"identity change_signal", `it must be set with change_mode "signal", and only then`, nil,
		func(w *api.WorkloadIdentity) bool { return (w.ChangeSignal != "") == (w.ChangeMode == "signal") }},
	signalName[api.WorkloadIdentity]("identity change_signal"),
}

var serviceLimits = []limit[api.Service]{
	among[api.Service]("service provider", "", api.ServiceProviderConsul, services.ProviderNomad),
	among[api.Service]("on_update", "", api.OnUpdateRequireHealthy, api.OnUpdateIgnoreWarn, api.OnUpdateIgnore),
	{"service name", "it must be 1 to 63 letters, digits and hyphens, and begin and end with a letter or digit", nil,
		func(s *api.Service) bool { return isServiceName(s.Name) }},
	{"service identity", "it needs an aud", func(*api.Service) any { return "without one" },
		func(s *api.Service) bool { return s.Identity == nil || len(s.Identity.Audience) > 0 }},
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

// isServiceName reports whether a text can be a service's name, with any values for its references.
func isServiceName(text string) bool {
	if hasReference(text) { // a start has no time to compile an expression that it does not need
		text = regexp.MustCompile(`\$\{[^}]*\}`).ReplaceAllString(text, "x")
	}
	return isName(text, "a-zA-Z0-9-") && len(text) <= 63 && strings.Trim(text, "-") == text
}

var ownCheckLimits = []limit[api.ServiceCheck]{
	{"check address_mode", "that is for services; leave it out", nil,
		func(c *api.ServiceCheck) bool { return c.AddressMode != "auto" }},
}

// checkOnUpdateLimits are about a check with the check_restart that it has from its service.
var checkOnUpdateLimits = []limit[api.ServiceCheck]{
	{"on_update", "a check that is ignored can't have check_restart, which would restart its task all the same", nil,
		func(c *api.ServiceCheck) bool { return c.OnUpdate != api.OnUpdateIgnore || c.CheckRestart == nil }},
}

var checkRestartLimits = []limit[api.CheckRestart]{
	atLeast[api.CheckRestart]("check_restart limit", 0),
	atLeast[api.CheckRestart]("check_restart grace", time.Duration(0)),
}

// signalName returns the limit for the name of a signal, with SIG or without.
func signalName[T any](feature string) limit[T] {
	return limit[T]{feature, "it must be a signal such as SIGTERM, or left out", nil, func(t *T) bool {
		name, ok := valueOf(t, feature)
		return !ok || name.String() == "" || signals.InJobFile(name.String())
	}}
}

// taskPaths are the directories of a task, and the socket in one of them: no file of a job's can have their names.
var taskPaths = []string{".", "local", "private", "secrets", "tmp", "secrets/api.sock"}
