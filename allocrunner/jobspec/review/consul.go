package review

import (
	"cmp"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/services"
	"taskapi/internal/ptr"
)

// This file is the part of the table that is about Consul: what a job may ask of it depends on whether an agent is
// configured.

// noConsulWords name both remedies.
const noConsulWords = "no agent of Consul is configured: give its address with the setting consul.address or " +
	"CONSUL_HTTP_ADDR, or have these services and their checks served here with consul.enabled=false"

// asksForConsul reports whether a service is for Consul, which is Nomad's default.
func asksForConsul(s *api.Service) bool {
	return s.Provider == "" || s.Provider == api.ServiceProviderConsul
}

// ServeHere gives the services of a job that are for Consul the provider "nomad". It changes the job.
func ServeHere(job *api.Job) {
	for _, g := range job.TaskGroups {
		for _, s := range services.Of(cmp.Or(g, &api.TaskGroup{})) {
			if asksForConsul(s) {
				s.Provider = services.ProviderNomad
			}
		}
	}
}

// pick returns the rows about services that ask for Consul.
func pick[T any](r *reviewer, rows map[Consul][]row[T]) []row[T] { return rows[r.host.Consul] }

const servedHereWords = "with consul.enabled=false the group's services are served here, so it has no effect"

var consulJobRows = map[Consul][]row[api.Job]{
	NoConsul:   {{"consul_namespace", Refused, noConsulWords, hasConsulNamespace}},
	ConsulHere: {{"consul_namespace", Warning, servedHereWords, hasConsulNamespace}},
}

func hasConsulNamespace(j *api.Job) bool { return ptr.Deref(j.ConsulNamespace) != "" }

var consulGroupRows = map[Consul][]row[api.TaskGroup]{
	NoConsul:   {{"consul", Refused, noConsulWords, nil}},
	ConsulHere: {{"consul", Warning, servedHereWords, nil}},
}

const taskConsulWords = "a task gets no token of Consul; where its services are registered, the group's block says"

var consulTaskRows = map[Consul][]row[api.Task]{
	NoConsul:   {{"consul", Refused, noConsulWords, nil}},
	HasConsul:  {{"consul", Warning, taskConsulWords, nil}},
	ConsulHere: {{"consul", Warning, servedHereWords, nil}},
}

const clusterWords = `it must be "default", or left out: there is one agent`

// taskConsul reviews the consul block of a task.
func (r *reviewer) taskConsul(c *api.Consul) {
	if c == nil || r.host.Consul != HasConsul {
		return
	}
	restrict(r, consulLimits, c)
	if g := r.group.Consul; g != nil && g.Partition != "" && c.Partition != "" && g.Partition != c.Partition {
		r.refuse("consul partition", "it is %q; it must be the group's, %q", c.Partition, g.Partition)
	}
}

var consulLimits = []limit[api.Consul]{
	{"cluster", clusterWords, nil, func(c *api.Consul) bool { return isDefault(c.Cluster) }},
}

func isDefault(cluster string) bool { return cluster == "" || cluster == "default" }

// noConsulServiceRows are about services that ask for Consul where no agent is configured.
var noConsulServiceRows = []row[api.Service]{
	{"service provider", Refused, `write provider = "nomad" into this block, and it is served here. A service without ` +
		`a provider is for Consul, and ` + noConsulWords, asksForConsul},
}

