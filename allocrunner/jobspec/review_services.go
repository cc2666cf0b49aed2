package jobspec

import (
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/checks"
)

// minCheckTime is the shortest interval and timeout of a check that Nomad takes.
const minCheckTime = time.Second

// checkScript is the type of a check that runs a command.
const checkScript = "script"

// service reviews a service of a task, or of the group when task is nil.
func (r *reviewer) service(s *api.Service, task *api.Task) {
	apply(r, serviceRows, s)
	if s.TaskName != "" && !r.hasTask(s.TaskName) {
		r.refuse("service task", "the group has no task %q", s.TaskName)
	}
	if s.Provider != "nomad" {
		return // it is not registered, and what it says has no effect: serviceRows say so
	}
	apply(r, nomadServiceRows, s)
	r.portLabel("service port", s.PortLabel, s.Address != "")
	r.checkRestart(s.CheckRestart, nil)
	for i := range s.Checks {
		check := &s.Checks[i]
		r.in("check", check.Name, func() { r.check(check, s, task) })
	}
}

func (r *reviewer) hasTask(name string) bool {
	return anyTask(r.group, func(t *api.Task) bool { return t.Name == name })
}

func (r *reviewer) check(c *api.ServiceCheck, s *api.Service, task *api.Task) {
	apply(r, checkRows, c)
	r.checkTime("check interval", c.Interval)
	r.checkTime("check timeout", c.Timeout)
	r.checkTask(c, s, task)
	if c.Type != checkScript && c.PortLabel == "" && s.PortLabel == "" {
		r.refuse("check port", "neither the check nor its service names a port")
	}
	r.portLabel("check port", c.PortLabel, false)
	r.checkText("check method", c.Method, checks.ValidMethod)
	if c.Type == "http" {
		r.checkText("check path", c.Path, checks.ValidPath)
	}
	r.checkNegative("success_before_passing", int64(c.SuccessBeforePassing))
	r.checkNegative("failures_before_critical", int64(c.FailuresBeforeCritical))
	r.checkRestart(c.CheckRestart, s.CheckRestart)
	if merged := s.CheckRestart.Merge(c.CheckRestart); merged != nil && merged.Limit == 0 {
		r.add(Note, "check_restart", "without a limit above 0 nothing is restarted")
	}
}

// checkText refuses what the set-up of the checks would. Text with a reference is known only then.
func (r *reviewer) checkText(feature, s string, valid func(string) error) {
	if strings.Contains(s, "${") {
		return
	}
	if err := valid(s); err != nil {
		r.refuse(feature, "%v", err)
	}
}

// checkTask refuses a task that is not there or not the service's, and a script check without any.
func (r *reviewer) checkTask(c *api.ServiceCheck, s *api.Service, task *api.Task) {
	switch {
	case task != nil && c.TaskName != "" && c.TaskName != task.Name:
		r.refuse("check task", "the check says task %q, and its service is task %q's; leave the check's out", c.TaskName, task.Name)
	case c.TaskName != "" && !r.hasTask(c.TaskName):
		r.refuse("check task", "the group has no task %q", c.TaskName)
	case c.Type == checkScript && task == nil && c.TaskName == "" && s.TaskName == "":
		r.refuse("check task", "a script runs in a task: a check of a group's service must name it with task, or be in a task's service")
	}
}

// checkRestart reviews a service's block or a check's. What the check has from its service is the service's finding.
func (r *reviewer) checkRestart(own, service *api.CheckRestart) {
	if own == nil {
		return
	}
	inherited := deref(service)
	if inherited.Limit != own.Limit {
		r.checkNegative("check_restart limit", int64(own.Limit))
	}
	if deref(inherited.Grace) != deref(own.Grace) {
		r.checkNegative("check_restart grace", int64(deref(own.Grace)))
	}
}

func (r *reviewer) checkTime(feature string, d time.Duration) {
	switch {
	case d == 0:
		r.refuse(feature, "it is needed, and at least %s", minCheckTime)
	case d < minCheckTime:
		r.refuse(feature, "it is %s; at least %s is needed", d, minCheckTime)
	}
}

// portLabel refuses a label that no port of the group has. A number is a port itself; a reference is known only at run time.
func (r *reviewer) portLabel(feature, label string, free bool) {
	if label == "" || free || strings.Contains(label, "${") {
		return
	}
	if n, err := strconv.Atoi(label); err == nil {
		if n < 1 || n > 65535 {
			r.refuse(feature, "port %d is not 1 to 65535", n)
		}
		return
	}
	for _, n := range r.group.Networks {
		if n != nil && hasPort(n, label) {
			return
		}
	}
	r.refuse(feature, "the group's network has no port %q", label)
}

func hasPort(n *api.NetworkResource, label string) bool {
	for _, ports := range [][]api.Port{n.ReservedPorts, n.DynamicPorts} {
		for _, p := range ports {
			if p.Label == label {
				return true
			}
		}
	}
	return false
}
