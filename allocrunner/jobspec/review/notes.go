package review

import (
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/ptr"
)

// schedulerNote names, once, everything in the job that is only the scheduler's business.
func (r *reviewer) schedulerNote() {
	var used []string
	for _, part := range schedulerParts {
		if part.used(r.job, r.group) {
			used = append(used, part.name)
		}
	}
	if len(used) > 0 {
		r.add(Note, "scheduling", "nothing is scheduled on one machine, so these have no meaning: %s",
			strings.Join(used, ", "))
	}
}

// schedulerParts are what a scheduler would act on. Those that a canonical job always has count when they are not as
// the defaults have them.
var schedulerParts = []struct {
	name   string
	blocks []string // that may have it
	used   func(*api.Job, *api.TaskGroup) bool
}{
	{"constraint", []string{"job", "group", "task"}, func(j *api.Job, g *api.TaskGroup) bool {
		return len(j.Constraints)+len(g.Constraints) > 0 ||
			anyTask(g, func(t *api.Task) bool { return len(t.Constraints) > 0 })
	}},
	{"affinity", []string{"job", "group", "task"}, func(j *api.Job, g *api.TaskGroup) bool {
		return len(j.Affinities)+len(g.Affinities) > 0 ||
			anyTask(g, func(t *api.Task) bool { return len(t.Affinities) > 0 })
	}},
	{"spread", []string{"job", "group"}, func(j *api.Job,
		g *api.TaskGroup) bool {
		return len(j.Spreads)+len(g.Spreads) > 0
	}},
	{"update (but for its health and max_parallel)", nil, rollsOut},
	{"reschedule", []string{"job", "group"}, func(j *api.Job, g *api.TaskGroup) bool {
		return j.Reschedule != nil || differs(g.ReschedulePolicy, api.NewDefaultReschedulePolicy(ptr.Deref(j.Type)))
	}},
	{"migrate", []string{"job", "group"}, func(j *api.Job, g *api.TaskGroup) bool {
		return j.Migrate != nil || differs(g.Migrate, api.DefaultMigrateStrategy())
	}},
	{"datacenters", []string{"job"}, func(j *api.Job, _ *api.TaskGroup) bool {
		return len(j.Datacenters) > 1 || len(j.Datacenters) == 1 && j.Datacenters[0] != "*"
	}},
	{"node_pool", []string{"job"}, func(j *api.Job, _ *api.TaskGroup) bool {
		return ptr.Deref(j.NodePool) != "" && *j.NodePool != "default"
	}},
	{"priority", []string{"job"}, func(j *api.Job, _ *api.TaskGroup) bool {
		return j.Priority != nil && *j.Priority != api.JobDefaultPriority
	}},
	{"all_at_once", []string{"job"}, func(j *api.Job, _ *api.TaskGroup) bool { return ptr.Deref(j.AllAtOnce) }},
	{"prevent_reschedule_on_lost", []string{"group"},
		//lint:ignore SA1019 job files may still say it
		func(_ *api.Job, g *api.TaskGroup) bool { return ptr.Deref(g.PreventRescheduleOnLost) }},
	{"ephemeral_disk size", []string{"group"}, func(_ *api.Job, g *api.TaskGroup) bool {
		return g.EphemeralDisk != nil && g.EphemeralDisk.SizeMB != nil &&
			*g.EphemeralDisk.SizeMB != *api.DefaultEphemeralDisk().SizeMB
	}},
}

func anyTask(g *api.TaskGroup, used func(*api.Task) bool) bool {
	return slices.ContainsFunc(g.Tasks, func(t *api.Task) bool { return t != nil && used(t) })
}

// rollsOut reports that the update block says more than how health is judged, and how many allocations are updated at a
// time.
func rollsOut(_ *api.Job, g *api.TaskGroup) bool {
	u, d := g.Update, api.DefaultUpdateStrategy()
	if u == nil {
		return false
	}
	return ptr.Deref(u.Canary) > 0 || ptr.Deref(u.AutoRevert) || ptr.Deref(u.AutoPromote) ||
		u.Stagger != nil && *u.Stagger != *d.Stagger
}

// What resources of a task mean.
const (
	limitMeaning = "a limit where taskapi can make cgroups with a memory controller, as root mostly can; a note says " +
		"where not"
	sizeMeaning = "nothing enforces it"
)

// resourcesNote says, once for the group, which resources are not limits.
func (r *reviewer) resourcesNote() {
	d := api.DefaultResources()
	limits := r.host.Unlimited != nil && anyTask(r.group, func(t *api.Task) bool {
		s := t.Resources
		return s != nil && (s.CPU != nil && *s.CPU != *d.CPU && *s.CPU != 0 ||
			s.MemoryMB != nil && *s.MemoryMB != *d.MemoryMB || ptr.Deref(s.MemoryMaxMB) > 0)
	})
	sizes := anyTask(r.group, func(t *api.Task) bool {
		s := t.Resources
		return s != nil && (ptr.Deref(s.DiskMB) > 0 || ptr.Deref(s.SecretsMB) > 0)
	})
	r.in("group", ptr.Deref(r.group.Name), func() {
		if limits {
			if why := r.host.Unlimited(); why != nil {
				r.add(Note, "resources", "a task finds its memory and cpu in its environment; they are no limits here: %v",
					why)
			}
		}
		cores := anyTask(r.group, func(t *api.Task) bool { return t.Resources != nil && ptr.Deref(t.Resources.Cores) > 0 })
		if cores && r.host.Unpinned != nil {
			if why := r.host.Unpinned(); why != nil {
				r.add(Note, "resources", "no other task gets a task's cores, but nothing keeps the task on them here: %v", why)
			}
		}
		if sizes {
			r.add(Note, "resources", "nothing enforces disk and secrets")
		}
	})
}
