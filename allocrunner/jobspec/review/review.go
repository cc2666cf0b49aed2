// Package review lists the parts of a job that one machine without a cluster can't honour: those that it refuses, those
// that it ignores, and those that have no meaning here. It promises to mention every request of a job that will not be
// carried out.
package review

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/devices"
	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/jobspec"
	"taskapi/allocrunner/templates/render"
	"taskapi/allocrunner/volumes"
	"taskapi/internal/ptr"
)

// Severity is the consequence of a finding for running the job.
type Severity string

const (
	Refused Severity = "refused" // the job can't run as it is written
	Warning Severity = "warning" // it runs, and something it asks for does not happen
	Note    Severity = "note"    // it runs, and something it says has no meaning on one machine
)

// Finding is one thing about a job that the operator should know before it runs.
type Finding struct {
	Severity Severity
	Where    string // `group "web" > task "x"`, or `job`
	Feature  string // what it is about, in the words of the job specification: "artifact", "network mode"
	Argument string // the name of an argument in a config block, if the finding is about one; else empty
	Message  string // what happens, and what to do
	Fails    bool   // the job starts all the same, and the task fails then
}

func (f Finding) String() string { return f.At("") }

// At returns the finding as a line for people. place is where the job file has it, such as "x.nomad.hcl:3", or empty.
func (f Finding) At(place string) string { return string(f.Severity) + ": " + f.Line(place) }

// Line is At without the severity.
func (f Finding) Line(place string) string {
	if place != "" {
		place += ": "
	}
	return fmt.Sprintf("%s%s: %s: %s", place, f.Where, f.Feature, f.Message)
}

// The errors of choosing a group.
var (
	ErrNoGroup       = errors.New("the job has no group")
	ErrGroupNotNamed = errors.New("the job has several groups")
	ErrUnknownGroup  = errors.New("the job has no such group")
)

// AnyRefused reports that a job can't run.
func AnyRefused(findings []Finding) bool {
	return slices.ContainsFunc(findings, func(f Finding) bool { return f.Severity == Refused })
}

// Host describes the machine that runs a job.
type Host struct {
	Drivers *drivers.Registry // those that tasks may name
	Consul  Consul
	Volumes []volumes.Volume // those that jobs may use

	FileDirs []string         // the directories that artifacts may be copied from; absolute
	Programs []render.Program // that are configured, for templates and the vault blocks of tasks

	// Audiences and LongestTTL are those of the tokens that the API takes. The zero LongestTTL is no bound.
	Audiences  []string
	LongestTTL time.Duration
	// ExtraClaims are the names of the claims that identities may ask for. Issues returns why no token of an identity can
	// be issued; nil if one can. Nil for a machine that issues any.
	ExtraClaims []string
	Issues      func(*api.Job, *api.TaskGroup, *api.Task, *api.WorkloadIdentity) error

	// Unlimited returns why the memory and the CPU of tasks are not limited here; nil if they are. It is called if a job
	// has limits; nil for a machine that sets them.
	Unlimited func() error
	// Unpinned returns why tasks are not kept on their cores here; nil if they are. Nil for a machine that does so.
	Unpinned func() error
}

// Consul says who serves services for Consul, which name it as their provider or name none.
type Consul int

const (
	NoConsul   Consul = iota // nothing can: no agent of Consul is configured
	HasConsul                // an agent registers them
	ConsulHere               // they have been given the provider "nomad", by ServeHere
)

// Group chooses the group to run, by its name or, when group is empty, the only one, and says everything about the job
// and that group that will not happen as written. The errors are ErrNoGroup, ErrGroupNotNamed, ErrUnknownGroup and
// jobspec.ErrInvalid, wrapped with the names that there are. job may be any value, canonical or not.
func Group(job *api.Job, group string, host Host) (*api.TaskGroup, []Finding, error) {
	chosen, err := chooseGroup(job, group)
	if err != nil {
		return nil, nil, err
	}
	r := newReviewer(job, chosen, host)
	r.jobLevel()
	r.schedulerNote()
	r.groupLevel()
	return chosen, r.findings, nil
}

func newReviewer(job *api.Job, group *api.TaskGroup, host Host) *reviewer {
	return &reviewer{job: job, group: group, host: host, services: map[string]bool{}}
}