// consulServiceLimits are about services that an agent of Consul registers.
var consulServiceLimits = []limit[api.Service]{
	{"service kind", "it must be left out: there is no service mesh", nil,
		func(s *api.Service) bool { return s.Kind == "" }},
	{"service cluster", clusterWords, nil, func(s *api.Service) bool { return isDefault(s.Cluster) }},
	{"tagged_addresses", "each must be an IP address, or a host and a port such as 192.0.2.1:80", nil,
		func(s *api.Service) bool {
			for _, address := range s.TaggedAddresses {
				if _, _, err := services.TaggedAddress(address, 0); err != nil && !hasReference(address) {
					return false
				}
			}
			return true
		}},
	{"service address", "it must be one that others can connect to", nil,
		func(s *api.Service) bool { ip := net.ParseIP(s.Address); return ip == nil || !ip.IsUnspecified() }},
	{"service meta", metaWords, nil, func(s *api.Service) bool { return validMeta(s.Meta) }},
	{"service canary_meta", metaWords, nil, func(s *api.Service) bool { return validMeta(s.CanaryMeta) }},
	{"service weights", "they must be from 0 to 65535, and passing at least 1", nil,
		func(s *api.Service) bool {
			w := s.Weights
			return w == nil || w.Passing >= 1 && w.Passing <= 65535 && w.Warning >= 0 && w.Warning <= 65535
		}},
}

// What an agent takes as metadata of a service, less the pairs that a registration has of ours.
const (
	metaWords = "it must have at most 60 keys, each of 1 to 128 letters, digits, - and _ that do not begin with " +
		"consul-, and values of at most 512 bytes"
	maxMeta       = 60
	maxMetaKey    = 128
	maxMetaValue  = 512
	metaKeyLetter = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
)

// validMeta reports whether an agent takes metadata. A reference is known only at run time.
func validMeta(meta map[string]string) bool {
	for key, value := range meta {
		isKey := key != "" && len(key) <= maxMetaKey && strings.Trim(key, metaKeyLetter) == "" &&
			!strings.HasPrefix(key, "consul-")
		if !isKey && !hasReference(key) || len(value) > maxMetaValue && !hasReference(value) {
			return false
		}
	}
	return len(meta) <= maxMeta
}

// consulCheckLimits are about checks of services that an agent of Consul registers.
var consulCheckLimits = slices.Concat(ruleLimits(services.ConsulCheckRules), timeLimits(), []limit[api.ServiceCheck]{
	atLeast[api.ServiceCheck]("failures_before_warning", 0),
	{"failures_before_warning", "it must be at most failures_before_critical", nil,
		func(c *api.ServiceCheck) bool { return c.FailuresBeforeWarning <= c.FailuresBeforeCritical }},
	{"check notes", "they must have at most 255 bytes", nil,
		func(c *api.ServiceCheck) bool { return len(c.Notes) <= 255 }},
	{"on_update", "\"ignore_warnings\" needs ignore_warnings = true in check_restart, which would restart its task all " +
		"the same", nil, func(c *api.ServiceCheck) bool {
		return c.OnUpdate != api.OnUpdateIgnoreWarn || c.CheckRestart == nil || c.CheckRestart.IgnoreWarnings
	}},
	noThreshold("success_before_passing"),
	noThreshold("failures_before_critical"),
	noThreshold("failures_before_warning"),
})

// noThreshold returns the limit for a threshold, which Consul's script checks don't have.
func noThreshold(feature string) limit[api.ServiceCheck] {
	return limit[api.ServiceCheck]{feature, "it must be left out of a script check of Consul's", nil,
		func(c *api.ServiceCheck) bool {
			number, _ := valueOf(c, feature)
			return c.Type != services.TypeScript || number.Int() == 0
		}}
}

// timeLimits returns what Nomad takes for times and numbers of any check.
func timeLimits() []limit[api.ServiceCheck] {
	return []limit[api.ServiceCheck]{
		atLeast[api.ServiceCheck]("check interval", time.Second),
		atLeast[api.ServiceCheck]("check timeout", time.Second),
		among[api.ServiceCheck]("initial_status", "", "passing", "warning", "critical"),
		among[api.ServiceCheck]("on_update", "", api.OnUpdateRequireHealthy, api.OnUpdateIgnoreWarn,
			api.OnUpdateIgnore),
		atLeast[api.ServiceCheck]("success_before_passing", 0),
		atLeast[api.ServiceCheck]("failures_before_critical", 0),
	}
}
