// Package services resolves the services of an allocation: their names, addresses and checks, with the values of the
// references in their text. It says which checks can be run, and runs none.
package services

import (
	"cmp"
	"fmt"
	"iter"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// ProviderNomad is Nomad's own registry.
const ProviderNomad = "nomad"

// Resolver resolves references and port labels.
type Resolver struct {
	// Replace interpolates text with the environment of a task, or of the allocation for the empty name. With nil, text
	// does not change.
	Replace func(task, s string) string

	// Ports are the group's and those of its tasks, with the labels of interfaces.Networks.
	Ports []api.PortMapping

	// Job and Group are the values of ${JOB}, ${TASKGROUP} and ${BASE} in the name of a service. Without Job, such
	// references stay.
	Job, Group string

	// HostIP is the address of a port that is given as a number; empty is 127.0.0.1.
	HostIP string
}

// Of yields the services of a group, each with its owner: a task, or the group for the empty name. It leaves out null
// entries.
func Of(group *api.TaskGroup) iter.Seq2[string, *api.Service] {
	return func(yield func(string, *api.Service) bool) {
		for _, t := range append([]*api.Task{{Services: group.Services}}, group.Tasks...) {
			for _, s := range cmp.Or(t, &api.Task{}).Services {
				if s != nil && !yield(t.Name, s) {
					return
				}
			}
		}
	}
}

// Service is a service with its text resolved.
type Service struct {
	Task string // the owner; empty for the group
	Name string

	written  *api.Service
	resolver Resolver
}

// Resolve resolves a service of a task, or of the group for the empty name.
func (r Resolver) Resolve(task string, s *api.Service) Service {
	return Service{Task: task, Name: r.text(task, r.name(task, s.Name)), written: s, resolver: r}
}

// name replaces the references that Nomad's servers replace in the name of a service, before a client interpolates it.
func (r Resolver) name(task, name string) string {
	if r.Job == "" || !strings.Contains(name, "${") {
		return name
	}
	task = cmp.Or(task, "group")
	return strings.NewReplacer("${JOB}", r.Job, "${TASKGROUP}", r.Group, "${TASK}", task, "${BASE}",
		r.Job+"-"+r.Group+"-"+task).Replace(name)
}

func (r Resolver) text(task, s string) string {
	if r.Replace == nil {
		return s
	}
	return r.Replace(task, s)
}

// AddDefaults names the service's task, and checks without a name. It replaces the references in the service's name
// that only a server knows. task is empty for a service of the group.
func AddDefaults(s *api.Service, job, group, task string) {
	s.TaskName = cmp.Or(s.TaskName, task)
	resolved := Resolver{Job: job, Group: group}.Resolve(task, s)
	s.Name = resolved.Name
	for i := range s.Checks {
		check, full := &s.Checks[i], resolved.Check(s.Checks[i])
		check.Name, check.TaskName = full.Name, cmp.Or(check.TaskName, full.TaskName)
	}
}

func (s Service) text(v string) string { return s.resolver.text(s.Task, v) }

// DefaultCheckName returns Nomad's name for a check without one.
func DefaultCheckName(service string) string { return fmt.Sprintf("service: %q check", service) }

// Check returns a check of the service with its text resolved, and with the attributes that it takes from its service.
func (s Service) Check(c api.ServiceCheck) api.ServiceCheck {
	for _, field := range []*string{
		&c.Name, &c.Type, &c.Command, &c.Path, &c.Protocol, &c.PortLabel, &c.Method, &c.Body, &c.TLSServerName,
		&c.InitialStatus, &c.Notes, &c.GRPCService,
	} {
		*field = s.text(*field)
	}
	c.Name = cmp.Or(c.Name, DefaultCheckName(s.Name))
	headers := make(map[string][]string, len(c.Header))
	for key, values := range c.Header {
		for _, v := range values {
			headers[s.text(key)] = append(headers[s.text(key)], s.text(v))
		}
	}
	c.Args, c.Header = s.texts(c.Args), headers
	c.TaskName = cmp.Or(s.Task, c.TaskName, s.written.TaskName)
	c.CheckRestart = s.written.CheckRestart.Merge(c.CheckRestart).Copy()
	c.OnUpdate = cmp.Or(c.OnUpdate, s.written.OnUpdate, api.OnUpdateRequireHealthy)
	return c
}