// Job reviews every group of the job that can be chosen, and returns each finding once, and the groups. Errors: those
// of Group.
func Job(job *api.Job, host Host) ([]*api.TaskGroup, []Finding, error) {
	if _, err := chooseGroup(job, ""); err != nil && !errors.Is(err, ErrGroupNotNamed) {
		return nil, nil, err
	}
	ofJob := newReviewer(job, nil, host)
	ofJob.jobLevel()
	all := ofJob.findings
	seen := map[Finding]bool{}
	var groups []*api.TaskGroup
	for _, g := range job.TaskGroups {
		if g == nil {
			continue
		}
		groups = append(groups, g)
		r := newReviewer(job, g, host)
		r.schedulerNote()
		r.groupLevel()
		for _, f := range r.findings {
			if !seen[f] {
				all = append(all, f)
			}
			seen[f] = true
		}
	}
	return groups, all, nil
}

func chooseGroup(job *api.Job, name string) (*api.TaskGroup, error) {
	if job == nil {
		return nil, fmt.Errorf("%w: there is no job", jobspec.ErrInvalid)
	}
	var groups []*api.TaskGroup
	var names []string
	for _, g := range job.TaskGroups {
		if g != nil {
			groups = append(groups, g)
			names = append(names, fmt.Sprintf("%q", ptr.Deref(g.Name)))
		}
	}
	switch {
	case len(groups) == 0:
		return nil, fmt.Errorf("%w: a job needs group %q { task ... }", ErrNoGroup, "name")
	case len(slices.Compact(slices.Sorted(slices.Values(names)))) < len(names):
		return nil, fmt.Errorf("%w: two groups of a job have one name: %s; give each its own", jobspec.ErrInvalid,
			strings.Join(names, ", "))
	case name == "" && len(groups) > 1:
		return nil, fmt.Errorf("%w, and one allocation runs one of them: %s", ErrGroupNotNamed,
			strings.Join(names, ", "))
	case name == "":
		return groups[0], nil
	}
	for _, g := range groups {
		if ptr.Deref(g.Name) == name {
			return g, nil
		}
	}
	return nil, fmt.Errorf("%w %q; there is %s", ErrUnknownGroup, name, strings.Join(names, ", "))
}

// reviewer collects findings on the way down through the job.
type reviewer struct {
	job      *api.Job
	group    *api.TaskGroup
	host     Host
	path     []string
	findings []Finding
	services map[string]bool // IDs
}

// in calls f with one more step in the path: in("task", "x", f). A check may have no name.
func (r *reviewer) in(kind, name string, f func()) {
	step := kind
	if name != "" {
		step += fmt.Sprintf(" %q", name)
	}
	r.path = append(r.path, step)
	f()
	r.path = r.path[:len(r.path)-1]
}

func (r *reviewer) add(severity Severity, feature, format string, args ...any) {
	where := cmp.Or(strings.Join(r.path, " > "), "job")
	r.findings = append(r.findings, Finding{Severity: severity, Where: where, Feature: feature,
		Message: fmt.Sprintf(format, args...)})
}

func (r *reviewer) refuse(feature, format string, args ...any) {
	r.add(Refused, feature, format, args...)
}

func (r *reviewer) jobLevel() {
	apply(r, jobRows, r.job)
	apply(r, pick(r, consulJobRows), r.job)
	restrict(r, jobLimits, r.job)
	restrict(r, uiLimits, r.job.UI)
	r.placement(r.job.Constraints, r.job.Affinities, r.job.Spreads)
	r.checkJobName()
	r.parent()
	r.checkPart("region", ptr.Deref(r.job.Region))
	r.checkPart("namespace", ptr.Deref(r.job.Namespace))
	r.environment("meta", r.job.Meta)
	eachNamed(r, "group", "groups", r.job.TaskGroups, func(g *api.TaskGroup) string { return ptr.Deref(g.Name) },
		func(*api.TaskGroup) {})
}

// each calls f with each part that is not null, and refuses those that are.
func each[T any](r *reviewer, kind string, parts []*T, f func(*T)) {
	for _, part := range parts {
		switch {
		case part != nil:
			f(part)
		case strings.ContainsRune("aeiou", rune(kind[0])):
			r.refuse(kind, "an %s is null; leave it out", kind)
		default:
			r.refuse(kind, "a %s is null; leave it out", kind)
		}
	}
}

// eachNamed is each for parts of different names: it also refuses a name that an earlier part has.
func eachNamed[T any](r *reviewer, kind, plural string, parts []*T, name func(*T) string, f func(*T)) {
	seen := map[string]bool{}
	each(r, kind, parts, func(part *T) {
		if seen[name(part)] {
			r.refuse(kind, "there are two %s of the name %q; give each a name of its own", plural, name(part))
		}
		seen[name(part)] = true
		f(part)
	})
}

