package allocrunner

import (
	"errors"
	"fmt"
	"net"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/ports"
	"taskapi/allocrunner/internal/services"
	"taskapi/allocrunner/jobspec/review"
	"taskapi/allocrunner/taskenv"
	"taskapi/internal/ptr"
)

// CheckTasks finds what the tasks of an allocation's group need and this machine lacks. It refuses a user that this
// process can't become, and a user that can't reach dir, the parent of the allocation's directory. Run refuses them,
// too, before anything starts. A missing user or program is only a warning, since it may be created before its task
// starts. So is a reference that can't be resolved at a task's start. Nothing is started or changed.
func CheckTasks(alloc *api.Allocation, dir string, known *drivers.Registry) []review.Finding {
	node := taskenv.DetectNode(known.Attributes())
	var findings []review.Finding
	for _, t := range alloc.GetTaskGroup().Tasks {
		add := func(severity review.Severity, feature, message string) {
			findings = append(findings, review.Finding{
				Severity: severity, Where: fmt.Sprintf("group %q > task %q", alloc.TaskGroup, t.Name), Feature: feature,
				Message: message,
			})
		}
		user, err := allocdir.LookupUser(t.User)
		if err == nil {
			if err := allocdir.CheckReach(dir, user); err != nil {
				add(review.Refused, "user", err.Error())
			}
		}
		switch {
		case allocdir.CantBecome(err):
			add(review.Refused, "user", err.Error())
		case err != nil:
			add(review.Warning, "user", err.Error()+"; unless it is created before, the task fails to start")
		}
		if user.Name == "" {
			user.Name = t.User
		}
		if reason := missingProgram(alloc, t, user, known, node); reason != "" {
			add(review.Warning, "command", reason+"; unless it is there before, the task fails to start")
		}
		fails, config, env := unresolved(alloc, t, user, node)
		for _, problem := range fails {
			add(review.Warning, "config", problem)
			findings[len(findings)-1].Fails = true
		}
		for _, problem := range config {
			add(review.Warning, "config", problem)
		}
		for _, problem := range env {
			add(review.Warning, "env", problem)
		}
	}
	return findings
}

// checkUsers checks every task before the first one starts, since the work of a prestart task can't be undone.
func (r *Runner) checkUsers() error {
	var errs []error
	for _, t := range r.group().Tasks {
		user, err := r.lookupUser(t)
		switch {
		case err == nil:
			err = allocdir.CheckReach(r.cfg.Dir, user)
		case !allocdir.CantBecome(err): // it may be made before the task starts
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("task %q: %w", t.Name, err))
		}
	}
	return errors.Join(errs...)
}

// missingProgram says why a task's program is missing; empty when it is there, or when that is known only at the start.
func missingProgram(
	alloc *api.Allocation, t *api.Task, user interfaces.User, known *drivers.Registry, node api.Node,
) string {
	d, err := known.Get(t.Driver)
	if check, ok := d.(drivers.Precheck); ok && err == nil {
		env := taskenv.New(taskenv.Config{Alloc: alloc, Node: node}).WithTask(taskenv.Task{Task: t, User: user})
		return check.Missing(drivers.Task{Task: t, User: user, Env: env})
	}
	return ""
}

// CheckPorts finds the ports of a group that are not available now, and a service that nobody could reach at hostIP. It
// reserves none. describe says which allocation has a directory and what can be done about it.
func CheckPorts(group *api.TaskGroup, hostIP string, describe func(dir string) string) []review.Finding {
	found := review.Finding{Severity: review.Refused, Where: fmt.Sprintf("group %q", ptr.Deref(group.Name))}
	reservation, err := ports.Allocate(ports.Config{Networks: interfaces.Networks(group), HostIP: hostIP,
		Left: ProcessesLeft})
	if err != nil {
		if errors.Is(err, ports.ErrTaken) { // perhaps by this very job
			found.Severity = review.Warning
		}
		found.Feature, found.Message = "network", err.Error()
		if taken, ok := errors.AsType[*ports.ReservedError](err); ok && taken.Owner != "" {
			found.Message += ": " + describe(taken.Owner)
		}
		return []review.Finding{found}
	}
	_ = reservation.Close() // it never fails
	if ip := net.ParseIP(hostIP); ip == nil || !ip.IsUnspecified() {
		return nil
	}
	for _, s := range services.Of(group) {
		if s.Address == "" {
			found.Feature, found.Message = "service address", fmt.Sprintf("%s, the setting host_ip, is that of no machine: "+
				"give service %q, or host_ip, an address of this machine", hostIP, s.Name)
			return []review.Finding{found}
		}
	}
	return nil
}
