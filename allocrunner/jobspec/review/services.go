package review

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/services"
	"taskapi/internal/ptr"
)

// service reviews a service of a task, or of the group when task is nil.
func (r *reviewer) service(s *api.Service, task *api.Task) {
	apply(r, serviceRows, s)
	restrict(r, serviceLimits, s)
	if s.TaskName != "" && !r.hasTask(s.TaskName) {
		r.refuse("service task", "the group has no task %q", s.TaskName)
	}
	owner := cmp.Or(task, &api.Task{}).Name
	id := services.ID("", ptr.Deref(r.group.Name), owner, s.Name, s.PortLabel)
	if r.services[id] {
		r.refuse("service name", "another service has this name and port; one of them must differ")
	}
	r.services[id] = true
	consul := asksForConsul(s)
	switch {
	case consul && r.host.Consul != HasConsul:
		apply(r, noConsulServiceRows, s)
		return // the rest of the block depends on the choice
	case consul:
		restrict(r, consulServiceLimits, s)
	default:
		apply(r, nomadServiceRows, s)
	}
	restrict(r, registeredServiceLimits, s)
	r.portLabel("service port", s.PortLabel, owner)
	r.checkRestart(s.CheckRestart, nil)
	names := map[string]bool{}
	for i := range s.Checks {
		check := &s.Checks[i]
		name := check.Name
		if name == services.DefaultCheckName(s.Name) {
			name = "" // as in the job file
		}
		r.in("check", name, func() {
			if names[check.Name] && task != nil {
				r.refuse("check name", "another check of the service has it; give each its own")
			}
			r.check(check, s, task)
		})
		names[check.Name] = true
	}
}

// oneProvider refuses services of both providers in one group.
func (r *reviewer) oneProvider() {
	consul, nomad := false, false
	for _, s := range services.Of(r.group) {
		consul = consul || asksForConsul(s)
		nomad = nomad || s.Provider == services.ProviderNomad
	}
	if consul && nomad {
		r.refuse("service provider", "the group has services of both providers; give all of them one")
	}
}

func (r *reviewer) hasTask(name string) bool {
	return anyTask(r.group, func(t *api.Task) bool { return t.Name == name })
}

func (r *reviewer) check(c *api.ServiceCheck, s *api.Service, task *api.Task) {
	limits := checkLimits
	if asksForConsul(s) {
		limits = consulCheckLimits
	} else {
		apply(r, nomadCheckRows, c)
	}
	apply(r, checkRows, c)
	owner := cmp.Or(task, &api.Task{}).Name
	whole := services.Resolver{}.Resolve(owner, s).Check(*c)
	restrict(r, limits, &whole)
	restrict(r, ownCheckLimits, c)
	restrict(r, checkOnUpdateLimits, &whole)
	switch {
	case task != nil && c.TaskName != "" && c.TaskName != task.Name:
		r.refuse("check task", "the check says task %q, and its service is task %q's; leave the check's out",
			c.TaskName, task.Name)
	case c.TaskName != "" && !r.hasTask(c.TaskName):
		r.refuse("check task", "the group has no task %q", c.TaskName)
	}
	if c.Type != services.TypeScript && c.PortLabel == "" && s.PortLabel == "" {
		r.refuse("check port", "neither the check nor its service names a port")
	}
	r.portLabel("check port", c.PortLabel, owner)
	r.checkRestart(c.CheckRestart, s.CheckRestart)
	if whole.CheckRestart != nil && whole.CheckRestart.Limit == 0 {
		r.add(Note, "check_restart", "without a limit above 0 nothing is restarted")
	}
}

// checkRestart reviews a service's block or a check's. What the check has from its service is the service's finding.
func (r *reviewer) checkRestart(own, service *api.CheckRestart) {
	if own != nil && service != nil {
		own = new(*own)
		if own.Limit == service.Limit {
			own.Limit = 0
		}
		if ptr.Deref(own.Grace) == ptr.Deref(service.Grace) {
			own.Grace = nil
		}
	}
	restrict(r, checkRestartLimits, own)
}

// portLabel refuses a label that no port of the group or of a service's task has. A reference is known only at run
// time.
func (r *reviewer) portLabel(feature, label, task string) {
	if label == "" || strings.Contains(label, "${") {
		return
	}
	ports := interfaces.Ports(interfaces.Networks(r.group))
	if _, ok := services.FindPort(task, label, ports); !ok {
		there := "the group has no port"
		if len(ports) > 0 {
			there = "the group has"
			for _, p := range ports {
				there += fmt.Sprintf(" %q", p.Label)
			}
		}
		r.refuse(feature, "it is %q; %s: %s", label, services.PortWords, there)
	}
}
