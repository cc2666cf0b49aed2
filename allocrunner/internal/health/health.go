// Package health decides, once, whether an allocation has become healthy: whether its tasks run and its checks succeed
// without a break for min_healthy_time, before healthy_deadline. It is Nomad's allocation health as a pure function,
// and a Watcher that has the timer. It runs no check, looks at no process, and never reverses a decision.
package health

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/internal/ptr"
)

// Policy says on which tasks and checks an allocation's health depends. It never changes. The zero Policy decides
// nothing.
type Policy struct {
	checks     bool // checks count besides the tasks
	wantChecks bool // the group has checks that count
	minHealthy time.Duration
	deadline   time.Duration
	tasks      []task // the tasks that count, in the file's order
}

// task is a task that counts, and the state that it must have.
type task struct {
	name string
	ends bool // it must be dead and not failed; other tasks must run
}

// For returns the policy of a group of a job. It returns false if the group's health is never decided: in a batch job,
// without an update block, with max_parallel 0, or with health_check "manual". The job must be canonical, so that its
// groups have update blocks.
func For(job *api.Job, group *api.TaskGroup) (Policy, bool) {
	u := group.Update
	kind := ptr.Deref(job.Type)
	if kind != api.JobTypeService && kind != api.JobTypeSystem || u == nil || ptr.Deref(u.MaxParallel) <= 0 {
		return Policy{}, false
	}
	p := Policy{minHealthy: ptr.Deref(u.MinHealthyTime), deadline: ptr.Deref(u.HealthyDeadline)}
	switch ptr.Deref(u.HealthCheck) {
	case "", "checks":
		p.checks = true
	case "task_states":
	default:
		return Policy{}, false
	}
	for _, t := range group.Tasks {
		if at := lifecycle.Of(t); at.Hook != lifecycle.Poststop {
			p.tasks = append(p.tasks, task{t.Name, !at.Serves()})
		}
	}
	p.wantChecks = p.checks && hasChecks(group)
	return p, true
}

// hasChecks reports whether the group has checks that must succeed.
func hasChecks(group *api.TaskGroup) bool {
	any := func(services []*api.Service) bool {
		return slices.ContainsFunc(services, func(s *api.Service) bool {
			return s.Provider == "nomad" && slices.ContainsFunc(s.Checks, func(c api.ServiceCheck) bool {
				return cmp.Or(c.OnUpdate, s.OnUpdate) != api.OnUpdateIgnore
			})
		})
	}
	return any(group.Services) || slices.ContainsFunc(group.Tasks, func(t *api.Task) bool {
		return lifecycle.Of(t).Serves() && any(t.Services)
	})
}

// Event is the present state of an allocation. Each change makes another Event. A check whose Mode is "readiness" does
// not count.
type Event struct {
	Tasks   map[string]*api.TaskState
	Unready map[string]bool // tasks that run, and have not said yet that they are ready
	Checks  api.AllocCheckStatuses
}

// Phase is an allocation's health. Healthy and Unhealthy are decisions, and stay.
type Phase int

const (
	Undecided Phase = iota
	Healthy
	Unhealthy
)

// State is everything that Next remembers. New makes the first one.
type State struct {
	Phase  Phase
	Reason string // of Healthy or Unhealthy: a sentence
	Late   bool   // it is Unhealthy because the deadline has passed
	About  string // the task that was not healthy then; empty if the whole group was not

	deadline time.Time
	healthy  time.Time // since when everything is healthy; zero if something is not
	starts   starts    // the starts of the tasks that were healthy then
	problem  problem   // why something is not healthy
}

// problem names a task or check that is not healthy. The zero problem means that everything is healthy.
type problem struct {
	task  string // empty for the whole group
	check string // its ID; empty for a problem of the task
	text  string
}

// starts changes when a task is started again, even if it was never seen not to run.
type starts struct {
	restarts uint64
	started  int64 // the latest start, in Unix nanoseconds
}

// New returns the state of an allocation that begins at start, from which the deadline is counted.
func (p Policy) New(start time.Time) State {
	return State{deadline: start.Add(p.deadline), problem: problem{text: "nothing is known of its tasks"}}
}

