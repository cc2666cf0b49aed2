package review

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/ptr"
)

// This file is about what only a scheduler acts on. Nothing here acts on it, but it must be as a Nomad server takes it:
// a job file that is accepted here would otherwise be refused there.

// operators are those of affinities, and of constraints, which have more.
var operators = []string{"", "=", "==", "is", "!=", "not", "<", "<=", ">", ">=", "regexp", "version", "semver",
	"set_contains", "set_contains_all", "set_contains_any"}

const valueWords = "the operator needs one: a regular expression for regexp, versions such as \">= 1.2, < 2\" " +
	"for version and semver, and a number above 0 for distinct_property; is_set and is_not_set have none"

var constraintLimits = []limit[api.Constraint]{
	among[api.Constraint]("operator", slices.Concat(operators,
		[]string{"is_set", "is_not_set", "distinct_property", "distinct_hosts"})...),
	{"attribute", "it must be a text, ${attr.NAME}, ${meta.NAME}, ${device.NAME}, ${node.class}, ${node.pool}, " +
		"${node.datacenter}, ${node.unique.id} or ${node.unique.name}", nil,
		func(c *api.Constraint) bool { return c.Operand == "distinct_hosts" || isAttribute(c.LTarget) }},
	{"value", valueWords, nil, func(c *api.Constraint) bool { return takes(c.Operand, c.RTarget) }},
}

var taskConstraintLimits = []limit[api.Constraint]{
	{"operator", "a task's constraint can't have it: give the constraint to the group", nil,
		func(c *api.Constraint) bool { return c.Operand != "distinct_hosts" && c.Operand != "distinct_property" }},
}

var affinityLimits = []limit[api.Affinity]{
	among[api.Affinity]("operator", operators...),
	{"attribute", "it must be there", nil, func(a *api.Affinity) bool { return a.LTarget != "" }},
	{"value", valueWords, nil, func(a *api.Affinity) bool { return takes(a.Operand, a.RTarget) }},
	{"weight", "it must be from -100 to 100, and not 0", nil, func(a *api.Affinity) bool {
		return a.Weight == nil || *a.Weight != 0 && *a.Weight >= -100 && *a.Weight <= 100
	}},
}

var spreadLimits = []limit[api.Spread]{
	{"attribute", "it must be there", nil, func(s *api.Spread) bool { return s.Attribute != "" }},
	{"weight", "it must be from 1 to 100", nil,
		func(s *api.Spread) bool { return s.Weight == nil || *s.Weight >= 1 && *s.Weight <= 100 }},
	{"target", "each must have a value of its own, and their percents together must be at most 100",
		func(s *api.Spread) any { return targets(s) },
		func(s *api.Spread) bool {
			sum, values := 0, map[string]bool{}
			for _, t := range s.SpreadTarget {
				if t != nil {
					sum += int(t.Percent)
					values[t.Value] = true
				}
			}
			return sum <= 100 && len(values) == len(targets(s))
		}},
}

// targets returns the targets as messages show them.
func targets(s *api.Spread) []string {
	var shown []string
	for _, t := range s.SpreadTarget {
		if t != nil {
			shown = append(shown, fmt.Sprintf("%s %d%%", t.Value, t.Percent))
		}
	}
	return shown
}

// isAttribute reports whether a text can be what a constraint compares: a reference must be one to a node.
func isAttribute(text string) bool {
	name, whole := strings.CutSuffix(strings.TrimPrefix(text, "${"), "}")
	if !strings.HasPrefix(text, "$") {
		return text != ""
	}
	kind, _, _ := strings.Cut(name, ".")
	return whole && len(text) == len("${}")+len(name) && (slices.Contains([]string{"attr", "device", "meta"}, kind) &&
		kind != name || slices.Contains([]string{"node.class", "node.pool", "node.datacenter", "node.unique.id",
		"node.unique.name"}, name))
}

// takes reports whether an operator can have a value.
func takes(operator, value string) bool {
	switch operator {
	case "regexp":
		_, err := regexp.Compile(value)
		return err == nil
	case "version":
		return areVersions(value, "|~>", "?")
	case "semver":
		return areVersions(value, "", "")
	case "distinct_property":
		n, err := strconv.ParseUint(cmp.Or(value, "1"), 10, 64)
		return err == nil && n > 0
	case "is_set", "is_not_set":
		return value == ""
	}
	return value != "" || operator == "distinct_hosts"
}