func (r *reviewer) groupLevel() {
	g := r.group
	r.in("group", ptr.Deref(g.Name), func() {
		r.checkName("group", ptr.Deref(g.Name))
		apply(r, groupRows, g)
		apply(r, pick(r, consulGroupRows), g)
		restrict(r, groupLimits, g)
		if g.Consul != nil && r.host.Consul == HasConsul {
			restrict(r, consulLimits, g.Consul)
		}
		r.environment("meta", g.Meta)
		r.networks(g.Networks)
		r.portsTogether()
		r.volumes()
		r.reviewServices(g.Services, nil)
		r.oneProvider()
		r.restart(g.RestartPolicy)
		restrict(r, updateLimits, g.Update)
		r.scheduling()
		restrict(r, diskLimits, g.EphemeralDisk)
		r.tasks()
	})
	r.resourcesNote()
}

func (r *reviewer) tasks() {
	all, mains, leaders := 0, 0, 0
	eachNamed(r, "task", "tasks", r.group.Tasks, func(t *api.Task) string { return t.Name }, func(t *api.Task) {
		all++
		if t.Lifecycle == nil {
			mains++
		}
		if t.Leader {
			leaders++
		}
		r.in("task", t.Name, func() { r.task(t) })
	})
	if all == 0 {
		r.refuse("task", `the group has no task; it needs at least one: task "name" { ... }`)
	} else if mains == 0 {
		r.refuse("lifecycle", "every task has a lifecycle block; at least one must have none and so be a main task")
	}
	if leaders > 1 {
		r.refuse("leader", "%d tasks are leaders; only one can be", leaders)
	}
}

func (r *reviewer) task(t *api.Task) {
	r.checkTaskName(t.Name)
	if err := r.host.Drivers.Check(drivers.Task{Task: t}); err != nil {
		unknown, ok := errors.AsType[*drivers.UnknownError](err)
		if ok && unknown.Name != "" && slices.Contains(unknown.Known, "raw_exec") {
			err = fmt.Errorf("%w; raw_exec runs a program of this machine, the command of the task's config", err)
		}
		r.refuse("driver", "%v", err)
	} else if err := r.host.Drivers.Validate(t); err != nil {
		r.refuse("config", "%v", err)
		if about, ok := errors.AsType[*drivers.ArgumentError](err); ok {
			r.findings[len(r.findings)-1].Argument = about.Argument
		}
	}
	apply(r, taskRows, t)
	apply(r, pick(r, consulTaskRows), t)
	if slices.Contains(r.host.Programs, render.Vault) && t.Vault != nil {
		apply(r, vaultRows, t.Vault)
		restrict(r, vaultLimits, t.Vault)
	} else {
		apply(r, noVaultRows, t)
	}
	restrict(r, taskLimits, t)
	r.killTimeout(t)
	r.placement(t.Constraints, t.Affinities, nil)
	each(r, "constraint", t.Constraints, func(c *api.Constraint) {
		r.in("constraint", c.LTarget, func() { restrict(r, taskConstraintLimits, c) })
	})
	r.taskConsul(t.Consul)
	if t.Resources != nil {
		apply(r, resourceRows, t.Resources)
		restrict(r, resourceLimits, t.Resources)
		r.networks(t.Resources.Networks)
		for _, d := range t.Resources.Devices {
			if err := devices.CheckRequest(d); err != nil {
				r.refuse("resources device", "%v", err)
			}
		}
	}
	r.environment("env", t.Env)
	r.environment("meta", t.Meta)
	r.readiness(t)
	r.schedule(t)
	restrict(r, lifecycleLimits, t.Lifecycle)
	r.reviewServices(t.Services, t)
	r.restart(t.RestartPolicy)
	restrict(r, logsLimits, t.LogConfig)
	r.logSpace(t.LogConfig)
	r.identities(t)
	r.dispatchPayload(t)
	r.mounts(t)
	r.artifacts(t)
	r.templates(t)
	eachNamed(r, "action", "actions", t.Actions, func(a *api.Action) string { return a.Name }, func(a *api.Action) {
		r.in("action", a.Name, func() { restrict(r, actionLimits, a) })
	})
}

func (r *reviewer) networks(networks []*api.NetworkResource) {
	if len(networks) > 1 {
		r.refuse("network", "a group and a task have at most one network block each")
	}
	each(r, "network", networks, func(n *api.NetworkResource) {
		apply(r, networkRows, n)
		restrict(r, networkLimits, n)
		r.ports(n)
	})
}

func (r *reviewer) reviewServices(services []*api.Service, task *api.Task) {
	each(r, "service", services, func(s *api.Service) { r.in("service", s.Name, func() { r.service(s, task) }) })
}