// Next returns the state after a change of the allocation at now. A decision stays.
func (p Policy) Next(s State, e Event, now time.Time) State {
	s = p.At(s, now)
	if s.Phase != Undecided {
		return s
	}
	if name := p.failed(e); name != "" {
		return State{Phase: Unhealthy, Reason: fmt.Sprintf("task %q has failed", name)}
	}
	s.problem = p.problem(e)
	starts := p.starts(e)
	switch {
	case s.problem.text != "":
		s.healthy = time.Time{}
	case s.healthy.IsZero() || s.starts != starts:
		s.healthy = now
	}
	s.starts = starts
	return p.At(s, now)
}

// At returns the state at now if nothing has changed since the latest Next. An allocation that was healthy for long
// enough before the deadline is healthy, even if At is called after the deadline.
func (p Policy) At(s State, now time.Time) State {
	if s.Phase != Undecided {
		return s
	}
	enough := s.healthy.Add(p.minHealthy)
	switch {
	case !s.healthy.IsZero() && !enough.After(now) && !enough.After(s.deadline):
		return State{Phase: Healthy, Reason: fmt.Sprintf("healthy for %v", p.minHealthy)}
	case now.Before(s.deadline):
		return s
	}
	reason := fmt.Sprintf("not healthy for %v without a break within %v", p.minHealthy, p.deadline)
	if s.problem.text != "" {
		reason = fmt.Sprintf("not healthy within %v: %s", p.deadline, s.problem.text)
	}
	return State{Phase: Unhealthy, Reason: reason, Late: true, About: s.problem.task}
}

// Again returns when At may next return another state; zero for never.
func (p Policy) Again(s State) time.Time {
	if s.Phase != Undecided {
		return time.Time{}
	}
	if enough := s.healthy.Add(p.minHealthy); !s.healthy.IsZero() && enough.Before(s.deadline) {
		return enough
	}
	return s.deadline
}

// failed returns the name of a task that has failed for good; empty for none.
func (p Policy) failed(e Event) string {
	for _, t := range p.tasks {
		if s := e.Tasks[t.name]; s != nil && s.State == "dead" && s.Failed {
			return t.name
		}
	}
	return ""
}

// Problem returns why an allocation is not healthy, and the task and the ID of the check that this is about. The text
// is empty if it is healthy.
func (p Policy) Problem(e Event) (text, task, check string) {
	first := p.problem(e)
	return first.text, first.task, first.check
}

// problem returns the first problem.
func (p Policy) problem(e Event) problem {
	for _, t := range p.tasks {
		state := "pending"
		if s := e.Tasks[t.name]; s != nil {
			state = s.State
		}
		if t.ends && state != "dead" {
			return problem{task: t.name, text: fmt.Sprintf("task %q is %s and has not ended", t.name, state)}
		}
		if !t.ends && state != "running" {
			return problem{task: t.name, text: fmt.Sprintf("task %q is %s", t.name, state)}
		}
		if !t.ends && e.Unready[t.name] {
			return problem{task: t.name, text: fmt.Sprintf("task %q has not said that it is ready", t.name)}
		}
	}
	if !p.checks {
		return problem{}
	}
	return p.checkProblem(e.Checks)
}

func (p Policy) checkProblem(checks api.AllocCheckStatuses) problem {
	if p.wantChecks && len(checks) == 0 {
		return problem{text: "its checks have no results"}
	}
	first := "" // the lowest ID, so that the same results always have the same problem
	for id, c := range checks {
		if c.Mode != "readiness" && c.Status != "success" && p.mustRun(c.Task) && (first == "" || id < first) {
			first = id
		}
	}
	if first == "" {
		return problem{}
	}
	c := checks[first]
	return problem{c.Task, first,
		fmt.Sprintf("check %s of service %q is %s", interfaces.Quote(c.Check), c.Service, c.Status)}
}

// mustRun reports whether the checks of a task, or of the group for the empty name, must succeed.
func (p Policy) mustRun(name string) bool {
	return name == "" || slices.ContainsFunc(p.tasks, func(t task) bool { return t.name == name && !t.ends })
}

func (p Policy) starts(e Event) starts {
	var l starts
	for _, t := range p.tasks {
		if s := e.Tasks[t.name]; s != nil && !t.ends {
			l.restarts += s.Restarts
			if !s.StartedAt.IsZero() {
				l.started = max(l.started, s.StartedAt.UnixNano())
			}
		}
	}
	return l
}