// areVersions reports whether a text lists bounds of a version. more has further operators, and an empty pre-release is
// allowed as an expression of it says.
func areVersions(text, more, empty string) bool {
	const name = `[0-9A-Za-z.~-]+`
	bound := `^\s*(|=|!=|>|<|>=|<=` + more + `)\s*v?\d+(\.\d+)*(-(` + name + `)` + empty + `)?(\+` + name + `)?\s*$`
	for part := range strings.SplitSeq(text, ",") {
		if ok, _ := regexp.MatchString(bound, part); !ok { // the expression is correct
			return false
		}
	}
	return true
}

// placement reviews the constraints, affinities and spreads of the job, of the group, or of a task.
func (r *reviewer) placement(constraints []*api.Constraint, affinities []*api.Affinity, spreads []*api.Spread) {
	each(r, "constraint", constraints, func(c *api.Constraint) {
		r.in("constraint", c.LTarget, func() { restrict(r, constraintLimits, c) })
	})
	each(r, "affinity", affinities, func(a *api.Affinity) {
		r.in("affinity", a.LTarget, func() { restrict(r, affinityLimits, a) })
	})
	each(r, "spread", spreads, func(s *api.Spread) {
		r.in("spread", s.Attribute, func() { restrict(r, spreadLimits, s) })
	})
	if r.isType(api.JobTypeSystem) {
		r.notOfType("affinity", len(affinities) > 0)
		r.notOfType("spread", len(spreads) > 0)
	}
}

// isType reports whether the job has one of the types.
func (r *reviewer) isType(types ...string) bool {
	return slices.Contains(types, cmp.Or(ptr.Deref(r.job.Type), api.JobTypeService))
}

// notOfType refuses a block that jobs of the job's type can't have.
func (r *reviewer) notOfType(feature string, used bool) {
	if used {
		r.refuse(feature, "a job of type %q can't have it; leave it out", ptr.Deref(r.job.Type))
	}
}

var rescheduleLimits = []limit[api.ReschedulePolicy]{
	atLeast[api.ReschedulePolicy]("reschedule delay", 5*time.Second),
	among[api.ReschedulePolicy]("reschedule delay_function", "constant", "exponential", "fibonacci"),
	{"reschedule max_delay", "it must be at least 5s and at least delay, unless the delay_function is constant", nil,
		func(p *api.ReschedulePolicy) bool {
			return p.MaxDelay == nil || ptr.Deref(p.DelayFunction) == "constant" ||
				*p.MaxDelay >= max(5*time.Second, ptr.Deref(p.Delay))
		}},
	{"reschedule attempts", "it must be 0 with unlimited = true", nil,
		func(p *api.ReschedulePolicy) bool { return !ptr.Deref(p.Unlimited) || ptr.Deref(p.Attempts) <= 0 }},
	{"reschedule interval", "it must be at least 15s, and all attempts, each with its delay, must fit into it", nil,
		func(p *api.ReschedulePolicy) bool {
			return p.Interval == nil || ptr.Deref(p.Unlimited) || *p.Interval >= 15*time.Second && attemptsFit(p)
		}},
}

// attemptsFit reports whether the last attempt comes within the interval. A delay that another limit refuses counts as
// one that fits.
func attemptsFit(p *api.ReschedulePolicy) bool {
	interval, delay, most := float64(*p.Interval), float64(ptr.Deref(p.Delay)), float64(ptr.Deref(p.MaxDelay))
	attempts, fibonacci := float64(ptr.Deref(p.Attempts)), ptr.Deref(p.DelayFunction) == "fibonacci"
	switch {
	case delay <= 0:
		return true
	case ptr.Deref(p.DelayFunction) == "constant":
		return attempts*delay <= interval
	}
	before, last := 0.0, delay
	for left := attempts - 1; left > 0; left-- {
		next := last + last
		if fibonacci {
			next = last + before
		}
		if next > most { // each attempt from here on has the longest delay
			if fibonacci {
				last = 0
			}
			last += left * most
			break
		}
		before, last = last, next
	}
	return last < interval || fibonacci && last == interval
}

var migrateLimits = []limit[api.MigrateStrategy]{
	atLeast[api.MigrateStrategy]("migrate max_parallel", 0),
	{"migrate health_check", `it must be "checks" or "task_states"`, nil, func(m *api.MigrateStrategy) bool {
		how := ptr.Deref(m.HealthCheck)
		return how == "checks" || how == "task_states" || how == "" && ptr.Deref(m.MaxParallel) <= 0
	}},
	{"migrate min_healthy_time", "it must be at least 0s, and not above healthy_deadline", nil,
		func(m *api.MigrateStrategy) bool {
			least := ptr.Deref(m.MinHealthyTime)
			return least >= 0 && (m.HealthyDeadline == nil || least <= *m.HealthyDeadline)
		}},
}

var disconnectLimits = []limit[api.DisconnectStrategy]{
	atLeast[api.DisconnectStrategy]("disconnect lost_after", time.Duration(0)),
	atLeast[api.DisconnectStrategy]("disconnect stop_on_client_after", time.Duration(0)),
	{"disconnect stop_on_client_after", "lost_after can't stand beside it", nil, func(d *api.DisconnectStrategy) bool {
		return d.StopOnClientAfter == nil || ptr.Deref(d.LostAfter) == 0
	}},
	among[api.DisconnectStrategy]("disconnect reconcile", "", "best_score", "longest_running", "keep_original",
		"keep_replacement"),
}

var scalingLimits = []limit[api.ScalingPolicy]{
	among[api.ScalingPolicy]("scaling type", "", api.ScalingPolicyTypeHorizontal),
	atLeast[api.ScalingPolicy]("scaling min", 0),
	{"scaling max", "it must be at least 0 and at least min", nil,
		func(s *api.ScalingPolicy) bool { return s.Max != nil && *s.Max >= max(0, ptr.Deref(s.Min)) }},
}

// scheduling reviews what of the group is only the scheduler's business.
func (r *reviewer) scheduling() {
	g := r.group
	r.placement(g.Constraints, g.Affinities, g.Spreads)
	if p := g.ReschedulePolicy; p != nil && (ptr.Deref(p.Attempts) > 0 || ptr.Deref(p.Unlimited)) {
		restrict(r, rescheduleLimits, p)
	}
	r.notOfType("reschedule", g.ReschedulePolicy != nil && r.isType(api.JobTypeSystem, api.JobTypeSysbatch))
	restrict(r, migrateLimits, g.Migrate)
	r.notOfType("migrate", g.Migrate != nil && !r.isType(api.JobTypeService))
	r.notOfType("max_run_duration", g.MaxRunDuration != nil && !r.isType(api.JobTypeBatch, api.JobTypeSysbatch))
	r.notOfType("update", g.Update != nil && r.isType(api.JobTypeBatch, api.JobTypeSysbatch))
	if restrict(r, disconnectLimits, g.Disconnect); g.Disconnect != nil {
		r.notOfType("disconnect stop_on_client_after", g.Disconnect.StopOnClientAfter != nil &&
			r.isType(api.JobTypeSystem, api.JobTypeSysbatch))
	}
	count := int64(1)
	if g.Count != nil {
		count = int64(*g.Count)
	}
	if count > 1 && r.isType(api.JobTypeSystem) {
		r.refuse("count", "it is %d; it must be at most 1 in a job of type \"system\"", count)
	}
	if s := g.Scaling; s != nil {
		restrict(r, scalingLimits, s)
		if s.Min != nil && count < *s.Min || s.Max != nil && count > *s.Max {
			r.refuse("scaling", "the group's count is %d; it must be from min to max", count)
		}
	}
}

var diskLimits = []limit[api.EphemeralDisk]{
	atLeast[api.EphemeralDisk]("ephemeral_disk size", 10),
}

// logSpace refuses logs that are larger than the disk that the group asks for.
func (r *reviewer) logSpace(l *api.LogConfig) {
	disk := r.group.EphemeralDisk
	if l == nil || disk == nil || disk.SizeMB == nil {
		return
	}
	if size := ptr.Deref(l.MaxFiles) * ptr.Deref(l.MaxFileSizeMB); size >= *disk.SizeMB {
		r.refuse("logs", "max_files times max_file_size is %d MB; it must be below the size of the group's ephemeral_disk, "+
			"which is %d MB", size, *disk.SizeMB)
	}
}

// killTimeout refuses a task that may take longer to end than a deployment has for the next to begin.
func (r *reviewer) killTimeout(t *api.Task) {
	u := r.group.Update
	if u == nil || !r.isType(api.JobTypeService) {
		return
	}
	if by := ptr.Deref(u.ProgressDeadline); by > 0 && ptr.Deref(t.KillTimeout) > by {
		r.refuse("kill_timeout", "it is %v; it must be at most the progress_deadline of the group's update block, "+
			"which is %v", *t.KillTimeout, by)
	}
}
